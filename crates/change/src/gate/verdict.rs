//! The stated criteria of a rollback.

use super::Measured;
use crate::target::{Gates, Kind};
use lockstep_check::bench::Point;
use serde_json::{Value, json};

/// Answers that may differ between two runs of a server whose bits depend on the batch, in
/// percent: a server that answers garbage differs in all of them.
const OTHERS_DIFFER_PERCENT_MAX: f64 = 50.0;
/// Characters of such an answer that are compared: a tie that breaks the other way changes the
/// rest of it.
const OTHERS_CHARACTERS: usize = 12;

/// One criterion and what was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Criterion {
    /// Its name.
    pub name: String,
    /// Whether the change passed it.
    pub passed: bool,
    /// What was found, against what is asked.
    pub words: String,
}

impl Criterion {
    /// A criterion's outcome.
    pub fn new(name: &str, passed: bool, words: impl Into<String>) -> Criterion {
        Criterion { name: name.into(), passed, words: words.into() }
    }

    /// For the record.
    pub fn to_json(&self) -> Value {
        json!({"criterion": self.name, "passed": self.passed, "words": self.words})
    }
}

/// Compares a measurement with its baseline: answers first, then errors, throughput, latency.
pub fn compare(kind: Kind, gates: &Gates, before: &Measured, after: &Measured) -> Vec<Criterion> {
    let mut all = vec![answers(kind, before, after)];
    for b in &before.points {
        let is_same = |a: &&Point| a.max_concurrency == b.max_concurrency;
        match after.points.iter().find(is_same) {
            Some(a) => point(gates, b, a, &mut all),
            None => {
                let words = format!("nothing was measured at {}", b.load());
                all.push(Criterion::new("throughput", false, words));
            }
        }
    }
    all
}

fn answers(kind: Kind, before: &Measured, after: &Measured) -> Criterion {
    let exact = kind == Kind::Lockstep;
    let cut = |text: &str| -> String {
        if exact { text.to_owned() } else { text.chars().take(OTHERS_CHARACTERS).collect() }
    };
    let same = |(prompt, text): &(&String, &String)| {
        after.alone.get(*prompt).is_some_and(|a| cut(a) == cut(text))
    };
    let all = before.alone.len();
    let differing: Vec<(&String, &String)> = before.alone.iter().filter(|p| !same(p)).collect();
    let percent = 100.0 * differing.len() as f64 / all.max(1) as f64;
    let passed = if exact { differing.is_empty() } else { percent <= OTHERS_DIFFER_PERCENT_MAX };
    let asked = if exact { "none may" } else { "at most half may, since bits depend on the batch" };
    let example = differing.first().map_or(String::new(), |(prompt, text)| {
        let now = after.alone.get(*prompt).map_or("nothing", String::as_str);
        format!("; '{prompt}' gave {text:?}, now {now:?}")
    });
    let words = format!(
        "{} of {all} greedy answers differ from those before the change ({asked}){example}",
        differing.len()
    );
    Criterion::new("corruption", passed, words)
}

fn point(gates: &Gates, b: &Point, a: &Point, all: &mut Vec<Criterion>) {
    let c = b.load();
    let extra = a.extra.clone().unwrap_or_default();
    let bad = extra.errors + extra.refused + extra.timeouts;
    let percent = 100.0 * bad as f64 / extra.sent.max(1) as f64;
    let mut words = format!(
        "at {c}: {} of {} failed, {} refused, {} timed out (at most {}% together)",
        extra.errors, extra.sent, extra.refused, extra.timeouts, gates.errors_percent_max
    );
    if let Some(why) = extra.failures.first() {
        words.push_str(&format!("; the first: {why}"));
    }
    all.push(Criterion::new("errors", percent <= gates.errors_percent_max, words));
    let (was, is) = (b.totals.output_throughput, a.totals.output_throughput);
    let least = was * (1.0 - gates.tolerance_percent / 100.0);
    let words = format!(
        "at {c}: {is:.1} tokens/s, {was:.1} before ({:+.1}%; at least {least:.1})",
        if was > 0.0 { 100.0 * (is / was - 1.0) } else { 0.0 }
    );
    all.push(Criterion::new("throughput", is >= least, words));
    let (was, is) = (b.latencies.e2e.p99, a.latencies.e2e.p99);
    let most = was * gates.p99_factor_max;
    let words = format!(
        "at {c}: 99% of requests within {is:.0} ms, {was:.0} ms before (at most {most:.0})"
    );
    all.push(Criterion::new("p99", is <= most || was == 0.0, words));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A point through the form in which records keep it.
    fn measured(tokens_per_s: f64, text: &str) -> Measured {
        let line = json!({
            "max_concurrency": 8, "output_throughput": tokens_per_s, "completed": 16,
            "p99_e2e_latency_ms": 20.0, "lockstep": {"sent": 16},
        });
        let alone = (0..4).map(|n| (format!("p{n}"), json!(format!("{text} {n}"))));
        let alone: serde_json::Map<String, Value> = alone.collect();
        Measured::from_json(&json!({"points": [line], "alone": alone})).unwrap()
    }

    fn failed(kind: Kind, before: &Measured, after: &Measured) -> Vec<String> {
        let all = compare(kind, &Gates::default(), before, after);
        all.into_iter().filter(|c| !c.passed).map(|c| c.name).collect()
    }

    #[test]
    fn each_criterion_fails_by_itself() {
        let before = measured(1000.0, "fine words here");
        assert!(failed(Kind::Lockstep, &before, &before).is_empty());
        assert!(failed(Kind::Lockstep, &before, &measured(901.0, "fine words here")).is_empty());
        assert_eq!(
            failed(Kind::Lockstep, &before, &measured(899.0, "fine words here")),
            ["throughput"]
        );
        assert_eq!(
            failed(Kind::Lockstep, &before, &measured(1000.0, "Fine words")),
            ["corruption"]
        );
        let mut after = before.clone();
        after.points[0].extra.as_mut().unwrap().timeouts = 1;
        assert_eq!(failed(Kind::Lockstep, &before, &after), ["errors"]);
        let mut after = before.clone();
        after.points[0].latencies.e2e.p99 = 41.0;
        assert_eq!(failed(Kind::Lockstep, &before, &after), ["p99"]);
        let mut after = before.clone();
        after.points.clear();
        assert_eq!(failed(Kind::Lockstep, &before, &after), ["throughput"]);
    }

    #[test]
    fn a_server_whose_bits_depend_on_the_batch_is_judged_by_the_beginning() {
        let before = measured(1000.0, "fine words here");
        let later = measured(1000.0, "fine words herring");
        assert!(failed(Kind::LlamaCpp, &before, &later).is_empty());
        assert_eq!(failed(Kind::LlamaCpp, &before, &measured(1000.0, "#!@")), ["corruption"]);
        let back = Measured::from_json(&before.to_json()).unwrap();
        assert_eq!(back.to_json(), before.to_json());
    }
}
