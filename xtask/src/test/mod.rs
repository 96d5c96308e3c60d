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
    e2e: bool,
    peer: bool,
}

fn wanted(args: &[String]) -> Result<Wanted, Stop> {
    let mut wanted = Wanted { rust: true, e2e: true, peer: true };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--no-peer" => wanted.peer = false,
            "--only" => {
                let list = args.next().map(String::as_str).unwrap_or_default();
                let has = |name: &str| list.split(',').any(|w| w == name);
                if let Some(bad) = list.split(',').find(|w| !["rust", "e2e", "peer"].contains(w)) {
                    return Err(Stop::Usage(format!(
                        "--only takes rust, e2e, peer (with commas between); '{bad}' is none"
                    )));
                }
                wanted = Wanted { rust: has("rust"), e2e: has("e2e"), peer: has("peer") };
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

    report.run(Stage::new("build"), || steps.build());
    report.run(Stage::new("model").needs(&["build"]), || steps.model());
    report.run(Stage::new("lab").needs(&["model"]).when(wanted.rust, "--only"), || steps.lab());
    report.run(Stage::new("rust").needs(&["model"]).when(wanted.rust, "--only"), || steps.rust());
    report.run(Stage::new("doctests").needs(&["build"]).when(wanted.rust, "--only"), || {
        steps.doctests()
    });
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
        assert_eq!(parse(&[]), Ok(Wanted { rust: true, e2e: true, peer: true }));
        assert_eq!(parse(&["--no-peer"]), Ok(Wanted { rust: true, e2e: true, peer: false }));
        assert_eq!(
            parse(&["--only", "e2e,peer"]),
            Ok(Wanted { rust: false, e2e: true, peer: true })
        );
        assert!(parse(&["--only", "rus"]).is_err());
        assert!(parse(&["--only"]).is_err());
        assert!(parse(&["--quick"]).is_err());
    }
}
