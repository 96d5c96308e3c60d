//! The systemd units of `deploy/systemd`, as systemd itself reads them.

use crate::common::{lockstep, temp_dir};
use std::path::Path;
use std::process::Command;

#[test]
fn units_are_what_systemd_takes() {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/systemd/lockstep.service");
    let text = std::fs::read_to_string(source).unwrap();
    for needed in ["Type=notify", "NoNewPrivileges=yes", "ProtectSystem=strict", "TimeoutStopSec="]
    {
        assert!(text.contains(needed), "{needed}");
    }
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("systemd-analyze is not on this machine: the unit was read, and not verified");
        return;
    }
    let dir = temp_dir("units");
    let path = dir.join("lockstep.service");
    let here = lockstep().display().to_string();
    std::fs::write(&path, text.replace("/usr/local/bin/lockstep", &here)).unwrap();
    let verify = Command::new("systemd-analyze").arg("verify").arg(&path).output().unwrap();
    let said = String::from_utf8_lossy(&verify.stderr).into_owned();
    assert!(verify.status.success() && !said.contains("lockstep.service:"), "{said}");
    let offline = ["security", "--offline=true", "--threshold=25"];
    let security = Command::new("systemd-analyze").args(offline).arg(&path).output().unwrap();
    let said = String::from_utf8_lossy(&security.stdout).into_owned();
    assert!(security.status.success(), "its exposure is above 2.5: {said}");
}
