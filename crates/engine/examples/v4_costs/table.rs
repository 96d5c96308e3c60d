//! The table of a phase.

use crate::bench::Phase;
use crate::device::{Kind, Log};
use lockstep_device::cpu::limits::Limits;
use std::time::Duration;

/// The median, in seconds.
pub fn median(values: &[Duration]) -> f64 {
    let mut values: Vec<f64> = values.iter().map(Duration::as_secs_f64).collect();
    values.sort_by(f64::total_cmp);
    let n = values.len();
    if n == 0 { f64::NAN } else { (values[(n - 1) / 2] + values[n / 2]) / 2.0 }
}

/// Prints what a phase cost, op by op: of every kind its time in the median step, and how much
/// longer that is than its bytes or its operations, whichever take longer, would take at the
/// machine's marks beside what any op costs, which is what the cheapest kind does; and than both
/// would take one after the other. The share of the work is that of these times in those of all
/// ops: an op whose share of the time is as large takes its time in proportion.
pub fn print(what: &str, phase: &Phase, whole: &Log, log: &Log, limits: &Limits) {
    let rate = phase.tokens as f64 / phase.took.as_secs_f64();
    let step = median(&whole.steps);
    println!(
        "\n{what}: {rate:.0} tok/s ({} in {:.2} s, {:.2} ms the median step)\n",
        phase.held,
        phase.took.as_secs_f64(),
        1e3 * step,
    );
    println!(
        "| op | calls a step | us a call | of the time | of the work | GB/s (of the mark) \
         | GMAC/s (of the mark) | operations, of the marks | over the longer | over both |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let steps = log.steps.len() as f64;
    let call_s = |k: &Kind| median(&k.steps) * steps / k.calls as f64;
    let all: f64 = log.kinds.values().map(|k| median(&k.steps)).sum();
    let floor = log.kinds.values().map(call_s).fold(f64::INFINITY, f64::min);
    let mut kinds: Vec<_> = log.kinds.iter().collect();
    kinds.sort_by(|a, b| median(&b.1.steps).total_cmp(&median(&a.1.steps)));
    // Seconds of a call at the marks: of its bytes, and of its operations.
    let at_marks = |k: &Kind| {
        let flat = (k.work.macs + k.work.others) / limits.f32_macs_s;
        let calls = k.calls as f64;
        (
            k.work.bytes / limits.read_bytes_s / calls,
            (flat + k.work.divs / limits.f32_divs_s) / calls,
        )
    };
    let both = |k: &Kind| floor + at_marks(k).0 + at_marks(k).1;
    let longer = |k: &Kind| floor + at_marks(k).0.max(at_marks(k).1);
    let of_step = |of: &dyn Fn(&Kind) -> f64| -> f64 {
        log.kinds.values().map(|k| of(k) * k.calls as f64 / steps).sum()
    };
    let (all_both, all_longer) = (of_step(&both), of_step(&longer));
    for (name, kind) in kinds {
        let (calls, s) = (kind.calls as f64, call_s(kind));
        let (bytes, macs) = (kind.work.bytes / calls, kind.work.macs / calls);
        println!(
            "| {name} | {:.0} | {:.1} | {:.1}% | {:.1}% | {:.1} ({:.0}%) | {:.1} ({:.0}%) | {:.0}% | {:.1} | {:.1} |",
            calls / steps,
            1e6 * s,
            100.0 * median(&kind.steps) / all,
            100.0 * both(kind) * calls / steps / all_both,
            bytes / s / 1e9,
            100.0 * bytes / s / limits.read_bytes_s,
            macs / s / 1e9,
            100.0 * macs / s / limits.f32_macs_s,
            100.0 * at_marks(kind).1 / s,
            s / longer(kind),
            s / both(kind),
        );
    }
    println!(
        "\n{} steps op by op, {:.2} ms the median one: {:.1} over the longer, {:.1} over both; the \
         cheapest op takes {:.1} us",
        log.steps.len(),
        1e3 * median(&log.steps),
        all / all_longer,
        all / all_both,
        1e6 * floor,
    );
}
