//! Pages that are made from the code: the knob table, the metric table, the alarms.

use crate::args::{Outcome, Stop, only_flags};
use crate::tidy::Finding;
use crate::tree::{Tree, root};
use lockstep_flow::alarms::AlarmKind;
use lockstep_flow::knobs::{KNOBS, Knob, Shapes};
use lockstep_flow::metrics::METRICS;
use std::fmt::Write;

const KNOBS_PAGE: &str = "docs/knobs.md";
const METRICS_PAGE: &str = "docs/metrics.md";
/// A page written by hand, with the alarms between two marks.
const OPERATING_PAGE: &str = "docs/operating.md";
const ALARMS_BEGIN: &str = "<!-- alarms: written by cargo xtask docs -->\n";
const ALARMS_END: &str = "<!-- end of alarms -->\n";

/// Writes every generated page.
pub fn main(args: &[String]) -> Outcome {
    only_flags(args, &[])?;
    let written = |page: &str, text: String| {
        let path = root().join(page);
        std::fs::write(&path, text)
            .map_err(|e| Stop::failed(format!("{} was not written: {e}", path.display())))
    };
    written(KNOBS_PAGE, knobs_page(KNOBS))?;
    println!("{KNOBS_PAGE}: {} knobs", KNOBS.len());
    written(METRICS_PAGE, metrics_page())?;
    println!("{METRICS_PAGE}: {} metrics", METRICS.len());
    let page = std::fs::read_to_string(root().join(OPERATING_PAGE))
        .map_err(|e| Stop::failed(format!("{OPERATING_PAGE} was not read: {e}")))?;
    let page = with_alarms(&page)
        .ok_or_else(|| Stop::failed(format!("{OPERATING_PAGE} lacks the marks of the alarms")))?;
    written(OPERATING_PAGE, page)?;
    println!("{OPERATING_PAGE}: {} alarms", AlarmKind::ALL.len());
    Ok(())
}

/// Fails where a generated page is missing or differs from what the code says.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let operating = tree.text(OPERATING_PAGE).unwrap_or_default();
    let mut pages = vec![
        (KNOBS_PAGE, knobs_page(KNOBS), "a page that differs from the knob registry"),
        (METRICS_PAGE, metrics_page(), "a page that differs from the metric registry"),
    ];
    let alarms = "a page whose alarms differ from the alarm registry";
    pages.push((OPERATING_PAGE, with_alarms(operating).unwrap_or_default(), alarms));
    let finding = |(page, wanted, what): (&str, String, &str)| {
        let found = tree.text(page).unwrap_or_default();
        if found == wanted && !found.is_empty() {
            return None;
        }
        let same = found.lines().zip(wanted.lines()).take_while(|(a, b)| a == b).count();
        Some(Finding {
            rule: "generated",
            file: page.into(),
            line: same + 1,
            found: what.into(),
            remedy: "cargo xtask docs".into(),
        })
    };
    pages.into_iter().filter_map(finding).collect()
}

/// The page with the alarms of now between its marks; `None` where it lacks them.
fn with_alarms(page: &str) -> Option<String> {
    let (before, rest) = page.split_once(ALARMS_BEGIN)?;
    let (_, after) = rest.split_once(ALARMS_END)?;
    let mut table = String::from("| alarm | level | means | do |\n|---|---|---|---|\n");
    for kind in AlarmKind::ALL {
        let level = kind.level().as_str();
        let (meaning, action) = (kind.meaning(), kind.action());
        let _ = writeln!(table, "| `{}` | {level} | {meaning} | {action} |", kind.id());
    }
    Some(format!("{before}{ALARMS_BEGIN}\n{table}\n{ALARMS_END}{after}"))
}

/// The table of metrics, from their declarations.
fn metrics_page() -> String {
    let mut page = String::from(
        "# Metrics\n\n\
         Every metric of `/metrics` stands in this table, which `cargo xtask docs` writes from \
         their declarations in `crates/flow/src/metrics.rs`.\n\n\
         Each series has the label `model_name` beside those named here. A counter's series ends \
         in `_total`; a histogram has `_bucket`, `_sum` and `_count`. A name in the last column \
         carries the same numbers, for dashboards that were made for SGLang.\n\n\
         | name | kind | labels | says | also as |\n\
         |---|---|---|---|---|\n",
    );
    let code =
        |names: &[&str]| names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
    for m in METRICS {
        let when = if m.when.is_empty() { String::new() } else { format!(" ({})", m.when) };
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {}{when} | {} |",
            m.name,
            m.kind.as_str(),
            code(m.labels),
            m.help,
            code(m.aliases)
        );
    }
    page
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
         *plan* needs a new generation, which is flipped to while requests run; so can \
         `decode.eager` and `audit.rate` be changed ([generations.md](generations.md)). Everything \
         else needs a restart: *nothing* shapes neither plans nor state, *state layout* says where \
         state lies, *numerics* which bits come out, *process* is fixed for the life of the \
         process.\n\n\
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

    fn whole() -> [(&'static str, String); 3] {
        let operating = format!("# Operating\n\n{ALARMS_BEGIN}Stale.\n{ALARMS_END}The end.\n");
        [
            (KNOBS_PAGE, knobs_page(KNOBS)),
            (METRICS_PAGE, metrics_page()),
            (OPERATING_PAGE, with_alarms(&operating).unwrap()),
        ]
    }

    fn findings(pages: &[(&str, String)]) -> Vec<Finding> {
        let pages: Vec<(&str, &str)> = pages.iter().map(|(p, t)| (*p, t.as_str())).collect();
        check(&Tree::of(&pages))
    }

    #[test]
    fn a_stale_page_fails_at_the_line_that_differs() {
        assert!(findings(&whole()).is_empty());
        for (at, word) in [(0, "server.port"), (1, "lockstep_up"), (2, "queue_full")] {
            let mut pages = whole();
            let line = pages[at].1.lines().position(|l| l.contains(word)).unwrap() + 1;
            pages[at].1 = pages[at].1.replace(word, "other");
            let found = findings(&pages);
            assert_eq!((found.len(), found[0].line), (1, line), "{word}");
        }
        assert_eq!(findings(&[]).len(), 3);
    }

    #[test]
    fn what_is_written_by_hand_around_the_alarms_stays() {
        let page = whole()[2].1.clone();
        assert!(page.starts_with("# Operating\n\n") && page.ends_with("The end.\n"), "{page}");
        assert!(!page.contains("Stale."));
        assert_eq!(with_alarms(&page).as_deref(), Some(page.as_str()), "writing twice is once");
        assert_eq!(with_alarms("# A page without marks\n"), None);
    }
}
