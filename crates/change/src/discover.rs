//! How a server on this machine was started, from what the system knows of its process.

use crate::address::{is_here, port};
use crate::backup;
use crate::edit::FILE_BYTES_MAX;
use crate::process::listener;
use crate::target::Launch;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Ancestors that are looked at for a script.
const ANCESTORS_MAX: usize = 4;
/// Programs that run scripts.
const SHELLS: [&str; 5] = ["sh", "bash", "dash", "zsh", "ksh"];
/// Programs that stay between a script and what it starts.
const WRAPPERS: [&str; 6] = ["timeout", "sudo", "su", "tini", "dumb-init", "catatonit"];

/// How a server was started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its unit, script or command.
    pub launch: Launch,
    /// The server's program, where a script runs more than one.
    pub program: Option<String>,
    /// Where its output goes, where that is a file.
    pub log: Option<PathBuf>,
}

/// Looks for the process that listens at `url`; nothing where there is none to be seen.
pub fn discover(url: &str) -> Option<Found> {
    let pid = listener(port(url).filter(|_| is_here(url))?)?.pid;
    let words = words(pid)?;
    let folder = link(pid, "cwd");
    let program = Path::new(words.first()?).file_name()?.to_string_lossy().into_owned();
    let log = link(pid, "fd/1").filter(|p| p.is_file());
    if let Some((unit, is_user)) = unit(pid) {
        let launch = Launch::Systemd { unit, file: None, is_user };
        return Some(Found { launch, program: Some(program), log });
    }
    if let Some(path) = started_by(pid, &program) {
        return Some(Found { launch: Launch::Script { path }, program: Some(program), log });
    }
    Some(Found { launch: Launch::Command { words, folder }, program: None, log })
}

fn link(pid: i32, name: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/{name}")).ok()
}

fn words(pid: i32) -> Option<Vec<String>> {
    let text = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let text = String::from_utf8(text).ok()?;
    let words: Vec<String> = text.trim_end_matches('\0').split('\0').map(str::to_owned).collect();
    (!words[0].is_empty()).then_some(words)
}

/// Its parent, that one's, and so on; without the first process of all.
fn ancestors(pid: i32) -> Vec<i32> {
    let parent = |pid: &i32| -> Option<i32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name may hold blanks and brackets; fields are counted from the last bracket.
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        (parent > 1).then_some(parent)
    };
    std::iter::successors(parent(&pid), parent).take(ANCESTORS_MAX).collect()
}

/// The script that started a server: of the nearest shells above it. Above anything else - a
/// supervisor, a test runner - stands what started that, and not the server.
fn started_by(pid: i32, program: &str) -> Option<PathBuf> {
    let is_between = |pid: &i32| {
        let name = words(*pid).and_then(|w| Some(Path::new(&w[0]).file_name()?.to_owned()));
        let name = name.as_deref().and_then(|n| n.to_str()).unwrap_or("").trim_start_matches('-');
        SHELLS.contains(&name) || WRAPPERS.contains(&name) || name == program
    };
    ancestors(pid).into_iter().take_while(is_between).find_map(|p| script(p, program))
}

/// The script that a shell runs, where it speaks of the server's program: one that does not has
/// started something else that started the server.
fn script(pid: i32, program: &str) -> Option<PathBuf> {
    let words = words(pid)?;
    let shell = Path::new(&words[0]).file_name()?.to_str()?;
    if !SHELLS.contains(&shell) {
        return None;
    }
    let file = words.iter().skip(1).find(|w| !w.starts_with('-'))?;
    let path = link(pid, "cwd")?.join(file);
    // With -c it is no file.
    let text = backup::read(&path, FILE_BYTES_MAX).ok()?;
    let speaks = text.windows(program.len()).any(|w| w == program.as_bytes());
    speaks.then(|| path.canonicalize().unwrap_or(path))
}

