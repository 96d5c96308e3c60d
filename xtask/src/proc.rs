//! Child processes: cargo, and commands whose output is both shown and kept.

use crate::args::Stop;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The cargo that runs this command, in `root`.
pub fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

/// What a command left behind.
#[derive(Debug)]
pub struct Ran {
    /// True where it exited with 0 before the time was up.
    pub ok: bool,
    /// How it ended, in words.
    pub end: String,
    /// Every line of stdout and stderr, in the order of arrival.
    pub lines: Vec<String>,
}

/// Runs `command` to its end, showing each line as it comes. After `limit` the command and
/// everything that it started are killed. The command stays in this terminal's process group, so an
/// interrupt from the keyboard reaches it too.
pub fn tee(command: &mut Command, limit: Duration) -> Result<Ran, Stop> {
    let shown = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| Stop::failed(format!("{shown} did not start: {e}")))?;
    let (send, lines) = std::sync::mpsc::channel();
    let readers: [Option<Box<dyn Read + Send>>; 2] = [
        child.stdout.take().map(|s| Box::new(s) as Box<dyn Read + Send>),
        child.stderr.take().map(|s| Box::new(s) as Box<dyn Read + Send>),
    ];
    for reader in readers.into_iter().flatten() {
        let send = send.clone();
        thread::spawn(move || {
            let mut reader = BufReader::new(reader);
            let mut line = Vec::new();
            while matches!(reader.read_until(b'\n', &mut line), Ok(n) if n > 0) {
                let text = String::from_utf8_lossy(&line).trim_end().to_string();
                line.clear();
                if send.send(text).is_err() {
                    return;
                }
            }
        });
    }
    drop(send);
    let deadline = Instant::now() + limit;
    let mut kept = Vec::new();
    let mut out_of_time = false;
    loop {
        let wait = deadline.saturating_duration_since(Instant::now());
        match lines.recv_timeout(wait) {
            Ok(line) => {
                println!("{line}");
                kept.push(line);
            }
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                out_of_time = true;
                kill_tree(child.id());
                break;
            }
        }
    }
    let status = child.wait().map_err(|e| Stop::failed(format!("{shown}: {e}")))?;
    let end = if out_of_time {
        format!("killed after {} s", limit.as_secs())
    } else {
        status.to_string()
    };
    Ok(Ran { ok: status.success() && !out_of_time, end, lines: kept })
}

/// Kills a process and all its descendants. Each is stopped before its children are listed, so
/// that none starts more; they are killed last, since a dead parent's children are listed no more.
fn kill_tree(root: u32) {
    let signal = |which: &str, id: u32| {
        let _ = Command::new("kill").args([which, &id.to_string()]).status();
    };
    let mut doomed = vec![root];
    let mut at = 0;
    while at < doomed.len() {
        signal("-STOP", doomed[at]);
        doomed.extend(children_of(doomed[at]));
        at += 1;
    }
    for id in doomed {
        signal("-KILL", id);
    }
}

/// The processes whose parent is `parent`, from `/proc/<id>/stat`.
fn children_of(parent: u32) -> Vec<u32> {
    let ids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let id_of = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    ids.filter_map(id_of)
        .filter(|id| {
            // "id (name) state parent ...": the name may hold spaces and brackets.
            let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            let after_name = stat.rsplit_once(") ").map(|(_, rest)| rest).unwrap_or_default();
            after_name.split(' ').nth(1) == Some(&parent.to_string())
        })
        .collect()
}

/// Runs `command`, and fails with its last lines where it fails.
pub fn must(command: &mut Command, limit: Duration, what: &str) -> Result<(), Stop> {
    let ran = tee(command, limit)?;
    if ran.ok {
        return Ok(());
    }
    let from = ran.lines.len().saturating_sub(5);
    Err(Stop::failed(format!("{what} failed ({}): {}", ran.end, ran.lines[from..].join(" | "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Ran {
        tee(Command::new("sh").args(["-c", script]), limit).unwrap()
    }

    #[test]
    fn both_streams_and_the_exit_status_are_kept() {
        let ran = shell("echo a; echo b >&2; exit 3", Duration::from_secs(60));
        let mut lines = ran.lines.clone();
        lines.sort();
        assert_eq!(lines, ["a", "b"]);
        assert!(!ran.ok && ran.end.contains('3'), "{}", ran.end);
        assert!(shell("true", Duration::from_secs(60)).ok);
    }

    /// A command that starts another and waits for it: both must go when the time is up, or the
    /// pipe that they share stays open for as long as the second one lives.
    #[test]
    fn a_command_out_of_time_is_killed_with_its_children() {
        let ran = shell("sleep 600 & echo started; wait", Duration::from_millis(500));
        assert!(!ran.ok);
        assert!(ran.end.contains("killed"), "{}", ran.end);
        assert_eq!(ran.lines, ["started"]);
    }

    #[test]
    fn a_failed_must_carries_the_last_words() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such thing; exit 1"]);
        let stop = must(&mut command, Duration::from_secs(60), "the fetch").unwrap_err();
        assert!(
            matches!(&stop, Stop::Failed(w) if w.contains("the fetch") && w.contains("no such"))
        );
    }
}
