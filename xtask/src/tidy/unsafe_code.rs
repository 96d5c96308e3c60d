//! Where `unsafe` may stand, and the attribute that keeps it out elsewhere.

use super::Finding;
use super::rust_text::{code_only, lines_with_word};
use crate::tree::Tree;

/// Folders and files that may hold `unsafe`, with the reason.
const ALLOWED: &[(&str, &str)] = &[
    ("crates/device/", "SIMD kernels, the arena and the thread pool"),
    ("crates/cuda/", "the driver's interface"),
    ("crates/transfer/", "shared memory and run-time loading"),
    ("crates/weights/src/mmap.rs", "the one memory map"),
];

/// Crates whose root may lack `#![forbid(unsafe_code)]`; the second column stands there instead.
const ROOTS: &[(&str, &str)] = &[
    ("crates/device/", ""),
    ("crates/cuda/", ""),
    ("crates/transfer/", ""),
    ("crates/weights/", "#![deny(unsafe_code)]"),
];

const FORBID: &str = "#![forbid(unsafe_code)]";

fn allowed_places() -> String {
    ALLOWED.iter().map(|(p, why)| format!("{p} ({why})")).collect::<Vec<_>>().join(", ")
}

/// Fails on the keyword outside the allowed places and on a crate root without the attribute.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(p, _)| p.ends_with(".rs")) {
        let code = code_only(text);
        if !ALLOWED.iter().any(|(place, _)| path.starts_with(place)) {
            for line in lines_with_word(&code, "unsafe") {
                findings.push(Finding {
                    rule: "unsafe",
                    file: path.into(),
                    line,
                    found: "unsafe code".into(),
                    remedy: format!("a safe interface of {}", allowed_places()),
                });
            }
        }
        if is_crate_root(path) {
            let wanted =
                ROOTS.iter().find(|(p, _)| path.starts_with(p)).map_or(FORBID, |(_, attr)| attr);
            if !wanted.is_empty() && !code.lines().any(|l| l.trim() == wanted) {
                findings.push(Finding {
                    rule: "unsafe",
                    file: path.into(),
                    line: 1,
                    found: format!("a crate root without {wanted}"),
                    remedy: format!("{wanted} below the crate's first comment"),
                });
            }
        }
    }
    findings
}

fn is_crate_root(path: &str) -> bool {
    path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keyword_fails_outside_its_places_and_passes_inside() {
        let source = "#![forbid(unsafe_code)]\nfn f() {\n    unsafe { g() }\n}\n";
        let findings = check(&Tree::of(&[("crates/engine/src/lib.rs", source)]));
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].line, 3);
        assert!(check(&Tree::of(&[("crates/device/src/lib.rs", source)])).is_empty());
        assert!(check(&Tree::of(&[("crates/weights/src/mmap.rs", source)])).is_empty());
        assert_eq!(check(&Tree::of(&[("crates/weights/src/gguf.rs", source)])).len(), 1);
        assert_eq!(check(&Tree::of(&[("crates/engine/tests/a.rs", source)])).len(), 1);
    }

    #[test]
    fn a_root_without_the_attribute_fails() {
        assert_eq!(check(&Tree::of(&[("crates/pool/src/lib.rs", "//! Pool.\n")])).len(), 1);
        assert_eq!(check(&Tree::of(&[("crates/cli/src/main.rs", "fn main() {}\n")])).len(), 1);
        let commented = "// #![forbid(unsafe_code)]\n";
        assert_eq!(check(&Tree::of(&[("crates/pool/src/lib.rs", commented)])).len(), 1);
        let weights = |attr: &str| check(&Tree::of(&[("crates/weights/src/lib.rs", attr)])).len();
        assert_eq!((weights("#![deny(unsafe_code)]\n"), weights("\n")), (0, 1));
    }
}
