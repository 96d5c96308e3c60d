//! How a page opens.

use super::Finding;
use crate::tree::Tree;

/// Fails on a Markdown page that does not open with a title and a paragraph of one sentence.
pub fn check(tree: &Tree) -> Vec<Finding> {
    tree.texts()
        .filter(|(path, _)| path.ends_with(".md"))
        .filter_map(|(path, text)| {
            let (line, found) = opening_fault(text)?;
            Some(Finding {
                rule: "docs",
                file: path.into(),
                line,
                found,
                remedy: "a `# Title`, an empty line, then one true sentence that says what the \
                         page is good for"
                    .into(),
            })
        })
        .collect()
}

/// Where and how the opening breaks the rule.
fn opening_fault(text: &str) -> Option<(usize, String)> {
    let mut lines = text.lines().enumerate().skip_while(|(_, l)| l.trim().is_empty());
    match lines.next() {
        Some((_, title)) if title.starts_with("# ") && title.len() > 2 => {}
        Some((at, other)) => return Some((at + 1, format!("the page opens with '{other}'"))),
        None => return Some((1, "an empty page".into())),
    }
    let mut body = lines.skip_while(|(_, l)| l.trim().is_empty()).peekable();
    let Some(&(at, _)) = body.peek() else {
        return Some((1, "a title and nothing after it".into()));
    };
    let paragraph: Vec<&str> = body.map(|(_, l)| l.trim()).take_while(|l| !l.is_empty()).collect();
    let paragraph = paragraph.join(" ");
    let sentence = paragraph.trim_end_matches(['*', '_', '`']);
    let structural = ["#", "- ", "* ", "|", "```", "<", "1."];
    if structural.iter().any(|s| paragraph.starts_with(s)) || !sentence.ends_with('.') {
        return Some((at + 1, format!("no sentence follows the title, but '{paragraph}'")));
    }
    let ends = sentence.match_indices(". ").filter(|(i, _)| {
        sentence[i + 2..].chars().next().is_some_and(|c| c.is_uppercase() || c == '`')
    });
    let sentences = ends.count() + 1;
    (sentences > 1).then(|| (at + 1, format!("{sentences} sentences in the first paragraph")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sentence_after_the_title_passes() {
        for good in [
            "# A\n\nIt runs llama.cpp beside ours.\n\nMore. And more.\n",
            "# A\nIt is so.\n",
            "\n# A\n\n**It spans\ntwo lines.**\n",
        ] {
            assert_eq!(opening_fault(good), None, "{good}");
        }
    }

    #[test]
    fn every_other_opening_fails_at_its_line() {
        for (bad, line) in [
            ("", 1),
            ("Text first.\n", 1),
            ("# A\n", 1),
            ("# A\n\n## B\n", 3),
            ("# A\n\n- an item.\n", 3),
            ("# A\n\nNo full stop\n", 3),
            ("# A\n\nOne. Two.\n", 3),
        ] {
            assert_eq!(opening_fault(bad).map(|f| f.0), Some(line), "{bad}");
        }
    }
}
