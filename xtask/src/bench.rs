//! `cargo xtask bench`: builds both sides and hands over to `bench/side_by_side.py`;
//! `cargo xtask bench audit` prices the audit; `cargo xtask bench v4` says where a step of the
//! recall model goes, and what its drafts are worth.

use crate::args::{Outcome, Stop};
use crate::metadata::Metadata;
use crate::peer;
use crate::proc::{cargo, must};
use crate::tree::root;
use std::process::Command;
use std::time::Duration;

const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// The command; `args` go to the script, or after `audit` or `v4` to that example.
pub fn main(args: &[String]) -> Outcome {
    let root = root();
    let examples = [("audit", "audit_cost"), ("v4", "v4_costs")];
    let first = args.first().map(String::as_str);
    if let Some((_, name)) = examples.iter().find(|(word, _)| first == Some(word)) {
        let example = ["run", "--release", "--locked", "-p", "lockstep-engine", "--example"];
        let mut run = cargo(&root);
        run.args(example).args([name, "--"]).args(&args[1..]);
        return must(&mut run, BUILD_LIMIT, name);
    }
    must(
        cargo(&root).args(["build", "--release", "--locked", "-p", "lockstep-cli"]),
        BUILD_LIMIT,
        "cargo build --release",
    )?;
    must(
        cargo(&root).args([
            "build",
            "--release",
            "--locked",
            "-p",
            "lockstep-device",
            "--examples",
        ]),
        BUILD_LIMIT,
        "cargo build --examples of the device room",
    )?;
    let target = Metadata::load(&root)?.target_dir;
    let status = Command::new("python3")
        .arg("bench/side_by_side.py")
        .args(["--lockstep".as_ref(), target.join("release/lockstep").as_os_str()])
        .args(["--llama-bin".as_ref(), peer::ensure()?.as_os_str()])
        .args(["--limits".as_ref(), target.join("release/examples/gemm_bench").as_os_str()])
        .args(args)
        .current_dir(&root)
        .status()
        .map_err(|e| Stop::failed(format!("python3 did not start: {e}")))?;
    if status.success() { Ok(()) } else { Err(Stop::failed(format!("the bench ended: {status}"))) }
}
