//! What drills came to, for people and for `docs/drills.md`.

use super::layer::Layer;
use super::list::Drill;
use super::measure::{LayerResult, Measured};
use core::fmt::Write as _;
use lockstep_plan::drill::overlapped;
use lockstep_plan::{prove, svg};

/// One line a drill.
pub fn table(all: &[Measured]) -> String {
    let mut out = format!(
        "{:33} {:>9}  {:52} {:>6} {:>9}\n",
        "drill", "detected", "caught by (of its runs)", "steps", "clean"
    );
    for m in all {
        let by: Vec<String> = m.layers.iter().filter(|l| l.detected > 0).map(short).collect();
        let by = match (by.is_empty(), m.drill.beyond) {
            (false, _) => by.join(", "),
            (true, Some(_)) => "none: left to the gate".into(),
            (true, None) => "NONE".into(),
        };
        let steps = fastest(m).and_then(|l| l.steps);
        let steps = steps.map_or_else(|| "-".into(), |s| s.to_string());
        let found = format!("{}/{}", m.detected, m.runs);
        let clean = format!("{}/{}", m.clean_alarms(), m.clean_runs());
        let _ = writeln!(out, "{:33} {found:>9}  {by:52} {steps:>6} {clean:>9}", m.drill.name);
    }
    out
}

/// The layer that was fastest in steps.
fn fastest(m: &Measured) -> Option<&LayerResult> {
    m.layers.iter().filter(|l| l.detected > 0).min_by_key(|l| l.steps)
}

fn short(l: &LayerResult) -> String {
    format!("{} {}/{}", l.layer, l.detected, l.runs)
}

/// Why some cells of the table are empty or zero.
const NATURE: &str = "
## What a layer cannot see by its nature

- The prover judges what a plan says. `undeclared-workspace` is a kernel that writes what its plan does not say, and a proof of that plan holds. Explorer, threads and twin run the kernel and see it where the bytes it takes are somebody's at that moment.
- Explorer and threads run every op as a whole, once its lane has come to it. `programmatic-launch-edge` is an op whose read comes before its own wait, which is no order of whole ops: the prover refuses the plan. The CPU device launches one op after the other, so that in a running engine one op is given what its read finds before its predecessor has run, and the twin sees it.
";

/// The page `docs/drills.md`.
pub fn markdown(all: &[Measured], command: &str) -> String {
    let (runs, seed) = all.first().map_or((0, 0), |m| (m.runs, m.seed));
    let mut out = format!(
        "# Drills\n\nEach line below is a fault that was put in on purpose, and every figure in it \
         was measured by `{command}` ({runs} seeds a drill, from seed {seed} on).\n\n\
         Every layer is asked alone: the prover judges the faulty plan and nothing runs; the \
         explorer (random orders, dead bytes poisoned) and real threads (one a lane, delays around \
         edges) run it without a proof; the pool is asked to sign while its books are false; each \
         part of the audit watches, with the other parts switched off and every step audited, an \
         engine whose device does the wrong thing. `x/n` means that x of the n runs in which the \
         fault was in place gave an alarm. A layer that a fault has no form for is left empty. The \
         clean twin of a run is the same path without the fault. What a client sees of each over \
         HTTP alone is on [a page of its own](drills-gate.md).\n\n"
    );
    let names: Vec<&str> = Layer::ALL.iter().map(|l| l.name()).collect();
    let _ = writeln!(out, "| drill | {} | clean alarms |", names.join(" | "));
    let _ = writeln!(out, "|---|{}---|", "---|".repeat(Layer::ALL.len()));
    for m in all {
        let _ = write!(out, "| `{}` |", m.drill.name);
        for layer in Layer::ALL {
            match m.layers.iter().find(|l| l.layer == layer) {
                None => out.push_str(" |"),
                Some(l) if l.detected > 0 => {
                    let _ = write!(out, " **{}/{}** |", l.detected, l.runs);
                }
                Some(l) => {
                    let _ = write!(out, " {}/{} |", l.detected, l.runs);
                }
            }
        }
        let _ = writeln!(out, " {}/{} |", m.clean_alarms(), m.clean_runs());
    }
    out.push_str(
        "\n## What each corrupts, and how soon it is seen\n\n\
         *Corrupted*: seeds of which clients saw other tokens or log-probabilities with the audit \
         off. *Steps* and *ms* are medians from the strike to the first alarm of the layer that was \
         fastest in steps (orders for the explorer and threads, steps of the engine for the rest; \
         the prover needs none). *At 1 in 1,000* is the same for the audit at its default rate.\n\n\
         | drill | what it corrupts | seen in the field | corrupted | steps | ms | at 1 in 1,000 |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for m in all {
        let fastest = fastest(m);
        let cell = |v: Option<String>| v.unwrap_or_default();
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {} | {} | {} | {} |",
            m.drill.name,
            m.drill.corrupts,
            m.drill.seen_in,
            cell(m.corrupted.map(|c| format!("{c}/{}", m.runs))),
            cell(fastest.and_then(|l| l.steps).map(|s| s.to_string())),
            cell(fastest.and_then(|l| l.ms).map(|ms| format!("{ms:.2}"))),
            cell(m.steps_at_default_rate.map(|s| format!("{s} steps"))),
        );
    }
    out.push_str(NATURE);
    out.push_str("\n## What no layer of a server sees in a running engine\n\n");
    for m in all.iter().filter(|m| m.drill.beyond.is_some()) {
        let _ = writeln!(out, "- `{}`: {}.", m.drill.name, m.drill.beyond.unwrap_or_default());
    }
    out
}

/// A picture of the faulty plan with its hazards in red. `None` where the fault has no form in a
/// plan, or the plan has no place for it.
pub fn picture(drill: &Drill, seed: u64) -> Option<String> {
    let plan = overlapped(2, 4, 4);
    let drilled = drill.plan?.seed(&plan, seed)?;
    let hazards = prove(drilled.plan.clone(), drilled.packing.clone()).err().unwrap_or_default();
    Some(svg(&drilled.plan, &drilled.packing, &hazards))
}
