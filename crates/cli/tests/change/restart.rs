//! Servers changed by a restart through a script. The server is our own, started like one that
//! knows no live change.

use super::{Site, read, run};
use crate::common::{lockstep, model, temp_dir};
use serde_json::json;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

const GATES: &str = "[gates]\nconcurrency = [1, 4]\nrounds = 1\ntokens = 4\ntolerance-percent = 95\n\
                     p99-factor-max = 100\n[watch]\nseconds = 0\n";

/// A script that starts a server with a running limit, and what it does instead at a limit of 8.
fn script(port: u16, at_eight: &str) -> String {
    format!(
        "#!/bin/sh\n# the limit: --max-running-requests 99 here is a comment\nRUNNING=4\n\
         [ \"$RUNNING\" = 8 ] && {at_eight}\nexec '{}' serve --json --port {port} --kv-memory 64MiB \\\n\
         \x20 --max-running-requests \"$RUNNING\" --model '{}'\n",
        lockstep().display(),
        model().display()
    )
}

/// A site started by a script, with its target.
fn by_script(test: &str, at_eight: impl Fn(u16) -> String) -> Site {
    let dir = temp_dir(test);
    let port = free_port();
    std::fs::write(dir.join("serve.sh"), script(port, &at_eight(port))).unwrap();
    std::fs::create_dir_all(dir.join("targets")).unwrap();
    let target = format!(
        "kind = \"lockstep\"\nurl = \"http://127.0.0.1:{port}\"\n[launch]\nmethod = \"script\"\n\
         path = \"serve.sh\"\n[ready]\nseconds = 20\nlog = \"server.log\"\n{GATES}"
    );
    std::fs::write(dir.join("targets/ours.toml"), target).unwrap();
    let log = std::fs::File::create(dir.join("server.log")).unwrap();
    let child = Command::new("sh").arg("serve.sh").current_dir(&dir).stdout(log).spawn().unwrap();
    let url = format!("http://127.0.0.1:{port}");
    let site = Site { dir, server: Some(child), url };
    crate::common::wait_until("it serves", || {
        Command::new(lockstep()).args(["status", &site.url]).output().unwrap().status.success()
    });
    site
}

/// Whatever listens at the site's port ends with the test.
fn end(mut site: Site) {
    site.stop();
    let port: u16 = site.url.rsplit(':').next().unwrap().parse().unwrap();
    if let Some(server) = lockstep_change::process::listener(port) {
        server.end(false, std::time::Duration::from_secs(20)).unwrap();
    }
}

const SET: [&str; 5] = ["--target", "ours", "--set", "sched.max-running-requests=8", "--yes"];

fn running(site: &Site) -> serde_json::Value {
    site.status()["max_running_requests"].clone()
}

#[test]
fn a_script_is_edited_in_place_and_restarted() {
    let site = by_script("script", |_| ":".into());
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
#[ignore = "takes minutes where the machine is busy; run by name with --ignored"]
fn a_server_that_does_not_come_back_right_is_rolled_back() {
    let recall = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/recall");
    let never = |_: u16| "exec sleep 1000".to_owned();
    let garbage = |port: u16| {
        format!(
            "exec env LOCKSTEP_SCHED_MAX_RUNNING_REQUESTS=8 '{}' serve --json --port {port} \
             --kv-memory 64MiB --model '{}'",
            lockstep().display(),
            recall.display()
        )
    };
    type Case<'a> = (&'a str, &'a dyn Fn(u16) -> String, &'a str);
    let cases: [Case<'_>; 2] =
        [("never-ready", &never, "was not ready after"), ("garbage", &garbage, "corruption: ")];
    for (test, at_eight, said) in cases {
        let site = by_script(test, at_eight);
        if test == "never-ready" {
            let path = site.dir.join("targets/ours.toml");
            std::fs::write(&path, read(&path).replace("seconds = 20", "seconds = 8")).unwrap();
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
