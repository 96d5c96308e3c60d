//! The few forms of Markdown that a decision is written in, as HTML.

use std::fmt::Write;

/// Text with what HTML would obey taken out of it.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Headings, tables, lists and paragraphs. Writing to a String cannot fail.
pub fn html(markdown: &str) -> String {
    let mut page = String::new();
    let mut open = "";
    let mut lines = markdown.lines().peekable();
    while let Some(line) = lines.next() {
        let form = form(line);
        if form != open {
            page.push_str(match open {
                "table" => "</table>",
                "list" => "</ul>",
                _ => "",
            });
            page.push_str(match form {
                "table" => "<table>",
                "list" => "<ul>",
                _ => "",
            });
            open = form;
        }
        match form {
            "table" => {
                let is_head = lines.peek().is_some_and(|next| is_rule(next));
                row(&mut page, line, if is_head { "th" } else { "td" });
            }
            "list" => item(&mut page, line.trim_start_matches("- ")),
            "" => {}
            _ => {
                let text = line.trim_start_matches('#');
                let level = line.len() - text.len();
                let name = if level > 0 { format!("h{level}") } else { "p".to_owned() };
                let _ = write!(page, "<{name}>{}</{name}>", spans(text.trim()));
            }
        }
    }
    page.push_str(match open {
        "table" => "</table>",
        "list" => "</ul>",
        _ => "",
    });
    page
}

fn form(line: &str) -> &'static str {
    match line.as_bytes().first() {
        None => "",
        Some(b'|') => "table",
        Some(b'-') if line.starts_with("- ") => "list",
        Some(_) => "text",
    }
}

/// The rule below a table's head, and a head without words.
fn is_rule(line: &str) -> bool {
    line.starts_with('|') && line.chars().all(|c| matches!(c, '|' | '-' | ' '))
}

fn row(page: &mut String, line: &str, cell: &str) {
    if is_rule(line) {
        return;
    }
    let cells = line.trim_matches('|').split('|');
    let cells: String = cells.map(|c| format!("<{cell}>{}</{cell}>", spans(c.trim()))).collect();
    let _ = write!(page, "<tr>{cells}</tr>");
}

/// An item; what a criterion came to shows at a glance.
fn item(page: &mut String, text: &str) {
    let class = match text.split(' ').next() {
        Some("passed") => " class=\"kept\"",
        Some("FAILED") => " class=\"back\"",
        _ => "",
    };
    let _ = write!(page, "<li{class}>{}</li>", spans(text));
}

/// `code` and [links](to).
fn spans(text: &str) -> String {
    let mut out = String::new();
    for (at, part) in text.split('`').enumerate() {
        if at % 2 == 1 {
            let _ = write!(out, "<code>{}</code>", escaped(part));
        } else {
            links(&mut out, part);
        }
    }
    out
}

fn links(out: &mut String, text: &str) {
    let mut rest = text;
    while let Some(link) = next_link(rest) {
        let (before, words, to, after) = link;
        let _ =
            write!(out, "{}<a href=\"{}\">{}</a>", escaped(before), escaped(to), escaped(words));
        rest = after;
    }
    out.push_str(&escaped(rest));
}

/// What stands before a link, its words, where it leads, and what comes after it.
fn next_link(text: &str) -> Option<(&str, &str, &str, &str)> {
    let middle = text.find("](")?;
    let begin = text[..middle].rfind('[')?;
    let end = middle + text[middle..].find(')')?;
    let to = &text[middle + 2..end];
    // Only files beside the page: words of a server lead nowhere.
    let is_file =
        !to.is_empty() && to.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    is_file.then(|| (&text[..begin], &text[begin + 1..middle], to, &text[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_rendered_and_nothing_else_is_obeyed() {
        let text = "# A `b`\n\nwords <i>\n\n| | |\n|---|---|\n| x | y |\n\n| h |\n|---|\n| 1 |\n\n\
                    - passed a: [c](c.html)\n- FAILED b: [d](javascript:e)\n";
        assert_eq!(
            html(text),
            "<h1>A <code>b</code></h1><p>words &lt;i&gt;</p><table><tr><td>x</td><td>y</td></tr>\
             </table><table><tr><th>h</th></tr><tr><td>1</td></tr></table><ul><li class=\"kept\">passed a: <a href=\"c.html\">c</a></li>\
             <li class=\"back\">FAILED b: [d](javascript:e)</li></ul>"
        );
    }
}
