//! Macros that stand for code which is not there, or which was left in by mistake.

use super::Finding;
use super::rust_text::{code_only, lines_with_word};
use crate::tree::Tree;

const MARKERS: &[(&str, &str)] = &[
    ("todo", "the code itself, or a typed error that says what is not supported"),
    ("unimplemented", "the code itself, or a typed error that says what is not supported"),
    ("dbg", "a tracing event, or nothing"),
];

/// Fails on `todo!`, `unimplemented!` and `dbg!` in Rust code.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(p, _)| p.ends_with(".rs")) {
        let code = code_only(text);
        for (name, remedy) in MARKERS {
            let call = format!("{name}!");
            for line in lines_with_word(&code, name) {
                if code.lines().nth(line - 1).is_some_and(|l| l.contains(&call)) {
                    findings.push(Finding {
                        rule: "markers",
                        file: path.into(),
                        line,
                        found: call.clone(),
                        remedy: (*remedy).into(),
                    });
                }
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_in_code_fails_and_in_words_passes() {
        let source = "fn f() { todo!() }\n// todo!()\nlet todo = 1;\nlet s = \"dbg!\";\n";
        let findings = check(&Tree::of(&[("a.rs", source)]));
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].line, 1);
    }
}
