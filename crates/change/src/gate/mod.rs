//! What a change must pass: the corruption gate, then the same load before and after compared.

mod answers;
mod load;
mod sessions;
mod verdict;

pub use answers::{probe, sample};
pub use load::measure;
pub use sessions::{Gate, gate};
pub use verdict::{Criterion, compare};

use lockstep_check::bench::{self, Point};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A load: closed loops, `concurrency` requests at a time.
#[derive(Clone, PartialEq, Debug)]
pub struct Load {
    /// Concurrencies, one after the other.
    pub concurrency: Vec<u32>,
    /// Requests of a run, as a multiple of its concurrency.
    pub rounds: u32,
    /// Runs at each concurrency.
    pub repeats: u32,
    /// Prompt tokens of each request.
    pub input: u32,
    /// Output tokens of each request.
    pub tokens: u32,
    /// Seconds that a request may take.
    pub timeout_seconds: u64,
    /// Makes the prompts. They are as long with any seed, and each measurement has its own: what a
    /// server has cached of an earlier one would be no work the second time.
    pub seed: u64,
}

/// A measurement.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Measured {
    /// By concurrency.
    pub points: Vec<Point>,
    /// Greedy answers by prompt, of one request at a time.
    pub alone: BTreeMap<String, String>,
}

impl Measured {
    /// For the record.
    pub fn to_json(&self) -> Value {
        let points: Vec<Value> = self.points.iter().map(bench::line).collect();
        json!({"points": points, "alone": self.alone})
    }

    /// From the record.
    pub fn from_json(v: &Value) -> Option<Measured> {
        let list = v["points"].as_array()?;
        let lines: Vec<String> = list.iter().map(Value::to_string).collect();
        let points =
            if list.is_empty() { Vec::new() } else { bench::read(&lines.join("\n")).ok()?.0 };
        let text = |v: &Value| v.as_str().map(str::to_owned);
        let alone = v["alone"].as_object()?;
        let alone = alone.iter().filter_map(|(p, a)| Some((p.clone(), text(a)?))).collect();
        Some(Measured { points, alone })
    }

    /// The points as lines of a file that `lockstep bench show` takes.
    pub fn to_lines(&self) -> String {
        self.points.iter().map(|p| format!("{}\n", bench::line(p))).collect()
    }

    /// Failed, refused and timed out requests, and the first failure's words.
    pub fn unanswered(&self) -> (u64, String) {
        let extras = || self.points.iter().filter_map(|p| p.extra.as_ref());
        let count = extras().map(|e| e.errors + e.refused + e.timeouts).sum();
        (count, extras().flat_map(|e| &e.failures).next().cloned().unwrap_or_default())
    }
}
