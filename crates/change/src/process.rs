//! Processes of servers that this command starts and ends.

use crate::address::{addresses, is_here, port};
use crate::fault::ChangeError;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fs::OpenOptions;
use std::io;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The variable that marks what a change started: its record's folder.
const MARK: &str = "LOCKSTEP_CHANGE_RECORD";

/// A process, told from a later one with its number by when it was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// Clock ticks from the boot to its start.
    pub ticks: u64,
}

impl Process {
    /// The process that has this number now.
    pub fn of(pid: i32) -> Option<Process> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name may hold blanks and brackets; fields are counted from the last bracket.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        // A zombie runs no more.
        let ticks = fields.get(19)?.parse().ok()?;
        (fields.first() != Some(&"Z")).then_some(Process { pid, ticks })
    }

    /// True while it runs.
    pub fn is_alive(self) -> bool {
        Process::of(self.pid) == Some(self)
    }

    /// Ends it, and with `group` its whole process group: SIGTERM, and SIGKILL where it is still
    /// there after `patience`.
    ///
    /// # Errors
    /// It is not ours to end, or stays whatever is done.
    pub fn end(self, group: bool, patience: Duration) -> Result<(), ChangeError> {
        let fault =
            |what: String| ChangeError::Program { program: format!("process {}", self.pid), what };
        let pid = Pid::from_raw(self.pid).ok_or_else(|| fault("has no number".into()))?;
        let me = std::process::id().cast_signed();
        if std::iter::successors(Some(me), |p| parent(*p)).any(|p| p == self.pid) {
            return Err(fault("is what this command runs under: it is not ended".into()));
        }
        for (signal, patience) in
            [(Signal::TERM, patience), (Signal::KILL, Duration::from_secs(10))]
        {
            if !self.is_alive() {
                return Ok(());
            }
            let send = if group { kill_process_group } else { kill_process };
            send(pid, signal).map_err(|e| fault(format!("cannot be ended: {e}")))?;
            let begun = Instant::now();
            while self.is_alive() && begun.elapsed() < patience {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        if self.is_alive() { Err(fault("does not end".into())) } else { Ok(()) }
    }
}

/// The process that listens on a port of this machine, at one of `addresses` or at all of them;
/// with no address, at any. Of several that share the socket, the one that the others come from.
pub fn listener(port: u16, addresses: &[IpAddr]) -> Option<Process> {
    let inodes: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|path| std::fs::read_to_string(path).ok())
        .flat_map(|text| listening(&text, port, addresses))
        .collect();
    let sockets: Vec<String> = inodes.iter().map(|i| format!("socket:[{i}]")).collect();
    let processes = std::fs::read_dir("/proc").ok()?;
    let holds = |pid: i32| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd"));
        files.is_ok_and(|mut files| {
            files.any(|f| {
                let link = f.and_then(|f| std::fs::read_link(f.path()));
                link.is_ok_and(|l| sockets.iter().any(|s| l.as_os_str() == s.as_str()))
            })
        })
    };
    let numbers = processes.filter_map(|p| p.ok()?.file_name().to_str()?.parse().ok());
    let all: Vec<i32> = numbers.filter(|pid| holds(*pid)).collect();
    let first = |pid: &&i32| parent(**pid).is_none_or(|p| !all.contains(&p));
    all.iter().find(first).and_then(|pid| Process::of(*pid))
}

/// The process that serves at `url`, where that is on this machine.
pub fn serving(url: &str) -> Option<Process> {
    // The port may be somebody else's here.
    listener(port(url).filter(|_| is_here(url))?, &addresses(url))
}

/// The process that started another; none for the first of all.
pub fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold blanks and brackets; fields are counted from the last bracket.
    let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
    (parent > 0).then_some(parent)
}

/// The words that a process was started with.
pub fn words(pid: i32) -> Option<Vec<String>> {
    let text = String::from_utf8(std::fs::read(format!("/proc/{pid}/cmdline")).ok()?).ok()?;
    let words: Vec<String> = text.trim_end_matches('\0').split('\0').map(str::to_owned).collect();
    (!words[0].is_empty()).then_some(words)
}

/// The name of the program that a process runs, without its folder.
pub fn program(pid: i32) -> Option<String> {
    Some(Path::new(words(pid)?.first()?).file_name()?.to_string_lossy().into_owned())
}

