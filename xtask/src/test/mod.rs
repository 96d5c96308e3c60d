//! `cargo xtask test`: every test of the project in one command.
//!
//! Stages run in order; a stage whose need failed is not run, and the table at the end says so.
//! Whatever a stage needs - the default model, a Python environment, the peer - it fetches.

mod counts;
mod stage;
mod steps;

use crate::args::{Outcome, Stop};
use crate::tree::root;
use stage::{Report, Stage};
use steps::Steps;

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    rust: bool,
    kernels: bool,
    e2e: bool,
    peer: bool,
}

fn wanted(args: &[String]) -> Result<Wanted, Stop> {
    let mut wanted = Wanted { rust: true, kernels: true, e2e: true, peer: true };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--no-peer" => wanted.peer = false,
            "--only" => {
                let list = args.next().map(String::as_str).unwrap_or_default();
                let has = |name: &str| list.split(',').any(|w| w == name);
                let known = ["rust", "kernels", "e2e", "peer"];
                if let Some(bad) = list.split(',').find(|w| !known.contains(w)) {
                    return Err(Stop::Usage(format!(
                        "--only takes {} (with commas between); '{bad}' is none",
                        known.join(", ")
                    )));
                }
                wanted = Wanted {
                    rust: has("rust"),
                    kernels: has("kernels"),
                    e2e: has("e2e"),
                    peer: has("peer"),
                };
            }
            other => return Err(Stop::Usage(format!("'{other}' is not --no-peer or --only"))),
        }
    }
    Ok(wanted)
}

/// The command.
pub fn main(args: &[String]) -> Outcome {
    let wanted = wanted(args)?;
    let steps = Steps::new(root())?;
    let mut report = Report::default();
    let suites = wanted.e2e || wanted.peer;

    let anywhere = cfg!(all(target_os = "linux", target_arch = "x86_64"));
    let why = if anywhere { "--only" } else { "CUDA's compiler is fetched for x86-64 Linux" };
    let kernels = Stage::new("kernels").when(wanted.kernels && anywhere, why);
    let any = wanted.rust || suites;
    report.run(Stage::new("build").when(any, "--only"), || steps.build());
    report.run(Stage::new("model").needs(&["build"]).when(any, "--only"), || steps.model());
    report.run(Stage::new("lab").needs(&["model"]).when(wanted.rust, "--only"), || steps.lab());
    report.run(Stage::new("rust").needs(&["model"]).when(wanted.rust, "--only"), || steps.rust());
    report.run(Stage::new("doctests").needs(&["build"]).when(wanted.rust, "--only"), || {
        steps.doctests()
    });
    report.run(kernels, || steps.kernels());
    report.run(Stage::new("python").when(suites, "--only"), || steps.python());
    let e2e = Stage::new("e2e").needs(&["model", "python"]).when(wanted.e2e, "--only");
    report.run(e2e, || steps.suite("tests/e2e"));
    let why = if args.iter().any(|a| a == "--no-peer") { "--no-peer" } else { "--only" };
    report.run(Stage::new("peer build").when(wanted.peer, why), || steps.peer());
    let peer = Stage::new("peer").needs(&["model", "python", "peer build"]);
    report.run(peer.when(wanted.peer, why), || steps.suite("tests/peer"));

    println!("\n{}", report.table());
    println!("{}", report.closing_line());
    if report.passed() { Ok(()) } else { Err(Stop::failed(report.failures())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Wanted, Stop> {
        wanted(&args.iter().map(|a| a.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn flags_choose_stages_and_a_wrong_one_is_refused() {
        let all = |peer| Wanted { rust: true, kernels: true, e2e: true, peer };
        assert_eq!(parse(&[]), Ok(all(true)));
        assert_eq!(parse(&["--no-peer"]), Ok(all(false)));
        let some = Wanted { rust: false, kernels: false, e2e: true, peer: true };
        assert_eq!(parse(&["--only", "e2e,peer"]), Ok(some));
        assert!(parse(&["--only", "kernels"]).is_ok_and(|w| w.kernels && !w.rust));
        assert!(parse(&["--only", "rus"]).is_err());
        assert!(parse(&["--only"]).is_err());
        assert!(parse(&["--quick"]).is_err());
    }
}
