//! What a change must pass: the same load before and after, and what came back compared.

mod load;
mod verdict;

pub use load::{cover, measure, probe, sample};
pub use verdict::{Criterion, compare};

use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A load: closed loops, `concurrency` requests at a time.
#[derive(Clone, PartialEq, Debug)]
pub struct Load {
    /// Concurrencies, one after the other.
    pub concurrency: Vec<u32>,
    /// Requests of each loop.
    pub rounds: u32,
    /// Output tokens of each request.
    pub tokens: u32,
}

/// What came of one concurrency.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// Requests at a time.
    pub concurrency: u32,
    /// Requests sent.
    pub requests: u64,
    /// Refused with 429 or 503.
    pub refused: u64,
    /// Timed out.
    pub timeouts: u64,
    /// Failed otherwise, with the first one's words.
    pub failed: u64,
    /// The first failure's words.
    pub why: Option<String>,
    /// Output tokens of requests that ended well.
    pub tokens: u64,
    /// Wall time.
    pub seconds: f64,
    /// Time of a request, 50th percentile.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
}

impl Point {
    /// Output tokens a second.
    pub fn tokens_per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.tokens as f64 / self.seconds } else { 0.0 }
    }

    fn to_json(&self) -> Value {
        json!({
            "concurrency": self.concurrency, "requests": self.requests, "refused": self.refused,
            "timeouts": self.timeouts, "failed": self.failed, "why": self.why,
            "tokens": self.tokens, "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second(), "p50_ms": self.p50_ms,
            "p99_ms": self.p99_ms,
        })
    }

    fn from_json(v: &Value) -> Option<Point> {
        Some(Point {
            concurrency: u32::try_from(v["concurrency"].as_u64()?).ok()?,
            requests: v["requests"].as_u64()?,
            refused: v["refused"].as_u64()?,
            timeouts: v["timeouts"].as_u64()?,
            failed: v["failed"].as_u64()?,
            why: v["why"].as_str().map(str::to_owned),
            tokens: v["tokens"].as_u64()?,
            seconds: v["seconds"].as_f64()?,
            p50_ms: v["p50_ms"].as_f64()?,
            p99_ms: v["p99_ms"].as_f64()?,
        })
    }
}

/// A measurement.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Measured {
    /// By concurrency.
    pub points: Vec<Point>,
    /// Greedy answers by prompt, of one request at a time.
    pub alone: BTreeMap<String, String>,
    /// Answers under load that are not the ones given alone: prompt, alone, under load.
    pub differing: Vec<(String, String, String)>,
    /// Answers under load that were compared.
    pub compared: u64,
}

impl Measured {
    /// For the record.
    pub fn to_json(&self) -> Value {
        let points: Vec<Value> = self.points.iter().map(Point::to_json).collect();
        let differing: Vec<Value> = self
            .differing
            .iter()
            .map(|(p, a, b)| json!({"prompt": p, "alone": a, "under_load": b}))
            .collect();
        json!({"points": points, "alone": self.alone, "compared": self.compared,
               "differing": differing})
    }

    /// From the record.
    pub fn from_json(v: &Value) -> Option<Measured> {
        let points = v["points"].as_array()?.iter().map(Point::from_json).collect::<Option<_>>()?;
        let text = |v: &Value| v.as_str().map(str::to_owned);
        let alone = v["alone"].as_object()?;
        let alone = alone.iter().filter_map(|(p, a)| Some((p.clone(), text(a)?))).collect();
        let one =
            |d: &Value| Some((text(&d["prompt"])?, text(&d["alone"])?, text(&d["under_load"])?));
        let differing = v["differing"].as_array()?.iter().filter_map(one).collect();
        Some(Measured { points, alone, differing, compared: v["compared"].as_u64()? })
    }
}
