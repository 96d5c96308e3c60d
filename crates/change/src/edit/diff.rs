//! Two texts that differ in one place, as a unified diff.

use std::fmt::Write;

/// Lines shown around the difference.
const CONTEXT: usize = 3;

/// The difference as one hunk; empty where there is none. Bytes that are not UTF-8 are replaced.
pub fn unified(name: &str, old: &[u8], new: &[u8]) -> String {
    if old == new {
        return String::new();
    }
    let (old, new) = (String::from_utf8_lossy(old), String::from_utf8_lossy(new));
    let (a, b): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let head = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let rest = a.len().min(b.len()) - head;
    let tail = a.iter().rev().zip(b.iter().rev()).take(rest).take_while(|(x, y)| x == y).count();
    let from = head.saturating_sub(CONTEXT);
    let (a_end, b_end) = (a.len() - tail, b.len() - tail);
    let after = tail.min(CONTEXT);
    let mut text = format!("--- {name} (before)\n+++ {name} (after)\n");
    let (a_lines, b_lines) = (a_end + after - from, b_end + after - from);
    // Writing to a String cannot fail.
    let _ = writeln!(text, "@@ -{},{a_lines} +{},{b_lines} @@", from + 1, from + 1);
    let mut lines = |sign: char, part: &[&str]| {
        for line in part {
            let _ = writeln!(text, "{sign}{line}");
        }
    };
    lines(' ', &a[from..head]);
    lines('-', &a[head..a_end]);
    lines('+', &b[head..b_end]);
    lines(' ', &a[a_end..a_end + after]);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_changed_line_is_one_hunk() {
        let old = b"a\nb\nc\nd\n--x 4\ne\n";
        let diff = unified("serve.sh", old, b"a\nb\nc\nd\n--x 16\ne\n");
        assert_eq!(
            diff,
            "--- serve.sh (before)\n+++ serve.sh (after)\n@@ -2,5 +2,5 @@\n b\n c\n d\n--\u{2d}x 4\n\
             +--x 16\n e\n"
        );
        assert_eq!(unified("x", old, old), "");
        assert!(unified("x", b"", b"a\n").ends_with("+a\n"));
    }
}