/// The service that a process is the main one of, and whether a user's own manager runs it.
fn unit(pid: i32) -> Option<(String, bool)> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let (name, is_user) = groups.lines().find_map(service)?;
    let mut ask = Command::new("systemctl");
    if is_user {
        ask.arg("--user");
    }
    let out = ask.args(["show", "--value", "--property=MainPID", &name]).output().ok()?;
    let main: i32 = String::from_utf8_lossy(&out.stdout).trim().parse().ok()?;
    // Somebody's shell may stand in a service too, and what it starts is not that service.
    (main == pid || ancestors(pid).contains(&main)).then_some((name, is_user))
}

/// The service that a line of `/proc/PID/cgroup` names.
fn service(line: &str) -> Option<(String, bool)> {
    let path = line.splitn(3, ':').nth(2)?;
    let is_user = path.contains("/user@");
    let name = path.rsplit('/').find(|p| p.ends_with(".service") && !p.starts_with("user@"))?;
    Some((name.to_owned(), is_user))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::start;
    use crate::testing::folder;
    use std::time::{Duration, Instant};

    #[test]
    fn a_service_is_read_from_its_control_group() {
        let of = |line: &str| service(line);
        let name = |n: &str, user: bool| Some((n.to_owned(), user));
        assert_eq!(of("0::/system.slice/lockstep.service"), name("lockstep.service", false));
        let user = "1:name=systemd:/user.slice/user-0.slice/user@0.service/app.slice/s.service";
        assert_eq!(of(user), name("s.service", true));
        assert_eq!(of("0::/user.slice/user-0.slice/user@0.service/init.scope"), None);
        assert_eq!(of("0::/"), None);
    }

    /// A server that a script starts, one that is started by itself, and one that stands under a
    /// program of somebody's script which speaks of python too, as the script that runs all of this
    /// may: that one was once taken for the server's own.
    #[test]
    fn a_server_is_traced_to_what_started_it() {
        let dir = folder("discover");
        // The child gets a port of its own, and tells it.
        let serve = "python3 -c 'import socket,sys,time; s=socket.create_server((\"127.0.0.1\", 0)); \
                     print(s.getsockname()[1], flush=True); time.sleep(60)'";
        std::fs::write(dir.join("serve.sh"), format!("#!/bin/sh\n{serve}\ntrue\n")).unwrap();
        std::fs::write(dir.join("alone.sh"), format!("exec {serve}\n")).unwrap();
        let above = "#!/bin/sh\n# Needs python3.\necho alone.sh | xargs sh\ntrue\n";
        std::fs::write(dir.join("above.sh"), above).unwrap();
        let cases =
            [("by-script", "serve.sh"), ("alone", "alone.sh"), ("under-another", "above.sh")];
        for (log, script) in cases {
            let words = vec!["sh".to_owned(), script.to_owned()];
            let path = dir.join(log);
            let process = start(&words, &dir, &path, &dir).unwrap();
            let begun = Instant::now();
            let port = loop {
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                match text.strip_suffix('\n') {
                    Some(port) => break port.to_owned(),
                    None => assert!(begun.elapsed() < Duration::from_secs(60), "no port"),
                }
                std::thread::sleep(Duration::from_millis(20));
            };
            let found = discover(&format!("http://127.0.0.1:{port}")).unwrap();
            assert_eq!(found.log.as_deref(), Some(path.canonicalize().unwrap().as_path()));
            match found.launch {
                Launch::Script { path } if log == "by-script" => {
                    assert_eq!(path, dir.join("serve.sh").canonicalize().unwrap());
                    assert_eq!(found.program.as_deref(), Some("python3"));
                }
                Launch::Command { words, folder } if log != "by-script" => {
                    // A version manager may have put the whole path there.
                    assert!(words[0].ends_with("python3") && words[1] == "-c", "{words:?}");
                    assert_eq!(folder, Some(dir.canonicalize().unwrap()));
                }
                other => panic!("{log}: {other:?}"),
            }
            process.end(true, Duration::from_secs(10)).unwrap();
        }
    }
}
