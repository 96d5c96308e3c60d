//! How many packages the build may pull in.

use super::Finding;
use crate::tree::Tree;

/// Cargo.lock stays under this many packages.
pub const PACKAGES_MAX: usize = 250;

/// Fails where Cargo.lock is missing or holds [`PACKAGES_MAX`] packages or more.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let found = match tree.text("Cargo.lock") {
        None => "no Cargo.lock".to_string(),
        Some(lock) => {
            let packages = lock.lines().filter(|l| l.trim() == "[[package]]").count();
            if packages < PACKAGES_MAX {
                return Vec::new();
            }
            format!("{packages} packages")
        }
    };
    let remedy = format!(
        "a committed lock file of fewer than {PACKAGES_MAX} packages: turn off default features, \
         or put what is heavy behind a feature (`cargo tree -e normal` shows who brings what)"
    );
    vec![Finding { rule: "lock", file: "Cargo.lock".into(), line: 1, found, remedy }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_exclusive_and_a_missing_lock_fails() {
        let lock = |n: usize| "[[package]]\nname = \"x\"\n".repeat(n);
        assert!(check(&Tree::of(&[("Cargo.lock", &lock(PACKAGES_MAX - 1))])).is_empty());
        assert_eq!(check(&Tree::of(&[("Cargo.lock", &lock(PACKAGES_MAX))])).len(), 1);
        assert_eq!(check(&Tree::of(&[])).len(), 1);
    }
}
