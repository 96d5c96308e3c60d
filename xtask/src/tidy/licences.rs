//! Which licences a dependency may have.

use super::Finding;
use crate::metadata::Metadata;

/// Permissive licences, as SPDX names them.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unicode-DFS-2016",
    "Unlicense",
    "Zlib",
];

/// Fails on a package that cannot be used under allowed licences alone.
pub fn check(metadata: &Metadata) -> Vec<Finding> {
    metadata
        .packages
        .iter()
        .filter(|p| !p.licence.as_deref().is_some_and(permits))
        .map(|p| Finding {
            rule: "licence",
            file: "Cargo.lock".into(),
            line: 1,
            found: match &p.licence {
                Some(licence) => format!("package {} has the licence '{licence}'", p.name),
                None => format!("package {} states no licence", p.name),
            },
            remedy: format!("another library, under one of {}", ALLOWED.join(", ")),
        })
        .collect()
}

/// True where the SPDX expression can be met with allowed licences: one side of an OR, both
/// sides of an AND. `/` is the old spelling of OR. An expression that does not parse is refused.
fn permits(expression: &str) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let verdict = any_of(&words, &mut at);
    at == words.len() && verdict == Some(true)
}

fn any_of(words: &[&str], at: &mut usize) -> Option<bool> {
    let mut verdict = all_of(words, at)?;
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        verdict |= all_of(words, at)?;
    }
    Some(verdict)
}

fn all_of(words: &[&str], at: &mut usize) -> Option<bool> {
    let mut verdict = one_of(words, at)?;
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        verdict &= one_of(words, at)?;
    }
    Some(verdict)
}

fn one_of(words: &[&str], at: &mut usize) -> Option<bool> {
    let word = *words.get(*at)?;
    *at += 1;
    if word == "(" {
        let inner = any_of(words, at)?;
        (words.get(*at) == Some(&")")).then_some(())?;
        *at += 1;
        return Some(inner);
    }
    if words.get(*at) == Some(&"WITH") {
        let whole = format!("{word} WITH {}", words.get(*at + 1)?);
        *at += 2;
        return Some(ALLOWED.contains(&whole.as_str()));
    }
    Some(ALLOWED.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_read_as_spdx_means_them() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "MIT OR GPL-3.0",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
        ] {
            assert!(permits(good), "{good}");
        }
        for bad in [
            "GPL-3.0-or-later",
            "MPL-2.0",
            "MIT AND LGPL-3.0-only",
            "(MIT OR Apache-2.0) AND MPL-2.0",
            "GPL-2.0 WITH Classpath-exception-2.0",
            "",
            "MIT OR",
            "(MIT",
            "MIT Apache-2.0",
        ] {
            assert!(!permits(bad), "{bad}");
        }
    }

    #[test]
    fn a_package_without_a_licence_fails() {
        let json = r#"{"workspace_members":[],"target_directory":"t","packages":[
            {"id":"a","name":"a"},{"id":"b","name":"b","license":"MIT"}]}"#;
        let findings = check(&Metadata::parse(json).unwrap());
        assert_eq!(findings.len(), 1);
        assert!(findings[0].found.contains("package a states no licence"));
    }
}
