//! Servers changed by a restart through a script. The server is our own, started like one that
//! knows no live change.

use super::small::chat_model;
use super::{GATES, Site, read, run};
use crate::common::{lockstep, temp_dir};
use serde_json::json;
use std::hash::{BuildHasher, RandomState};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

/// A port for a server that starts later. It is none of those that the system gives to connections by
/// itself, where that leaves any: one of them could have it before the server does.
pub fn free_port() -> u16 {
    let given = read(Path::new("/proc/sys/net/ipv4/ip_local_port_range"));
    let given: u64 = given.split_whitespace().next().unwrap().parse().unwrap();
    let draw = || match given {
        10_001.. => 10_000 + (RandomState::new().hash_one(()) % (given - 10_000)) as u16,
        _ => 0,
    };
    let mut bound = std::iter::repeat_with(|| TcpListener::bind(("127.0.0.1", draw())));
    bound.find_map(Result::ok).unwrap().local_addr().unwrap().port()
}

/// A script that starts a server with a running limit, and what it does instead at a limit of 8.
fn script(port: u16, model: &Path, at_eight: &str) -> String {
    format!(
        "#!/bin/sh\n# the limit: --max-running-requests 99 here is a comment\nRUNNING=4\n\
         [ \"$RUNNING\" = 8 ] && {at_eight}\nexec '{}' serve --json --port {port} --kv-memory 64MiB \\\n\
         \x20 --max-running-requests \"$RUNNING\" --model '{}'\n",
        lockstep().display(),
        model.display()
    )
}

/// A site started by a script, with its target.
pub fn by_script(test: &str, more: &str, at_eight: impl Fn(u16, &Path) -> String) -> Site {
    let dir = temp_dir(test);
    let port = free_port();
    let model = chat_model(&dir, "llama");
    std::fs::write(dir.join("serve.sh"), script(port, &model, &at_eight(port, &dir))).unwrap();
    std::fs::create_dir_all(dir.join("targets")).unwrap();
    let target = format!(
        "kind = \"lockstep\"\nurl = \"http://127.0.0.1:{port}\"\n{more}[launch]\nmethod = \"script\"\n\
         path = \"serve.sh\"\n[ready]\nseconds = 300\nlog = \"server.log\"\n{GATES}"
    );
    std::fs::write(dir.join("targets/ours.toml"), target).unwrap();
    let log = std::fs::File::create(dir.join("server.log")).unwrap();
    let child = Command::new("sh").arg("serve.sh").current_dir(&dir).stdout(log).spawn().unwrap();
    let url = format!("http://127.0.0.1:{port}");
    let site = Site { dir, model, server: Some(child), url };
    wait(&site);
    site
}

/// Waits until a server answers there.
pub fn wait(site: &Site) {
    crate::common::wait_until("it serves", || {
        Command::new(lockstep()).args(["status", &site.url]).output().unwrap().status.success()
    });
}

/// Whatever listens at the site's port ends with the test.
pub fn end(mut site: Site) {
    site.stop();
    let port: u16 = site.url.rsplit(':').next().unwrap().parse().unwrap();
    if let Some(server) = lockstep_change::process::listener(port, &[]) {
        server.end(false, std::time::Duration::from_secs(120)).unwrap();
    }
}

pub const SET: [&str; 5] = ["--target", "ours", "--set", "sched.max-running-requests=8", "--yes"];

pub fn running(site: &Site) -> serde_json::Value {
    site.status()["max_running_requests"].clone()
}

#[test]
fn a_script_is_edited_in_place_and_restarted() {
    let site = by_script("script", "", |_, _| ":".into());
    let before = read(&site.dir.join("serve.sh"));
    let (code, done, said) = run(&mut site.change(&SET));
    assert_eq!((code, &done["state"]), (0, &json!("kept")), "{done} {said}");
    assert_eq!(running(&site), 8);
    assert_eq!(read(&site.dir.join("serve.sh")), before.replace("RUNNING=4", "RUNNING=8"));
    assert!(said.contains("-RUNNING=4") && said.contains("+RUNNING=8"), "a diff: {said}");
    let record = site.dir.join(done["record"].as_str().unwrap());
    assert_eq!(read(&record.join("backup/serve.sh")), before);
    assert!(read(&record.join("decision.md")).contains("Downtime: "));
    end(site);
}

/// A process that starts and never listens; one that answers health and garbage, which is another
/// model under the same name. Both are rolled back, which is verified.
#[test]
fn a_server_that_does_not_come_back_right_is_rolled_back() {
    let never = |_: u16, _: &Path| "exec sleep 1000".to_owned();
    let garbage = |port: u16, dir: &Path| {
        format!(
            "exec env LOCKSTEP_SCHED_MAX_RUNNING_REQUESTS=8 '{}' serve --json --port {port} \
             --kv-memory 64MiB --model '{}'",
            lockstep().display(),
            chat_model(dir, "qwen2").display()
        )
    };
    type Case<'a> = (&'a str, &'a dyn Fn(u16, &Path) -> String, &'a str);
    let cases: [Case<'_>; 2] =
        [("never-ready", &never, "was not ready after"), ("garbage", &garbage, "corruption: ")];
    for (test, at_eight, said) in cases {
        let site = by_script(test, "", at_eight);
        if test == "never-ready" {
            let path = site.dir.join("targets/ours.toml");
            // The way back has as long, which a slow machine needs.
            std::fs::write(&path, read(&path).replace("seconds = 300", "seconds = 15")).unwrap();
        }
        let before = read(&site.dir.join("serve.sh"));
        let (code, done, words) = run(&mut site.change(&SET));
        assert_eq!((code, &done["state"]), (11, &json!("rolled_back")), "{test}: {done} {words}");
        assert!(done["reasons"].to_string().contains(said), "{test}: {done}");
        assert_eq!(read(&site.dir.join("serve.sh")), before, "{test}");
        assert_eq!(running(&site), 4, "{test}: the old one serves");
        end(site);
    }
}

