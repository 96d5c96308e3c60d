//! What is wrong in a TOML file, for a terminal.

use lockstep_flow::knobs::is_secret;
use toml_edit::TomlError;

/// Characters of the line that are shown before and behind the place.
const AROUND: usize = 30;

/// The place and what is wrong there, with as much of the line as fits beside it.
pub fn toml_fault(text: &str, e: &TomlError) -> String {
    let at = e.span().map_or(0, |s| s.start).min(text.len());
    let (before, behind) = text.split_at_checked(at).unwrap_or((text, ""));
    let from = before.rfind('\n').map_or(0, |i| i + 1);
    let head: Vec<char> = before[from..].chars().collect();
    let mut tail = behind.split('\n').next().unwrap_or_default().trim_end_matches('\r').chars();
    let start = head.len().saturating_sub(AROUND);
    let mut shown = String::from(if start > 0 { "..." } else { "" });
    // A tab would move the mark away from what it stands under.
    let plain = |c: char| if c == '\t' { ' ' } else { c };
    shown.extend(head[start..].iter().copied().map(plain));
    let column = shown.chars().count();
    shown.extend(tail.by_ref().take(AROUND).map(plain));
    if tail.next().is_some() {
        shown.push_str("...");
    }
    let line = before.matches('\n').count() + 1;
    let what = e.message().replace('\n', "; ");
    let name: String = head.iter().take_while(|c| **c != '=').collect();
    if name.len() < head.len() && is_secret(name.trim().trim_matches(['"', '\''])) {
        return format!("line {line}: {what} (the line holds a key, and is not shown)");
    }
    format!("line {line}, column {}: {what}\n  {shown}\n  {}^", head.len() + 1, " ".repeat(column))
}

#[cfg(test)]
mod tests {
    use super::*;
    use toml_edit::DocumentMut;

    fn fault(text: &str) -> String {
        toml_fault(text, &text.parse::<DocumentMut>().unwrap_err())
    }

    /// A key whose quote was not closed was once printed.
    #[test]
    fn a_line_that_holds_a_key_is_not_shown() {
        for text in ["[server]\napi-key = \"s3cret\n", "[server]\n \"admin-key\" = s3cret\n"] {
            let said = fault(text);
            assert!(!said.contains("s3cret") && said.contains("line 2: "), "{said}");
        }
    }

    /// The error once held the whole line, however long.
    #[test]
    fn a_long_line_of_toml_is_cut_around_its_fault() {
        let said = fault("[a]\n\tkey = = 1\n");
        assert!(said.starts_with("line 2, column 8: "), "{said}");
        assert!(said.ends_with("\n   key = = 1\n         ^"), "{said}");
        let said = fault(&format!("[a]\n{} = = {}\n", "k".repeat(9000), "\u{e9}".repeat(9000)));
        assert!(said.len() < 400 && said.contains("line 2, column 9004: "), "{said}");
        let lines: Vec<&str> = said.lines().collect();
        assert!(lines[1].starts_with("  ...kkk") && lines[1].ends_with("\u{e9}..."), "{said}");
        assert_eq!(lines[1].chars().nth(lines[2].chars().count() - 1), Some('='), "{said}");
    }
}