/// Inodes of sockets that listen on a port, from the system's table.
fn listening(table: &str, port: u16, addresses: &[IpAddr]) -> Vec<String> {
    const LISTEN: &str = "0A";
    let of_line = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (at, hex) = fields.get(1)?.rsplit_once(':')?;
        let is_meant = |ip: IpAddr| ip.is_unspecified() || addresses.contains(&ip);
        let here = u16::from_str_radix(hex, 16).ok()? == port
            && *fields.get(3)? == LISTEN
            && (addresses.is_empty() || is_meant(address(at)?));
        here.then(|| fields.get(9).map(|i| (*i).to_owned())).flatten()
    };
    table.lines().skip(1).filter_map(of_line).collect()
}

/// An address of the system's table: words of 32 bits as this machine stores them, in hex.
fn address(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| -> Option<[u8; 4]> {
        Some(u32::from_str_radix(hex.get(at..at + 8)?, 16).ok()?.to_ne_bytes())
    };
    match hex.len() {
        8 => Some(IpAddr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (i, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(8 * i)?);
            }
            // A socket for both families has IPv4's addresses in IPv6's form.
            Some(IpAddr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

/// Processes that were started with a mark, and what they started.
pub fn marked(mark: &Path) -> Vec<Process> {
    let mut wanted = format!("{MARK}=").into_bytes();
    wanted.extend_from_slice(mark.as_os_str().as_bytes());
    let has = |pid: &i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|b| *b == 0).any(|entry| entry == wanted)
    };
    let all = std::fs::read_dir("/proc").into_iter().flatten();
    let numbers = all.filter_map(|p| p.ok()?.file_name().to_str()?.parse().ok());
    numbers.filter(has).filter_map(Process::of).collect()
}

/// Starts a program that outlives this command: in a process group of its own, its output at the
/// end of `log`, and marked, so that it is found even where nobody could write its number down.
///
/// # Errors
/// It does not start.
pub fn start(
    words: &[String],
    folder: &Path,
    log: &Path,
    mark: &Path,
) -> Result<Process, ChangeError> {
    let fault = |what: String| ChangeError::Program { program: words.join(" "), what };
    let open = || OpenOptions::new().create(true).append(true).open(log);
    let output = open().map_err(|why| ChangeError::Write { path: log.into(), why })?;
    let errors = output.try_clone().map_err(|e| fault(e.to_string()))?;
    let (program, rest) = words.split_first().ok_or_else(|| fault("no program".into()))?;
    let child = Command::new(program)
        .args(rest)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .process_group(0)
        .env(MARK, mark)
        .env_remove("LOCKSTEP_TEST_CHANGE_DIES")
        .spawn()
        .map_err(|e: io::Error| fault(format!("does not start: {e}")))?;
    let pid = i32::try_from(child.id()).unwrap_or(0);
    // One that has ended already is told by whoever waits for it; it is reaped beside.
    std::thread::spawn(move || {
        let mut child = child;
        let _ = child.wait();
    });
    Ok(Process::of(pid).unwrap_or(Process { pid, ticks: 0 }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::folder;
    use std::net::TcpListener;

    #[test]
    fn a_listener_is_found_by_its_port() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        assert_eq!(listener(port, &[]).map(|p| p.pid as u32), Some(std::process::id()));
        drop(socket);
        assert_eq!(listener(port, &[]), None);
    }

    /// Two servers with one port, each at an address of its own: the wrong one was once ended.
    #[test]
    fn a_listener_at_another_address_is_another_server() {
        let ours = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = ours.local_addr().unwrap().port();
        let (here, there) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        assert!(listener(port, &[here]).is_some());
        assert_eq!(listener(port, &[there]), None);
        drop(ours);
        let all = TcpListener::bind(("0.0.0.0", port)).unwrap();
        assert!(listener(port, &[there]).is_some(), "it listens at all of them");
        drop(all);
        let table = "head\n 0: 0000000000000000FFFF00000200007F:1F90 0:0 0A 0 0 0 0 0 77 1\n";
        assert_eq!(listening(table, 8080, &[there]), ["77"], "IPv4 in IPv6's form");
        assert!(listening(table, 8080, &[here]).is_empty());
    }

    #[test]
    fn a_program_is_started_and_ended() {
        let dir = folder("process");
        let words: Vec<String> =
            ["sh", "-c", "echo here; exec sleep 60"].iter().map(|w| (*w).to_owned()).collect();
        let process = start(&words, &dir, &dir.join("log"), &dir).unwrap();
        assert!(process.is_alive());
        // The shell has become another program; the mark has stayed.
        assert_eq!(marked(&dir), [process]);
        process.end(true, Duration::from_secs(10)).unwrap();
        assert!(!process.is_alive());
        assert!(!Process { ticks: process.ticks + 1, ..process }.is_alive());
        assert_eq!(marked(&dir), []);
        assert!(start(&["no-such-program".to_owned()], &dir, &dir.join("log"), &dir).is_err());
    }
}
