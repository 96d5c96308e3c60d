//! `cargo xtask tidy`: the house rules, each a function from the tree to what it found.
//!
//! A rule prints `file:line`, what was found and what would work. Every rule has a test that
//! breaks it: a rule that cannot fail is no rule.

mod docs;
mod lab;
mod length;
mod licences;
mod lock;
mod markers;
mod rooms;
mod rust_text;
mod tools;
mod unsafe_code;
mod words;

use crate::args::{Outcome, Stop, only_flags};
use crate::metadata::Metadata;
use crate::tree::{Tree, root};
use core::fmt;

/// One thing that a rule found.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule's name.
    pub rule: &'static str,
    /// Path from the root.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// What was found.
    pub found: String,
    /// What would work.
    pub remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { rule, file, line, found, remedy } = self;
        write!(f, "{file}:{line}: [{rule}] {found}\n    what would work: {remedy}")
    }
}

/// What the rules look at.
pub struct Subject {
    /// The files.
    pub tree: Tree,
    /// `cargo metadata`.
    pub metadata: Metadata,
}

/// A rule: its name and what it finds.
type Rule = (&'static str, fn(&Subject) -> Vec<Finding>);

/// Every rule that reads; rustfmt and clippy come after.
const RULES: &[Rule] = &[
    ("rooms", |s| rooms::check(&s.metadata, &s.tree)),
    ("lab", |s| lab::check(&s.tree)),
    ("unsafe", |s| unsafe_code::check(&s.tree)),
    ("length", |s| length::check(&s.tree)),
    ("lock", |s| lock::check(&s.tree)),
    ("licence", |s| licences::check(&s.metadata)),
    ("binary", |s| length::check_binary(&s.tree)),
    ("docs", |s| docs::check(&s.tree)),
    ("words", |s| words::check(&s.tree)),
    ("markers", |s| markers::check(&s.tree)),
    ("generated", |s| crate::docs::check(&s.tree)),
];

/// Runs the rules that read.
pub fn check(subject: &Subject) -> Vec<Finding> {
    RULES.iter().flat_map(|(_, rule)| rule(subject)).collect()
}

/// The command.
pub fn main(args: &[String]) -> Outcome {
    only_flags(args, &["--no-tools"])?;
    let root = root();
    let subject = Subject { tree: Tree::load(&root)?, metadata: Metadata::load(&root)? };
    let findings = check(&subject);
    for finding in &findings {
        eprintln!("{finding}");
    }
    for (path, lines) in length::long(&subject.tree) {
        println!("note: {path} has {lines} lines; over {} look for a second noun", length::AIM);
    }
    let mut failed: Vec<&str> = RULES
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| findings.iter().any(|f| f.rule == *name))
        .collect();
    let mut ran = RULES.len();
    if !args.iter().any(|a| a == "--no-tools") {
        for (name, ok) in tools::run(&root)? {
            ran += 1;
            if !ok {
                failed.push(name);
            }
        }
    }
    if failed.is_empty() {
        println!(
            "tidy: {ran} rules hold over {} files and {} packages",
            subject.tree.files.len(),
            subject.metadata.packages.len()
        );
        Ok(())
    } else {
        Err(Stop::failed(format!(
            "tidy: {} of {ran} rules are broken: {}",
            failed.len(),
            failed.join(", ")
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree in which every reading rule is broken once, so that a rule that was unhooked from
    /// [`RULES`], or that has stopped to find anything, fails here.
    #[test]
    fn every_rule_can_fail() {
        let many = "[[package]]\n".repeat(lock::PACKAGES_MAX);
        let long = "fn f() {}\n".repeat(length::MAX + 1);
        let mut tree = Tree::of(&[
            ("Cargo.lock", &many),
            ("README.md", "# Title\n\nNo full stop"),
            ("docs/words.md", "# W\n\nIt lies in a folder.\n\n/home/someone/model\n"),
            ("docs/knobs.md", "out of date"),
            ("crates/flow/Cargo.toml", "[dependencies]\nlockstep-pool.workspace = true\n"),
            ("crates/flow/src/lib.rs", "unsafe fn f() {}\n"),
            ("crates/flow/src/open.rs", "use lockstep_device::lab::LabDevice;\n"),
            ("crates/flow/src/long.rs", &long),
            ("crates/flow/src/later.rs", "fn g() { todo!() }\n"),
        ]);
        let zeros = vec![0u8; 16];
        let mut big = crate::tree::File::new("data.bin", zeros);
        big.bytes = length::BINARY_BYTES_MAX + 1;
        tree.files.push(big);
        let metadata = Metadata::parse(
            r#"{"workspace_members":["f"],"target_directory":"t","packages":[
            {"id":"f","name":"lockstep-flow","manifest_path":"r/crates/flow/Cargo.toml",
             "license":"GPL-3.0","dependencies":[{"name":"lockstep-pool","kind":null}]}]}"#,
        )
        .unwrap();
        let findings = check(&Subject { tree, metadata });
        for (name, _) in RULES {
            assert!(findings.iter().any(|f| f.rule == *name), "rule {name} found nothing");
        }
    }

    #[test]
    fn a_finding_says_where_what_and_what_would_work() {
        let finding = Finding {
            rule: "length",
            file: "a.rs".into(),
            line: 7,
            found: "701 lines".into(),
            remedy: "split it".into(),
        };
        assert_eq!(
            finding.to_string(),
            "a.rs:7: [length] 701 lines\n    what would work: split it"
        );
    }
}