/// Kills a change of the running limit at a line of its journal.
fn kill(site: &Site, wanted: u32, death: &str) {
    let set = format!("sched.max-running-requests={wanted}");
    let mut change = site.change(&["--target", "ours", "--set", &set, "--yes"]);
    let out = change.env("LOCKSTEP_TEST_CHANGE_DIES", death).output().unwrap();
    assert_eq!(out.status.code(), None, "{death}: killed, not ended: {out:?}");
}

/// Lines of a restart's journal: eight states, the intent of the flip (6), the start (7).
const LINES: u64 = 10;

/// Whatever line a change by restart was killed at - also before the line that says what was just
/// done: the server is started and not written down (7), it answers and that is not said (8) - it
/// goes on to one server that has the new setting, and a file that has the same.
#[test]
fn a_restart_killed_at_any_line_is_resumed() {
    let site = by_script("killed", "", |_, _| ":".into());
    let mut is = 4;
    let before = (7..=LINES).map(|seq| format!("before-{seq}"));
    for death in (1..=LINES).map(|seq| format!("after-{seq}")).chain(before) {
        let wanted = if is == 4 { 8 } else { 4 };
        kill(&site, wanted, &death);
        if site.log().pop().unwrap()["state"] != "kept" {
            let (code, done, said) = run(&mut site.change(&["resume"]));
            assert_eq!((code, &done["state"]), (0, &json!("kept")), "{death}: {done} {said}");
        }
        is = wanted;
        assert_eq!(running(&site), is, "{death}");
        let text = read(&site.dir.join("serve.sh"));
        assert!(text.contains(&format!("RUNNING={is}\n")), "{death}: {text}");
    }
    end(site);
}

/// A resumed change was once taken back, its server ended and started again, after one request that
/// was not answered within 15 s.
#[test]
fn a_mute_server_that_was_restarted_keeps_its_change_until_it_is_rolled_back() {
    let site = by_script("mute-restarted", "", |_, _| ":".into());
    // Flipped: the new server answered once.
    kill(&site, 8, "after-8");
    let server = lockstep_change::process::serving(&site.url).unwrap();
    let send = |name: &str| {
        let pid = server.pid.to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    };
    send("STOP");
    let (code, done, said) = run(&mut site.change(&["resume"]));
    assert!(code == 8 && said.contains("does not answer within 15 s"), "{code} {done} {said}");
    assert!(server.is_alive());
    send("CONT");
    assert_eq!(
        (site.log().pop().unwrap()["state"].clone(), running(&site)),
        (json!("flipped"), json!(8))
    );
    send("STOP");
    let (code, done, said) = run(&mut site.change(&["rollback"]));
    assert_eq!((code, &done["state"]), (0, &json!("rolled_back")), "{done} {said}");
    assert_eq!(running(&site), 4);
    end(site);
}

#[test]
fn a_restart_killed_at_any_line_is_rolled_back() {
    let site = by_script("killed-back", "", |_, _| ":".into());
    let script = read(&site.dir.join("serve.sh"));
    // The last line says that it is kept: nothing is left to be rolled back.
    let after = (1..LINES).map(|seq| format!("after-{seq}"));
    for death in after.chain(["before-7", "before-8"].map(str::to_owned)) {
        kill(&site, 8, &death);
        let (code, done, said) = run(&mut site.change(&["rollback"]));
        assert_eq!((code, &done["state"]), (0, &json!("rolled_back")), "{death}: {done} {said}");
        assert_eq!(running(&site), 4, "{death}");
        assert_eq!(read(&site.dir.join("serve.sh")), script, "{death}");
    }
    end(site);
}

/// The way back is killed too: after the start that failed (7), with the way back announced (8), the
/// old server started and not written down (9), and all of it done and not said (10).
#[test]
fn a_way_back_killed_at_any_line_is_finished() {
    let site = by_script("killed-on-the-way-back", "", |_, _| "exit 3".into());
    let script = read(&site.dir.join("serve.sh"));
    for death in ["after-7", "after-8", "before-9", "after-9", "before-10", "after-10"] {
        kill(&site, 8, death);
        if site.log().pop().unwrap()["state"] != "rolled_back" {
            let (code, done, said) = run(&mut site.change(&["resume"]));
            let ended = (code, &done["state"]);
            assert_eq!(ended, (11, &json!("rolled_back")), "{death}: {done} {said}");
            assert!(done["reasons"].to_string().contains("ended before it was ready"), "{done}");
        }
        assert_eq!(running(&site), 4, "{death}");
        assert_eq!(read(&site.dir.join("serve.sh")), script, "{death}");
    }
    end(site);
}
