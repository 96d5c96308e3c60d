//! Contract 1 over a million tokens of mixed load, with buckets that change meanwhile and the audit
//! at every step for a part.

use crate::Table;
use crate::bed::{Ask, Bed, Keep, Rng, Trace, gpu, greedy, model};
use lockstep_engine::{Handle, KnobChange, Knobs};
use lockstep_flow::knobs::find;
use lockstep_flow::{GenerationState, Micros, SamplingParams, Seed};
use std::path::Path;
use std::time::{Duration, Instant};

/// Requests of 300 tokens each.
const REQUESTS: usize = 3400;
const TOKENS: u32 = 300;

/// Of those, how many run with every step audited.
const AUDITED: usize = 400;

pub fn knobs() -> Knobs {
    Knobs {
        graph_max_bs: 96,
        running_max: 96,
        queued_max: 256,
        chunk_tokens: 512,
        kv_bytes: 512 << 20,
        audit_rate: 0,
        prefix_cache: false,
        context_tokens: 1024,
        watch_s: 0,
        ..Knobs::default()
    }
}

pub fn asks() -> Vec<Ask> {
    let mut rng = Rng(0xe4d0);
    let one = |i: usize| {
        let len = 1 + rng.below(600) as usize;
        let params = match i % 4 {
            0 => SamplingParams {
                temperature: 0.9,
                top_p: 0.95,
                repetition_penalty: 1.05,
                seed: Seed(i as u64),
                ..greedy(TOKENS)
            },
            _ => greedy(TOKENS),
        };
        Ask { prompt: rng.prompt(len, 256), params }
    };
    (0..REQUESTS).map(one).collect()
}

pub fn graph_max_bs(n: u32) -> KnobChange {
    let knob = find("decode.graph-max-bs").expect("a knob");
    (knob, knob.parse(&n.to_string()).expect("a number"))
}

/// Stages, flips and retires generations until told to stop; returns how many and the longest time
/// that one took of the step loop between two steps, the longest canary step left out.
pub fn change_buckets(
    handle: &Handle,
    stop: &std::sync::atomic::AtomicBool,
) -> Result<(u64, Micros, Micros), String> {
    let (mut flips, mut longest, mut canary) = (0, Micros(0), Micros(0));
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        let ceiling = [32, 96, 48][flips as usize % 3];
        let number = handle.stage(&[graph_max_bs(ceiling)]).map_err(|e| e.to_string())?;
        let end = Instant::now() + Duration::from_secs(30);
        let report = loop {
            let status = handle.status();
            let report = status.generation_report(number).cloned();
            if let Some(report) = report.filter(|r| !r.state.is_on_its_way()) {
                break report;
            }
            if Instant::now() > end {
                return Err(format!("generation {number} is never verified"));
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        if report.state != GenerationState::Verified {
            return Err(format!("generation {number}: {:?}", report.reason));
        }
        handle.flip(number, Some(Micros(0))).map_err(|e| e.to_string())?;
        std::thread::sleep(Duration::from_millis(200));
        let old = handle
            .status()
            .generations
            .iter()
            .find(|g| g.state == GenerationState::Draining)
            .map(|g| g.number);
        if let Some(old) = old {
            handle.retire(old).map_err(|e| e.to_string())?;
        }
        let status = handle.status();
        if let Some(report) = status.generation_report(number) {
            longest = longest.max(report.gap.longest);
            canary = canary.max(report.gap.longest_canary);
        }
        flips += 1;
    }
    Ok((flips, longest, canary))
}

pub fn compare(table: &mut Table, what: &str, a: &[Trace], b: &[Trace]) {
    let tokens: u64 = a.iter().zip(b).map(|(a, _)| a.count).sum();
    let first = a.iter().zip(b).position(|(a, b)| a != b);
    match first {
        None => table
            .verdict(true, format!("endurance: {what}: {tokens} tokens and their logits alike")),
        Some(i) => {
            table.verdict(false, format!("endurance: {what}: request {i} of {} differs", a.len()))
        }
    }
}

pub fn run(fixtures: &Path, table: &mut Table) {
    let path = fixtures.join("tiny/qwen3");
    let bed = |change: &dyn Fn(&mut Knobs)| {
        let mut knobs = knobs();
        change(&mut knobs);
        Bed::new(Box::new(gpu()), model(&path, false), knobs, Keep::Digests)
    };
    let asks = asks();
    let start = Instant::now();
    let base = bed(&|_| {}).churn(&asks, 96, 96);
    let seconds = start.elapsed().as_secs_f64();
    table.line(format!(
        "     endurance: {:.0} tok/s of a tiny model",
        base.iter().map(|t| t.count).sum::<u64>() as f64 / seconds
    ));

    // Other company, other chunks, fewer at once, and buckets that change.
    let mut changing = bed(&|k| k.chunk_tokens = 64);
    let handle = changing.handle();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || change_buckets(&handle, &stopped));
    let other = changing.churn(&asks, 53, 2);
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    // The loop has to turn for a flip that is on its way.
    while !thread.is_finished() {
        changing.turn();
    }
    match thread.join().expect("it does not panic") {
        Ok((flips, longest, canary)) => table.verdict(
            flips > 0 && longest < Micros(50_000),
            format!(
                "endurance: {flips} generations flipped to under load; the longest took {:.2} ms between two steps, the longest canary step {:.2} ms",
                longest.0 as f64 / 1e3,
                canary.0 as f64 / 1e3
            ),
        ),
        Err(e) => table.verdict(false, format!("endurance: {e}")),
    }
    compare(table, "other company, chunks and buckets", &base, &other);

    let mut audited = bed(&|k| (k.audit_rate, k.chunk_tokens) = (1, 200));
    let some = audited.churn(&asks[..AUDITED], 96, 5);
    compare(table, "every step audited", &some, &base[..AUDITED]);
    table.line(format!("     endurance: {:?}", audited.status().audit));

    let mut eager = bed(&|k| k.eager = true);
    let some = eager.churn(&asks[..AUDITED], 40, 3);
    compare(table, "op by op", &some, &base[..AUDITED]);
}
