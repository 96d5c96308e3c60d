//! Where a step of the recall model goes, and what its drafts are worth.
//!
//! ```text
//! cargo xtask bench v4 [costs|drafts] [ROWS] [FOLDER] [THREADS]
//! ```
//!
//! `costs`: prefill and decode of `ROWS` requests (`1,8,32`), the first tokens of the model's own
//! sessions. Each phase is run whole first, then op by op with every op timed, and holds nothing
//! else: a prefill ends with its prompts' first tokens, and a decode begins when the last prompt is
//! past. The engine's counters are asked whether that was so. Memory is warm: the same load has run
//! before, on the same pages. Bytes and multiply-adds are those that an op cannot do without
//! (`work.rs`); they stand beside the machine's own marks, measured before and after each phase.
//!
//! `drafts`: turns of the sessions with 0 to 4 drafts a step, `ROWS` (`8,1`) at once: tokens a
//! second of steps that decode on all rows, and how many drafts were right.
#![forbid(unsafe_code)]

mod bench;
mod device;
mod drafts;
mod table;
mod work;

use bench::{Bench, Phase, Setting};
use lockstep_device::cpu::isa::Isa;
use lockstep_device::cpu::limits::Limits;
use std::path::{Path, PathBuf};

fn main() {
    let mut args = std::env::args().skip(1).peekable();
    let named = args.next_if(|a| a == "costs" || a == "drafts");
    let drafts = named.as_deref() == Some("drafts");
    let rows = args.next().unwrap_or_else(|| if drafts { "8,1" } else { "1,8,32" }.into());
    let rows = rows.split(',').map(|n| n.parse().expect("ROWS is a list like 1,8,32"));
    let rows: Vec<u32> = rows.collect();
    let recall = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/recall");
    let folder = args.next().map_or_else(recall, PathBuf::from);
    let threads = args.next().map_or(2, |n| n.parse().expect("a number of threads"));
    if drafts {
        return drafts::run(&folder, threads, &rows);
    }
    for rows in rows {
        let setting = Setting::costs(rows);
        costs(&mut Bench::new(&folder, threads, setting), threads);
    }
}

/// Steps of each measurement of a decode.
const STEPS: u64 = 64;

fn costs(bench: &mut Bench, threads: u32) {
    // Pages of a pool are the system's until they are touched: all of them before anything is timed.
    bench.submit_all(bench::TOKENS_MORE);
    bench.until_idle();
    bench.submit_all(bench::TOKENS_MORE);
    bench.past_prefill();
    bench.steps(4);
    timed(bench, threads, "decode", |bench| bench.decode(STEPS));
    bench.cancel_all();
    timed(bench, threads, "prefill", Bench::prefill);
}

/// Runs a phase whole and then op by op, between two measurements of the machine's marks: it has
/// paces, which it keeps for seconds or minutes.
fn timed(bench: &mut Bench, threads: u32, what: &str, mut of: impl FnMut(&mut Bench) -> Phase) {
    let marks = || Limits::measure(threads, Isa::detect()).unwrap_or_else(|e| panic!("{e}"));
    let before = marks();
    bench.time(false);
    let phase = of(bench);
    let whole = bench.time(true);
    of(bench);
    let ops = bench.take_log();
    let after = marks();
    println!("\n{threads} threads, before: {before}\n{threads} threads, after: {after}");
    let limits = before.between(&after);
    table::print(&format!("{what}, {} rows", bench.setting.running), &phase, &whole, &ops, &limits);
}
