//! The laboratory stays shut: only the room `sim` may run plans that nobody has proven.

use super::Finding;
use crate::tree::Tree;

/// Features that open a laboratory, as a manifest would name them.
const FEATURE: &str = "\"lab\"";

/// What runs unproven plans and falsifies books.
const NAMES: &[&str] = &["LabDevice", "device::lab", "cpu::lab", "break_books"];

/// Who may: the room that drills, and the rooms that hold the laboratories.
const MAY: &[&str] =
    &["crates/sim/", "crates/device/src/", "crates/pool/src/lab.rs", "xtask/src/tidy/"];

/// Fails where another manifest turns the feature on, and where other code names it.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(p, _)| !MAY.iter().any(|m| p.starts_with(m))) {
        let words: &[&str] = match path {
            p if p.ends_with("Cargo.toml") => &[FEATURE],
            p if p.ends_with(".rs") => NAMES,
            _ => continue,
        };
        for (at, line) in text.lines().enumerate() {
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
        ]);
        let found: Vec<(String, usize)> =
            check(&tree).into_iter().map(|f| (f.file, f.line)).collect();
        assert_eq!(
            found,
            [("crates/engine/Cargo.toml".into(), 1), ("crates/serve/src/a.rs".into(), 2)]
        );
    }
}
