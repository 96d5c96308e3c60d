//! systemd's side of a restart: which file of a unit is edited, and the restart itself.

use crate::edit;
use crate::fault::ChangeError;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How often a restart under way is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The unit's file or drop-in that has the last word on what is run, or on a variable.
///
/// # Errors
/// The manager does not tell, or none of its files says it.
pub fn file(unit: &str, is_user: bool, wish: &str) -> Result<PathBuf, ChangeError> {
    let show = |property: &str| {
        systemctl(is_user, &["show", "--value", &format!("--property={property}"), unit])
    };
    let main = show("FragmentPath")?;
    let drop_ins = show("DropInPaths")?;
    let mut files: Vec<PathBuf> = vec![main.trim().into()];
    files.extend(drop_ins.split_whitespace().map(PathBuf::from));
    last_word(&files, wish).ok_or_else(|| ChangeError::Program {
        program: "systemctl".into(),
        what: format!("no file of {unit} says what is run"),
    })
}

/// Of a unit's file and its drop-ins in order, the last that says what is asked.
fn last_word(files: &[PathBuf], wish: &str) -> Option<PathBuf> {
    let says = |path: &&PathBuf| {
        let Ok(text) = std::fs::read(path) else { return false };
        match wish.strip_prefix("env.") {
            Some(name) => edit::sets_variable(&text, name),
            None => edit::has_exec_start(&text),
        }
    };
    files.iter().rfind(says).cloned()
}

/// Reads the unit's files again and restarts it; answers when the manager says that it is done.
///
/// # Errors
/// It failed, or is not done after `limit`: a unit of `Type=notify` that never says that it is ready
/// would be waited for as long as the unit itself allows, and its next restart takes its place.
pub fn restart(unit: &str, is_user: bool, limit: Duration) -> Result<(), ChangeError> {
    systemctl(is_user, &["daemon-reload"])?;
    // One that has failed a few times in a row is not started again, not even with what worked.
    let _ = systemctl(is_user, &["reset-failed", unit]);
    let fault = |what: String| ChangeError::Program { program: unit.to_owned(), what };
    let mut child = command(is_user, &["restart", unit])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| fault(format!("systemctl does not start: {e}")))?;
    let begun = Instant::now();
    loop {
        match child.try_wait().map_err(|e| fault(e.to_string()))? {
            Some(_) => break,
            None if begun.elapsed() > limit => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(fault(format!("was not ready after {} s", limit.as_secs())));
            }
            None => std::thread::sleep(LOOK_EVERY),
        }
    }
    let out = child.wait_with_output().map_err(|e| fault(e.to_string()))?;
    if out.status.success() { Ok(()) } else { Err(fault(words(&out.stderr, &out.status))) }
}

/// Looks whether a unit has failed for good while it is waited for.
///
/// # Errors
/// It has.
pub fn look(unit: &str, is_user: bool) -> Result<(), ChangeError> {
    let state = systemctl(is_user, &["show", "--value", "--property=ActiveState", unit]);
    match state {
        Ok(state) if state.trim() == "failed" => {
            let what = "has failed; its journal says why".into();
            Err(ChangeError::Program { program: unit.into(), what })
        }
        // A manager that does not tell is no failure of the unit.
        _ => Ok(()),
    }
}

/// The system's service manager, or the calling user's own.
fn command(is_user: bool, arguments: &[&str]) -> Command {
    let mut command = Command::new("systemctl");
    if is_user {
        command.arg("--user");
    }
    command.args(arguments);
    command
}

fn systemctl(is_user: bool, arguments: &[&str]) -> Result<String, ChangeError> {
    output(command(is_user, arguments))
}

/// Runs a program of the system to its end; what it prints.
///
/// # Errors
/// It does not start or does not succeed.
pub fn run(program: &str, arguments: &[&OsStr]) -> Result<String, ChangeError> {
    let mut command = Command::new(program);
    command.args(arguments);
    output(command)
}

fn output(mut command: Command) -> Result<String, ChangeError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let fault = |what: String| ChangeError::Program { program: program.clone(), what };
    let out = command.output().map_err(|e| fault(format!("does not start: {e}")))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    Err(fault(words(&out.stderr, &out.status)))
}

fn words(stderr: &[u8], status: &std::process::ExitStatus) -> String {
    let words = String::from_utf8_lossy(stderr).trim().to_owned();
    if words.is_empty() { status.to_string() } else { words }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::folder;

    #[test]
    fn the_last_drop_in_that_says_what_is_run_is_edited() {
        let dir = folder("drop-ins");
        let write = |name: &str, text: &str| {
            let path = dir.join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let files = [
            write("s.service", "[Service]\nExecStart=/bin/s --parallel 4\n"),
            write("10.conf", "[Service]\nExecStart=\nExecStart=/bin/s --parallel 8\n"),
            write("20.conf", "[Service]\nEnvironment=A=1\n"),
        ];
        assert_eq!(last_word(&files, "parallel"), Some(files[1].clone()));
        assert_eq!(last_word(&files, "env.A"), Some(files[2].clone()));
        assert_eq!(last_word(&files[2..], "parallel"), None);
    }
}
