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
/// would take one after the other.
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
        "| op | calls a step | us a call | of the time | GB/s (of the mark) \
         | GMAC/s (of the mark) | operations, of the marks | over the longer | over both |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let steps = log.steps.len() as f64;
    let call_s = |k: &Kind| median(&k.steps) * steps / k.calls as f64;
    let all: f64 = log.kinds.values().map(|k| median(&k.steps)).sum();
    let floor = log.kinds.values().map(call_s).fold(f64::INFINITY, f64::min);
    let mut kinds: Vec<_> = log.kinds.iter().collect();
    kinds.sort_by(|a, b| median(&b.1.steps).total_cmp(&median(&a.1.steps)));
    for (name, kind) in kinds {
        let (calls, s) = (kind.calls as f64, call_s(kind));
        let (bytes, macs) = (kind.work.bytes / calls, kind.work.macs / calls);
        let flat = (kind.work.macs + kind.work.others) / calls;
        let operations = flat / limits.f32_macs_s + kind.work.divs / calls / limits.f32_divs_s;
        let moved = bytes / limits.read_bytes_s;
        println!(
            "| {name} | {:.0} | {:.1} | {:.1}% | {:.1} ({:.0}%) | {:.1} ({:.0}%) | {:.0}% | {:.1} | {:.1} |",
            calls / steps,
            1e6 * s,
            100.0 * median(&kind.steps) / all,
            bytes / s / 1e9,
            100.0 * bytes / s / limits.read_bytes_s,
            macs / s / 1e9,
            100.0 * macs / s / limits.f32_macs_s,
            100.0 * operations / s,
            s / (floor + moved.max(operations)),
            s / (floor + moved + operations),
        );
    }
    println!(
        "\n{} steps op by op, {:.2} ms the median one; the cheapest op takes {:.1} us",
        log.steps.len(),
        1e3 * median(&log.steps),
        1e6 * floor,
    );
}
