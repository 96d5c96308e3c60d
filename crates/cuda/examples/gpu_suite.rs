//! The suite of a machine with a GPU: right answers, equal bits, speed. Prints a short table last.
//!
//! `gpu_suite FIXTURES [--only PARTS] [--shapes SHAPES] [--rows ROWS] [--model FILE] [--lockstep FILE]
//! [--peer FILES] [--pipelined on,off] [--chunks TOKENS]`
//! with parts of `products,right,quantised,bits,lanes,kernels,endurance,ahead,speed,served`, and `prefill`,
//! which is the first part of `speed` alone, with a report of a step of prompts; FILES are
//! what the peer's script wrote in the same run, which `speed` then prints beside its own.
#![allow(clippy::print_stdout)]

#[path = "gpu_suite/ahead.rs"]
mod ahead;
#[path = "gpu_suite/bed.rs"]
mod bed;
#[path = "gpu_suite/bits.rs"]
mod bits;
#[path = "gpu_suite/endurance.rs"]
mod endurance;
#[path = "gpu_suite/http.rs"]
mod http;
#[path = "gpu_suite/kernels.rs"]
mod kernels;
#[path = "gpu_suite/lanes.rs"]
mod lanes;
#[path = "gpu_suite/products.rs"]
mod products;
#[path = "gpu_suite/quantised.rs"]
mod quantised;
#[path = "gpu_suite/right.rs"]
mod right;
#[path = "gpu_suite/served.rs"]
mod served;
#[path = "gpu_suite/speed.rs"]
mod speed;

use speed::{Way, What};
use std::path::PathBuf;
use std::process::ExitCode;

/// Lines of the last table, and whether all was well.
#[derive(Default)]
pub struct Table {
    lines: Vec<String>,
    failed: bool,
}

impl Table {
    /// A line.
    pub fn line(&mut self, text: String) {
        println!("{text}");
        self.lines.push(text);
    }

    /// A line that says whether something held.
    pub fn verdict(&mut self, ok: bool, text: String) {
        self.failed |= !ok;
        self.line(format!("{} {text}", if ok { "ok  " } else { "FAIL" }));
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(fixtures) = args.first().map(PathBuf::from) else {
        eprintln!(
            "usage: gpu_suite FIXTURES [--only PARTS] [--shapes SHAPES] [--rows ROWS] \
             [--pipelined on,off] [--chunks TOKENS] [--model FILE] [--lockstep FILE] [--peer FILES]"
        );
        return ExitCode::from(2);
    };
    let option = |name: &str, default: &str| {
        let at = args.iter().position(|a| a == name);
        let text = at.and_then(|i| args.get(i + 1)).map_or(default, String::as_str);
        text.split(',').map(str::to_string).collect::<Vec<_>>()
    };
    let parts = option(
        "--only",
        "products,right,quantised,bits,lanes,kernels,endurance,ahead,speed,served",
    );
    let file = |name: &str| option(name, "").first().filter(|f| !f.is_empty()).map(PathBuf::from);
    let real = file("--model");
    let beside = || std::env::current_exe().ok().map(|exe| exe.with_file_name("lockstep"));
    let binary = file("--lockstep").or_else(beside).unwrap_or_else(|| "lockstep".into());
    let shapes = option("--shapes", "qwen3-0.6b");
    let peer = speed::Peer::new(&option("--peer", ""));
    let rows: Vec<usize> =
        option("--rows", "1,8,32,64,96").iter().filter_map(|r| r.parse().ok()).collect();
    let ways = option("--pipelined", "on");
    let chunks: Vec<u32> =
        option("--chunks", "4000").iter().filter_map(|t| t.parse().ok()).collect();
    let mut table = Table::default();
    let device = bed::gpu();
    let (major, minor) = device.capability();
    let (free, total) = device.free_and_total().unwrap_or_default();
    table.line(format!(
        "{} sm_{major}{minor}, {} multiprocessors, driver CUDA {}.{}, {:.1} of {:.1} GiB free",
        device.name(),
        device.multiprocessors(),
        device.driver_version() / 1000,
        device.driver_version() % 1000 / 10,
        free as f64 / 1073741824.0,
        total as f64 / 1073741824.0,
    ));
    drop(device);
    for part in &parts {
        match part.as_str() {
            "products" => products::run(&mut table),
            "right" => right::run(&fixtures, &mut table),
            "bits" => bits::run(&fixtures, &mut table),
            "lanes" => lanes::run(&fixtures, &mut table),
            "quantised" => quantised::run(&fixtures, real.as_deref(), &mut table),
            "kernels" => kernels::run(&fixtures, &mut table),
            "served" => {
                let shape = shapes.last().map_or("qwen3-0.6b", String::as_str);
                served::run(&binary, real.as_deref(), shape, &mut table);
            }
            "endurance" => endurance::run(&fixtures, &mut table),
            "ahead" => ahead::run(&fixtures, &mut table),
            "speed" | "prefill" => {
                let what = if part == "speed" { What::Steps } else { What::Prefill };
                for (shape, way) in shapes.iter().flat_map(|s| ways.iter().map(move |w| (s, w))) {
                    for &chunk_tokens in &chunks {
                        let way = Way { what, pipelined: way != "off", chunk_tokens };
                        speed::run(shape, way, &rows, &peer, &mut table);
                    }
                }
            }
            other => table.verdict(false, format!("there is no part {other}")),
        }
    }
    println!("\n== table ==");
    table.lines.iter().for_each(|l| println!("{l}"));
    if table.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
