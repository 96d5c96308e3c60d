//! How long a source file may be, and how much binary data the tree may hold.

use super::Finding;
use crate::tree::Tree;

/// Lines of a source file, tests included, at most.
pub const MAX: usize = 700;
/// Lines that a source file should stay under.
pub const AIM: usize = 400;
/// Bytes of all binary files together, at most.
pub const BINARY_BYTES_MAX: u64 = 80_000_000;

const SOURCES: &[&str] = &[".rs", ".py", ".sh", ".c", ".cu"];

fn sources(tree: &Tree) -> impl Iterator<Item = (&str, usize)> {
    tree.texts()
        .filter(|(path, _)| SOURCES.iter().any(|end| path.ends_with(end)))
        .map(|(path, text)| (path, text.lines().count()))
}

/// Fails on a source file over [`MAX`] lines.
pub fn check(tree: &Tree) -> Vec<Finding> {
    sources(tree)
        .filter(|(_, lines)| *lines > MAX)
        .map(|(path, lines)| Finding {
            rule: "length",
            file: path.into(),
            line: MAX + 1,
            found: format!("{lines} lines"),
            remedy: format!("at most {MAX}, better under {AIM}: give the second noun its own file"),
        })
        .collect()
}

/// Files between [`AIM`] and [`MAX`], longest first.
pub fn long(tree: &Tree) -> Vec<(&str, usize)> {
    let mut files: Vec<_> = sources(tree).filter(|(_, n)| (AIM + 1..=MAX).contains(n)).collect();
    files.sort_by_key(|(_, lines)| core::cmp::Reverse(*lines));
    files
}

/// Fails where binary files together exceed [`BINARY_BYTES_MAX`].
pub fn check_binary(tree: &Tree) -> Vec<Finding> {
    let binary = || tree.files.iter().filter(|f| f.text.is_none());
    let total: u64 = binary().map(|f| f.bytes).sum();
    let largest = binary().max_by_key(|f| f.bytes);
    match largest {
        Some(file) if total > BINARY_BYTES_MAX => vec![Finding {
            rule: "binary",
            file: file.path.clone(),
            line: 1,
            found: format!("{total} bytes of binary data in the tree, {} of them here", file.bytes),
            remedy: format!(
                "at most {BINARY_BYTES_MAX}: keep the script that makes the data, or fetch it with \
                 a digest"
            ),
        }],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_exact() {
        let at = "//\n".repeat(MAX);
        let over = "//\n".repeat(MAX + 1);
        let tree = Tree::of(&[("a.rs", &at), ("b.py", &over), ("c.json", &over)]);
        let findings = check(&tree);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].file, "b.py");
        assert_eq!(long(&tree), [("a.rs", MAX)]);
    }

    #[test]
    fn binary_data_is_summed() {
        let mut tree = Tree::of(&[("a.bin", "\0"), ("b.bin", "\0"), ("t.txt", "text")]);
        tree.files[0].bytes = BINARY_BYTES_MAX - 1;
        tree.files[2].bytes = BINARY_BYTES_MAX;
        assert!(check_binary(&tree).is_empty());
        tree.files[1].bytes = 2;
        assert_eq!(check_binary(&tree)[0].file, "a.bin");
    }
}
