//! Pages that are made from the code: the knob table.

use crate::args::{Outcome, Stop, only_flags};
use crate::tidy::Finding;
use crate::tree::{Tree, root};
use lockstep_flow::knobs::{KNOBS, Knob, Shapes};
use std::fmt::Write;

const KNOBS_PAGE: &str = "docs/knobs.md";

/// Writes every generated page.
pub fn main(args: &[String]) -> Outcome {
    only_flags(args, &[])?;
    let path = root().join(KNOBS_PAGE);
    std::fs::write(&path, knobs_page(KNOBS))
        .map_err(|e| Stop::failed(format!("{} was not written: {e}", path.display())))?;
    println!("{KNOBS_PAGE}: {} knobs", KNOBS.len());
    Ok(())
}

/// Fails where a generated page is missing or differs from what the code says.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let wanted = knobs_page(KNOBS);
    let found = tree.text(KNOBS_PAGE).unwrap_or_default();
    if found == wanted {
        return Vec::new();
    }
    let same = found.lines().zip(wanted.lines()).take_while(|(a, b)| a == b).count();
    vec![Finding {
        rule: "generated",
        file: KNOBS_PAGE.into(),
        line: same + 1,
        found: "a page that differs from the knob registry".into(),
        remedy: "cargo xtask docs".into(),
    }]
}

/// The table of knobs, from the registry.
fn knobs_page(knobs: &[Knob]) -> String {
    let mut page = String::from(
        "# Knobs\n\n\
         Every setting of `lockstep serve` stands in this table, which `cargo xtask docs` writes \
         from the registry in `crates/flow/src/knobs.rs`.\n\n\
         A knob is set by its flag, by its variable, or by its name in `lockstep.toml`, and \
         `/server_info` shows the value that is in force. The last column says what a change of it \
         asks for: \
         *nothing* takes effect at once, *plan* needs a new generation that can be flipped live, \
         *state layout* and *numerics* drain the running sequences first, *process* needs a \
         restart.\n\n\
         | name | flag | takes | default | what it does | a change asks for |\n\
         |---|---|---|---|---|---|\n",
    );
    for knob in knobs {
        let default = if knob.default.is_empty() {
            "none".to_string()
        } else {
            format!("`{}`", knob.default)
        };
        let shapes = match knob.shapes {
            Shapes::Nothing => "nothing",
            Shapes::Plan => "plan",
            Shapes::StateLayout => "state layout",
            Shapes::Numerics => "numerics",
            Shapes::Process => "process",
        };
        let _ = writeln!(
            page,
            "| `{}` | `--{}` | {} | {default} | {} | {shapes} |",
            knob.name,
            knob.flag,
            knob.expected(),
            knob.doc.replace('|', "\\|")
        );
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_knob_has_a_row() {
        let page = knobs_page(KNOBS);
        for knob in KNOBS {
            assert!(page.contains(&format!("| `{}` | `--{}` |", knob.name, knob.flag)));
        }
        assert_eq!(page.lines().filter(|l| l.starts_with("| `")).count(), KNOBS.len());
    }

    #[test]
    fn a_stale_page_fails_at_the_line_that_differs() {
        let page = knobs_page(KNOBS);
        assert!(check(&Tree::of(&[(KNOBS_PAGE, &page)])).is_empty());
        let stale = page.replace("| `server.port` |", "| `server.gate` |");
        let line = page.lines().position(|l| l.contains("server.port")).unwrap() + 1;
        assert_eq!(check(&Tree::of(&[(KNOBS_PAGE, &stale)]))[0].line, line);
        assert_eq!(check(&Tree::of(&[])).len(), 1);
    }
}
