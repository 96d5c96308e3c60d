//! Words that no file of the project may hold.

use super::Finding;
use crate::tree::Tree;

/// Where a denied word is looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// Every text file.
    All,
    /// Markdown pages.
    Docs,
}

/// Top-level folders whose paths belong to one machine. Pages and code name files from the
/// project's root, from `~` or from a variable.
const MACHINE_FOLDERS: &[&str] =
    &["home", "root", "tmp", "work", "mnt", "media", "srv", "scratch", "Users"];

/// Other denied words: scope, word, what to write instead.
const WORDS: &[(Scope, &str, &str)] = &[
    (Scope::All, "pythonhosted", "the package's name; the machine's own pip knows its index"),
    (Scope::All, "static.crates.io", "the package's name"),
    (Scope::Docs, "TODO", "an entry under 'missing' that says what and why"),
    (Scope::Docs, "FIXME", "an entry under 'missing' that says what and why"),
    (Scope::Docs, "blazing", "a figure with its command"),
];

/// Files that hold the list itself, or that a tool writes.
const EXEMPT: &[&str] = &["xtask/src/tidy/", "Cargo.lock", "LICENSE"];

/// Fails on a machine's own path and on a denied word.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(p, _)| !EXEMPT.iter().any(|e| p.starts_with(e))) {
        for (at, line) in text.lines().enumerate() {
            let mut add = |found: String, remedy: &str| {
                findings.push(Finding {
                    rule: "words",
                    file: path.into(),
                    line: at + 1,
                    found,
                    remedy: remedy.into(),
                });
            };
            if let Some(folder) = machine_path(line) {
                add(
                    format!("a path of one machine, below /{folder}"),
                    "a path from the project's root, from ~ or from a variable",
                );
            }
            for (scope, word, remedy) in WORDS {
                if (*scope == Scope::All || path.ends_with(".md")) && line.contains(word) {
                    add(format!("the word '{word}'"), remedy);
                }
            }
        }
    }
    findings
}

/// The first machine folder that an absolute path on this line starts with.
fn machine_path(line: &str) -> Option<&'static str> {
    MACHINE_FOLDERS.iter().copied().find(|folder| {
        line.match_indices(folder).any(|(at, _)| {
            let (before, after) = (&line[..at], &line[at + folder.len()..]);
            let Some(head) = before.strip_suffix('/') else { return false };
            let starts = head.chars().next_back().is_none_or(|c| {
                !(c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '~' | '}' | ')'))
            });
            let ends = after
                .chars()
                .next()
                .is_none_or(|c| !(c.is_alphanumeric() || matches!(c, '_' | '-')));
            starts && ends
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_paths_are_told_from_routes_and_relative_paths() {
        for bad in ["see /work/x", "cd /tmp", "MODEL=/home/a/b", "`/root/.cache`", "\"/Users/x\""] {
            assert!(machine_path(bad).is_some(), "{bad}");
        }
        for good in [
            "GET /v1/models",
            "~/work/x",
            "a/tmp/b",
            "/workspace/x",
            "crates/root/x",
            "//tmp",
            "./tmp",
        ] {
            assert_eq!(machine_path(good), None, "{good}");
        }
    }

    #[test]
    fn a_denied_word_fails_in_its_scope_only() {
        let tree = Tree::of(&[
            ("docs/a.md", "# A\n\nTODO later.\n"),
            ("crates/a/src/a.rs", "// TODO later\n"),
            ("xtask/src/tidy/words.rs", "pythonhosted"),
            ("tests/a.py", "url = 'files.pythonhosted.org'"),
        ]);
        let found: Vec<(String, usize)> =
            check(&tree).into_iter().map(|f| (f.file, f.line)).collect();
        assert_eq!(found, [("docs/a.md".into(), 3), ("tests/a.py".into(), 1)]);
    }
}
