//! `cargo xtask bench`: builds both sides and hands over to `bench/side_by_side.py`;
//! `cargo xtask bench audit` prices the audit.

use crate::args::{Outcome, Stop};
use crate::metadata::Metadata;
use crate::peer;
use crate::proc::{cargo, must};
use crate::tree::root;
use std::process::Command;
use std::time::Duration;

const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// The command; `args` go to the script, or after `audit` to the example that prices the audit.
pub fn main(args: &[String]) -> Outcome {
    let root = root();
    if let Some(("audit", args)) = args.split_first().map(|(first, args)| (first.as_str(), args)) {
        let example = ["run", "--release", "--locked", "-p", "lockstep-engine", "--example"];
        let mut run = cargo(&root);
        run.args(example).args(["audit_cost", "--"]).args(args);
        return must(&mut run, BUILD_LIMIT, "the price of the audit");
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
