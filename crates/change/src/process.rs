//! Processes of servers that this command starts and ends.

use crate::fault::ChangeError;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fs::OpenOptions;
use std::io;
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

/// The process that listens on a port of this machine.
pub fn listener(port: u16) -> Option<Process> {
    let inodes: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|path| std::fs::read_to_string(path).ok())
        .flat_map(|text| listening(&text, port))
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
    let mut all: Vec<i32> = numbers.filter(|pid| holds(*pid)).collect();
    all.sort_unstable();
    all.first().and_then(|pid| Process::of(*pid))
}

/// Inodes of sockets that listen on a port, from the system's table.
fn listening(table: &str, port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let of_line = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, hex) = fields.get(1)?.rsplit_once(':')?;
        let here = u16::from_str_radix(hex, 16).ok()? == port && *fields.get(3)? == LISTEN;
        here.then(|| fields.get(9).map(|i| (*i).to_owned())).flatten()
    };
    table.lines().skip(1).filter_map(of_line).collect()
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
        assert_eq!(listener(port).map(|p| p.pid as u32), Some(std::process::id()));
        drop(socket);
        assert_eq!(listener(port), None);
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
