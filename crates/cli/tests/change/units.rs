//! A server that is changed through its unit. The manager here is a program called `systemctl` that
//! reads units as systemd does for what is asked of it, so that this runs everywhere; systemd itself
//! does the same in `tests/e2e/test_units.py`.

use super::restart::{end, free_port, running, wait};
use super::small::chat_model;
use super::{GATES, Site, read, run};
use crate::common::{lockstep, temp_dir};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// `show` names the unit's file and its drop-in, `restart` ends the main process and starts what
/// the last `ExecStart` says. Every call is written down.
const SYSTEMCTL: &str = r#"#!/bin/sh
cd "$(dirname "$0")/.." || exit 1
echo "$@" >> calls
case "$1 $3" in
"show --property=FragmentPath") echo "$PWD/ours.service" ;;
"show --property=DropInPaths") echo "$PWD/ours.service.d/10.conf" ;;
"daemon-reload " | "reset-failed ") ;;
"show --property=ActiveState") echo active ;;
"restart "*)
    [ -f pid ] && kill "$(cat pid)" && while kill -0 "$(cat pid)" 2>/dev/null; do sleep 0.05; done
    line=$(sed -n 's/^ExecStart=//p' ours.service ours.service.d/10.conf | tail -1)
    setsid sh -c "exec $line" >> server.log 2>&1 < /dev/null &
    echo $! > pid ;;
*) echo "unknown: $*" >&2; exit 1 ;;
esac
"#;

/// A server of a unit with a drop-in, which has so many seconds to be ready; at a limit of 8 the program
/// does something else.
fn by_unit(test: &str, ready: u32, at_eight: &str) -> Site {
    let dir = temp_dir(test);
    let port = free_port();
    let model = chat_model(&dir, "llama");
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    };
    write("bin/systemctl", SYSTEMCTL);
    let program = format!(
        "#!/bin/sh\n[ \"$2\" = 8 ] && {at_eight}\nexec '{}' serve --port {port} --kv-memory 64MiB \
         --model '{}' \"$@\"\n",
        lockstep().display(),
        model.display()
    );
    write("program", &program);
    let here = dir.display();
    write(
        "ours.service",
        &format!("[Service]\nExecStart={here}/program --max-running-requests 2\n"),
    );
    let drop_in = format!(
        "[Service]\n# the limit is a guess\nExecStart=\nExecStart={here}/program \\\n \
         --max-running-requests 4\n"
    );
    // The manager of this test knows no continuation lines; the editor does, in its own tests.
    write("ours.service.d/10.conf", &drop_in.replace("\\\n ", ""));
    let target = format!(
        "kind = \"lockstep\"\nurl = \"http://127.0.0.1:{port}\"\n[launch]\nmethod = \"systemd\"\n\
         unit = \"ours.service\"\n[ready]\nseconds = {ready}\n{GATES}"
    );
    write("targets/ours.toml", &target);
    let site = Site { dir, model, server: None, url: format!("http://127.0.0.1:{port}") };
    let mut manager = Command::new(site.dir.join("bin/systemctl"));
    assert!(manager.args(["restart", "ours.service"]).status().unwrap().success());
    wait(&site);
    site
}

fn change(site: &Site) -> Command {
    let set = ["--target", "ours", "--set", "sched.max-running-requests=8", "--yes"];
    let mut command = site.change(&set);
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", site.dir.join("bin").display()));
    command
}

#[test]
fn a_unit_is_changed_in_its_drop_in() {
    let site = by_unit("unit", 300, ":");
    let (main, drop_in) = ("ours.service", "ours.service.d/10.conf");
    let before = (read(&site.dir.join(main)), read(&site.dir.join(drop_in)));
    let (code, done, said) = run(&mut change(&site));
    assert_eq!((code, &done["state"]), (0, &json!("kept")), "{done} {said}");
    assert_eq!(running(&site), 8);
    assert_eq!(read(&site.dir.join(main)), before.0, "what a drop-in overrules is left alone");
    assert_eq!(read(&site.dir.join(drop_in)), before.1.replace("requests 4", "requests 8"));
    let calls = read(&site.dir.join("calls"));
    let restarted = "daemon-reload\nreset-failed ours.service\nrestart ours.service\n";
    assert!(calls.contains(restarted), "{calls}");
    end(site);
}

#[test]
fn a_unit_that_never_becomes_ready_is_rolled_back() {
    // The way back has as long, which a slow machine needs.
    let site = by_unit("unit-never", 15, "exec sleep 1000");
    let before = read(&site.dir.join("ours.service.d/10.conf"));
    let (code, done, said) = run(&mut change(&site));
    assert_eq!((code, &done["state"]), (11, &json!("rolled_back")), "{done} {said}");
    assert!(done["reasons"].to_string().contains("was not ready after 15 s"), "{done}");
    assert_eq!(read(&site.dir.join("ours.service.d/10.conf")), before);
    assert_eq!(running(&site), 4, "the old setting runs");
    end(site);
}
