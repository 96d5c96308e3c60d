//! The laboratory stays shut: only the room `sim` may run plans that nobody has proven.

use super::Finding;
use crate::tree::Tree;

/// Features that open a laboratory, as a manifest would name them.
const FEATURE: &str = "\"lab\"";

/// The one place of the binary's manifest that may name it: a test that is built with it alone.
const TEST_OF_THE_BINARY: (&str, [&str; 2]) =
    ("crates/cli/Cargo.toml", ["name = \"lab\"", "required-features = [\"lab\"]"]);

/// What builds or ships the product must not turn it on.
const SHIPS: &[&str] = &[".ci/", "deploy/", "bench/", "tests/"];

/// What runs unproven plans and falsifies books.
const NAMES: &[&str] = &["LabDevice", "device::lab", "cpu::lab", "break_books"];

/// Who may: the room that drills, and the rooms that hold the laboratories.
const MAY: &[&str] =
    &["crates/sim/", "crates/device/src/", "crates/pool/src/lab.rs", "xtask/src/tidy/", SUITE];

/// The suite of a GPU machine has a laboratory of its own, and is no part of the product.
const SUITE: &str = "bench/gpu_suite.sh";

/// Fails where another manifest turns the feature on, and where other code names it.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(p, _)| !MAY.iter().any(|m| p.starts_with(m))) {
        let words: &[&str] = match path {
            p if p.ends_with("Cargo.toml") => &[FEATURE],
            p if p.ends_with(".rs") => NAMES,
            p if SHIPS.iter().any(|s| p.starts_with(s)) => &["features lab", "features=lab"],
            _ => continue,
        };
        let (manifest, test) = TEST_OF_THE_BINARY;
        let is_test = |line: &str| path == manifest && test.contains(&line);
        let lines = text.lines().enumerate().filter(|(_, line)| !is_test(line));
        for (at, line) in lines {
            if let Some(word) = words.iter().find(|w| line.contains(**w)) {
                findings.push(Finding {
                    rule: "lab",
                    file: path.into(),
                    line: at + 1,
                    found: format!("{word} outside the room sim"),
                    remedy: "what runs has been proven; drills go through lockstep-sim".into(),
                });
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_room_sim_opens_the_laboratory() {
        let feature = "lockstep-device = { workspace = true, features = [\"lab\"] }\n";
        let tree = Tree::of(&[
            ("crates/sim/Cargo.toml", feature),
            ("crates/engine/Cargo.toml", feature),
            ("Cargo.toml", "[workspace]\n"),
            ("crates/serve/src/a.rs", "\nuse lockstep_device::lab::Raw;\n"),
            ("crates/sim/src/a.rs", "use lockstep_device::lab::LabDevice;\n"),
            ("docs/a.md", "LabDevice\n"),
            (
                TEST_OF_THE_BINARY.0,
                "[features]\ndefault = [\"lab\"]\nlab = []\n[[test]]\nname = \"lab\"\nrequired-features = [\"lab\"]\n",
            ),
            ("deploy/Dockerfile", "RUN cargo build --release --features lab\n"),
        ]);
        let found: Vec<(String, usize)> =
            check(&tree).into_iter().map(|f| (f.file, f.line)).collect();
        assert_eq!(
            found,
            [
                ("crates/engine/Cargo.toml".into(), 1),
                ("crates/serve/src/a.rs".into(), 2),
                ("crates/cli/Cargo.toml".into(), 2),
                ("deploy/Dockerfile".into(), 1),
            ]
        );
    }
}
