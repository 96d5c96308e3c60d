//! A step launched before the last one's tokens were seen: the same tokens and log-probabilities as
//! one step at a time, with other company, with buckets that change and with the audit. Nobody taps
//! logits here: whoever looks at those of every step has one step at a time.

use crate::Table;
use crate::bed::{Ask, Bed, Keep, Trace, gpu, model};
use crate::endurance::{asks, change_buckets, compare, knobs};
use lockstep_engine::Knobs;
use lockstep_flow::EngineStatus;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Of the requests, how many run with the audit at a high rate.
const AUDITED: usize = 600;

fn share(status: &EngineStatus) -> String {
    let c = &status.counters;
    let waits: Vec<String> = status
        .waited_steps
        .iter()
        .filter(|(_, n)| *n > 0)
        .map(|(reason, n)| format!("{} {n}", reason.as_str()))
        .collect();
    format!("{} of {} steps launched ahead ({})", c.pipelined_steps, c.steps, waits.join(", "))
}

pub fn run(fixtures: &Path, table: &mut Table) {
    let path = fixtures.join("tiny/qwen3");
    let bed = |change: &dyn Fn(&mut Knobs)| {
        let mut knobs = knobs();
        change(&mut knobs);
        Bed::new(Box::new(gpu()), model(&path, false), knobs, Keep::Nothing)
    };
    let asks: Vec<Ask> = asks()
        .into_iter()
        .enumerate()
        .map(|(i, mut ask)| {
            ask.params.logprobs = Some(i as u32 % 4);
            ask.params.max_tokens -= i as u32 % 97;
            ask
        })
        .collect();
    let mut plain = bed(&|k| k.pipelined = false);
    let base = plain.churn(&asks, 96, 96);
    table.verdict(plain.status().counters.pipelined_steps == 0, "ahead: off is off".into());

    let mut ahead = bed(&|_| {});
    let same: Vec<Trace> = ahead.churn(&asks, 96, 96);
    compare(table, "a step launched ahead", &base, &same);
    let status = ahead.status();
    let most = status.counters.pipelined_steps * 2 > status.counters.steps;
    table.verdict(most, format!("ahead: {}", share(&status)));

    let mut changing = bed(&|k| k.chunk_tokens = 64);
    let handle = changing.handle();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || change_buckets(&handle, &stopped));
    let other = changing.churn(&asks, 53, 2);
    stop.store(true, Ordering::Relaxed);
    while !thread.is_finished() {
        changing.turn();
    }
    match thread.join().expect("it does not panic") {
        Ok((flips, longest, _)) => table.verdict(
            flips > 0,
            format!(
                "ahead: {flips} flips, {:.2} ms at most; {}",
                longest.0 as f64 / 1e3,
                share(&changing.status())
            ),
        ),
        Err(e) => table.verdict(false, format!("ahead: {e}")),
    }
    compare(table, "the same with other company and buckets", &base, &other);

    let mut audited = bed(&|k| (k.audit_rate, k.chunk_tokens) = (7, 200));
    let some = audited.churn(&asks[..AUDITED], 96, 5);
    compare(table, "the same, one step in seven audited", &some, &base[..AUDITED]);
    let status = audited.status();
    let found = status.counters.audit_mismatches;
    table.verdict(found == 0, format!("ahead: {found} mismatches; {}", share(&status)));
}
