//! How a server on this machine was started, from what the system knows of its process.

use crate::backup;
use crate::edit::FILE_BYTES_MAX;
use crate::process::{parent, program, serving, words};
use crate::target::Launch;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Ancestors that are looked at for a script or a service.
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
    let pid = serving(url)?.pid;
    let (words, program) = (words(pid)?, program(pid)?);
    let folder = link(pid, "cwd");
    let log = link(pid, "fd/1").filter(|p| p.is_file());
    let above = between(pid, &program);
    if let Some((unit, is_user)) = unit(pid, &above) {
        let launch = Launch::Systemd { unit, file: None, is_user };
        return Some(Found { launch, program: Some(program), log });
    }
    if let Some(path) = above.iter().find_map(|p| script(*p, &program)) {
        return Some(Found { launch: Launch::Script { path }, program: Some(program), log });
    }
    Some(Found { launch: Launch::Command { words, folder }, program: None, log })
}

fn link(pid: i32, name: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/{name}")).ok()
}

/// What stands right above a server and has started it: shells, wrappers, its own program. Above
/// anything else - a supervisor, a login, a test runner - stands what started that, and not the
/// server. Without the first process of all.
fn between(pid: i32, server: &str) -> Vec<i32> {
    let above = |pid: &i32| parent(*pid).filter(|p| *p > 1);
    let is_between = |pid: &i32| {
        let name = program(*pid).unwrap_or_default();
        let name = name.trim_start_matches('-');
        SHELLS.contains(&name) || WRAPPERS.contains(&name) || name == server
    };
    let all = std::iter::successors(above(&pid), above).take(ANCESTORS_MAX);
    all.take_while(is_between).collect()
}

/// The script that a shell runs, where it speaks of the server's program: one that does not has
/// started something else that started the server.
fn script(pid: i32, server: &str) -> Option<PathBuf> {
    let words = words(pid)?;
    let shell = Path::new(&words[0]).file_name()?.to_str()?;
    if !SHELLS.contains(&shell) {
        return None;
    }
    let file = Path::new(words.iter().skip(1).find(|w| !w.starts_with('-'))?);
    // With -c it is no file, and one of that name in the folder where the shell stands now may be
    // another: a shell keeps the script open that it reads.
    let path = open_files(pid).into_iter().find(|p| p.file_name() == file.file_name())?;
    let text = backup::read(&path, FILE_BYTES_MAX).ok()?;
    let speaks = text.windows(server.len()).any(|w| w == server.as_bytes());
    speaks.then_some(path)
}

/// Plain files that a process has open beside its standard streams.
fn open_files(pid: i32) -> Vec<PathBuf> {
    let all = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
    let numbers = all.filter_map(|f| f.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let links = numbers.filter(|n| *n > 2).filter_map(|n| link(pid, &format!("fd/{n}")));
    links.filter(|p| p.is_file()).collect()
}

/// The service that a process is the main one of, or what its main one started through shells, and
/// whether a user's own manager runs it. A login or a terminal is a service too, and what is
/// started by hand in it is not that service.
fn unit(pid: i32, above: &[i32]) -> Option<(String, bool)> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let (name, is_user) = groups.lines().find_map(service)?;
    let mut ask = Command::new("systemctl");
    if is_user {
        ask.arg("--user");
    }
    let out = ask.args(["show", "--value", "--property=MainPID", &name]).output().ok()?;
    let main: i32 = String::from_utf8_lossy(&out.stdout).trim().parse().ok()?;
    (main == pid || above.contains(&main)).then_some((name, is_user))
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
    use crate::process::{Process, start};
    use crate::testing::folder;
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
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

    /// What is no shell ends the search: beyond it stands a login's service, or a test runner's
    /// script, which were once taken for the server's own.
    #[test]
    fn what_stands_above_another_program_is_not_looked_at() {
        let me = std::process::id() as i32;
        let own = program(me).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 60 & echo $!; wait"]).stdout(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let shell = child.id() as i32;
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let sleeper: i32 = line.trim().parse().unwrap();
        let begun = Instant::now();
        while program(sleeper).as_deref() != Some("sleep") {
            assert!(begun.elapsed() < Duration::from_secs(60), "the shell's child is no sleep");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(between(sleeper, "sleep"), [shell], "this test's process is no shell");
        assert_eq!(between(sleeper, &own)[..2], [shell, me], "and the server's own program is one");
        Process::of(sleeper).unwrap().end(false, Duration::from_secs(10)).unwrap();
        child.wait().unwrap();
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
        // It goes to another folder, where a file of its name says something else.
        std::fs::create_dir(dir.join("elsewhere")).unwrap();
        std::fs::write(dir.join("elsewhere/serve.sh"), "python3 -m other\n").unwrap();
        let script = format!("#!/bin/sh\ncd elsewhere\n{serve}\ntrue\n");
        std::fs::write(dir.join("serve.sh"), script).unwrap();
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
