//! `cargo xtask`: tidy, the test command, the side-by-side bench, generated docs.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod cuda;
mod docs;
mod metadata;
mod peer;
mod proc;
mod python;
mod test;
mod tidy;
mod tree;

use std::process::ExitCode;

const HELP: &str = "\
usage: cargo xtask COMMAND

  tidy [--no-tools]       the house rules; --no-tools leaves out rustfmt and clippy
  test [--no-peer] [--only STAGE[,STAGE]]
                          every test: fetches what it needs, ends with a table
                          stages: rust, kernels, e2e, peer
  bench [ARGS...]         side by side with llama.cpp (bench/side_by_side.py --help)
  cuda [--check]          compiles the CUDA kernels (fetches the compiler, about 110 MB, once);
                          --check leaves nothing behind
  docs                    writes the generated pages (docs/knobs.md, docs/metrics.md, the alarms of docs/operating.md)
  peer                    builds llama.cpp from its source package and prints its folder

exit codes: 0 done, 1 a rule or a test failed, 2 the command line was not understood
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rest = args.get(1..).unwrap_or_default();
    let outcome = match args.first().map(String::as_str) {
        Some("tidy") => tidy::main(rest),
        Some("test") => test::main(rest),
        Some("bench") => bench::main(rest),
        Some("cuda") => cuda::main(rest),
        Some("docs") => docs::main(rest),
        Some("peer") => peer::main(rest),
        Some("--help" | "-h" | "help") => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        other => Err(args::Stop::Usage(match other {
            Some(word) => format!("'{word}' is no command"),
            None => "no command given".into(),
        })),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(args::Stop::Failed(why)) => {
            eprintln!("xtask: {why}");
            ExitCode::from(1)
        }
        Err(args::Stop::Usage(why)) => {
            eprintln!("xtask: {why}\n\n{HELP}");
            ExitCode::from(2)
        }
    }
}
