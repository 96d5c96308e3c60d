//! Speed with seeded weights of a shape, taken as the peer's script takes it: 320 prompt and 256
//! output tokens of C requests at once; a decode step is the time of 256 less the time of 8 output
//! tokens, over 248, the median of three, host work and sampling included.

use crate::Table;
use crate::bed::{Ask, Bed, Keep, Rng, gpu, greedy, model};
use lockstep_cuda::{Captured, Probe};
use lockstep_engine::Knobs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Bytes a second that a copy moves on an H200, reads and writes together.
const BANDWIDTH: f64 = 4.35e12;

/// A shape.
struct Shape {
    name: &'static str,
    config: &'static str,
    /// Bytes of K and V of one token.
    kv_token: f64,
    /// Bytes of the weights that a step reads.
    weights: f64,
}

const SHAPES: [Shape; 2] = [
    Shape {
        name: "qwen3-0.6b",
        config: r#"{"model_type":"qwen3","hidden_act":"silu","rms_norm_eps":1e-6,
            "rope_theta":1000000.0,"max_position_embeddings":40960,"attention_bias":false,
            "torch_dtype":"bfloat16","bos_token_id":151643,"eos_token_id":151645,
            "hidden_size":1024,"intermediate_size":3072,"num_hidden_layers":28,
            "num_attention_heads":16,"num_key_value_heads":8,"head_dim":128,
            "vocab_size":151936,"tie_word_embeddings":true}"#,
        kv_token: 28.0 * 8.0 * 128.0 * 2.0 * 2.0,
        weights: (28.0 * (1024.0 * 4096.0 + 2048.0 * 1024.0 + 3.0 * 1024.0 * 3072.0)
            + 151936.0 * 1024.0)
            * 2.0,
    },
    Shape {
        name: "qwen3-8b",
        config: r#"{"model_type":"qwen3","hidden_act":"silu","rms_norm_eps":1e-6,
            "rope_theta":1000000.0,"max_position_embeddings":40960,"attention_bias":false,
            "torch_dtype":"bfloat16","bos_token_id":151643,"eos_token_id":151645,
            "hidden_size":4096,"intermediate_size":12288,"num_hidden_layers":36,
            "num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,
            "vocab_size":151936,"tie_word_embeddings":false}"#,
        kv_token: 36.0 * 8.0 * 128.0 * 2.0 * 2.0,
        weights: (36.0 * (4096.0 * 6144.0 + 4096.0 * 4096.0 + 3.0 * 4096.0 * 12288.0)
            + 151936.0 * 4096.0)
            * 2.0,
    },
];

/// What the peer's script wrote on the same machine in the same run, where it did.
#[derive(Default)]
pub struct Peer(Vec<serde_json::Value>);

impl Peer {
    /// Of the files that the peer's script wrote, one a shape.
    pub fn new(files: &[String]) -> Peer {
        let read = |file: &String| {
            let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{file}: {e}"));
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("{file}: {e}"))
        };
        Peer(files.iter().filter(|f| !f.is_empty()).map(read).collect())
    }

    /// Milliseconds of a step, and of 8 tokens after the prompt, of `rows` requests.
    fn of(&self, shape: &str, rows: usize) -> Option<(f64, f64)> {
        let run = self.0.iter().find(|run| run["shape"] == shape)?;
        let row = run["rows"].as_array()?.iter().find(|row| row["c"] == rows)?;
        Some((row["step_ms"].as_f64()?, row["prefill8_ms"].as_f64()?))
    }

    /// What it comes to beside `ms` a step and `first` ms for 8 tokens.
    fn beside(&self, shape: &str, rows: usize, ms: f64, first: f64) -> String {
        let Some((peer, peer_first)) = self.of(shape, rows) else { return String::new() };
        let prefill = |first: f64, ms: f64| first - 7.0 * ms;
        format!(
            "peer {peer:.2} ({:.2}x), its 8 tokens {peer_first:.1} ms (prefill {:.2}x); ",
            peer / ms,
            prefill(peer_first, peer) / prefill(first, ms),
        )
    }
}

/// A folder with the configuration of a shape.
pub fn folder(name: &str) -> Option<PathBuf> {
    let shape = SHAPES.iter().find(|s| s.name == name)?;
    let folder = std::env::temp_dir().join(format!("lockstep-{name}"));
    let written = std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(folder.join("config.json"), shape.config));
    written.unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    Some(folder)
}

fn timed(bed: &mut Bed, rng: &mut Rng, rows: usize, tokens: u32) -> f64 {
    let ask = |_| Ask { prompt: rng.prompt(320, 150_000), params: greedy(tokens) };
    let asks: Vec<Ask> = (0..rows).map(ask).collect();
    let start = Instant::now();
    let outcomes = bed.run(&asks, 0);
    let seconds = start.elapsed().as_secs_f64();
    assert!(outcomes.iter().all(|o| o.tokens.len() == tokens as usize), "every token came");
    seconds
}

/// What is timed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Decode steps and what comes before them.
    Steps,
    /// Eight tokens after the prompt alone.
    Prefill,
}

/// How an engine is made for it.
#[derive(Clone, Copy)]
pub struct Way {
    pub what: What,
    /// A step is launched ahead.
    pub pipelined: bool,
    /// Prompt tokens of a step at most.
    pub chunk_tokens: u32,
}

pub fn run(name: &str, way: Way, rows: &[usize], peer: &Peer, table: &mut Table) {
    let Way { what, pipelined, chunk_tokens } = way;
    let Some(shape) = SHAPES.iter().find(|s| s.name == name) else {
        table.verdict(false, format!("there is no shape {name}"));
        return;
    };
    let folder = folder(name).expect("a shape");
    let knobs = Knobs {
        graph_max_bs: 96,
        running_max: 96,
        chunk_tokens,
        kv_bytes: 16 << 30,
        context_tokens: 4096,
        prefix_cache: false,
        audit_rate: 1000,
        pipelined,
        ..Knobs::default()
    };
    let start = Instant::now();
    let mut device = gpu();
    let probe = Arc::new(Probe::default());
    device.set_probe(probe.clone());
    let mut bed = Bed::new(Box::new(device), model(&folder, true), knobs, Keep::Nothing);
    table.line(format!("     {name}: ready in {:.2} s", start.elapsed().as_secs_f64()));
    say_captures(name, &bed, &probe.captures(), table);
    let mut rng = Rng(0x5eed);
    timed(&mut bed, &mut rng, 4, 16);
    for &c in rows {
        let prefill = (0..2).map(|_| timed(&mut bed, &mut rng, c, 8)).fold(f64::INFINITY, f64::min);
        let turns: Vec<String> = bed.turns_ms().iter().map(|ms| format!("{ms:.1}")).collect();
        println!("       turns of the step loop in the second, ms: {}", turns.join(" "));
        if what == What::Prefill {
            table.line(format!(
                "     {name} C={c}, chunks of {chunk_tokens}: 8 tokens after 320: {:.1} ms",
                prefill * 1e3
            ));
            probe.ask();
            timed(&mut bed, &mut rng, c, 8);
            print_reports(&probe);
            continue;
        }
        probe.replays();
        let audited = audit_us(&bed);
        let mut all: Vec<f64> = (0..3).map(|_| timed(&mut bed, &mut rng, c, 256)).collect();
        all.sort_by(f64::total_cmp);
        let ms = (all[1] - prefill) / 248.0 * 1e3;
        let (steps, device_us) = probe.replays();
        let audit = (audit_us(&bed) - audited) / steps.max(1) as f64 / 1e3;
        let bytes = shape.weights + c as f64 * (320.0 + 132.0) * shape.kv_token;
        let limit = bytes / BANDWIDTH * 1e3;
        table.line(format!(
            "     {name} C={c}: {ms:.3} ms a step, limit {limit:.3} ({:.0}%); {:.0} tok/s; host {:.2} ms \
             of it, the audit {audit:.2}; 8 tokens after 320: {:.1} ms; {}{}",
            limit / ms * 100.0,
            c as f64 / ms * 1e3,
            ms - device_us / 1e3,
            prefill * 1e3,
            peer.beside(name, c, ms, prefill * 1e3),
            if pipelined { "" } else { "; one step at a time" },
        ));
        // One more batch, for a report of a decode step in the middle of it.
        probe_one(&mut bed, &mut rng, c, &probe);
        print_reports(&probe);
    }
}

fn print_reports(probe: &Probe) {
    for report in probe.take() {
        println!("       {}: replay {:.0} us", report.bucket, report.replay_us);
        for op in &report.ops {
            let each = op.us / op.ops as f32;
            println!("         {:>24} {:>8.1} us  ({} x {each:.2})", op.name, op.us, op.ops);
        }
    }
}

/// Microseconds that the audit has taken of the step thread.
fn audit_us(bed: &Bed) -> f64 {
    bed.status().audit.parts.iter().map(|p| p.time.0 as f64).sum()
}

/// Plans whose capture has a bar, and the bar.
const BUCKETS: f64 = 16.0;
const CAPTURE_MS: f64 = 2000.0;

fn say_captures(name: &str, bed: &Bed, all: &Captured, table: &mut Table) {
    let mib = |bytes: u64| bytes as f64 / 1048576.0;
    let status = bed.status();
    let (arena, shadow) =
        status.generations.first().map_or((0, 0), |g| (g.arena_bytes, g.shadow_bytes));
    let each = all.ms / f64::from(all.plans.max(1));
    table.verdict(
        all.plans > 0 && each * BUCKETS < CAPTURE_MS,
        format!(
            "{name}: {} plans of {} kernels captured in {:.0} ms, {:.0} ms for 16 of them; arenas {:.1} \
             MiB, of the twins {:.1} MiB; {:.1} MiB of memory predicted, {:.1} taken ({:+.1}%), {:.1} of \
             them for graphs",
            all.plans,
            all.kernels,
            all.ms,
            each * BUCKETS,
            mib(arena),
            mib(shadow),
            mib(all.predicted_bytes),
            mib(all.taken_bytes),
            all.error_percent(),
            mib(all.taken_bytes.saturating_sub(all.arena_bytes)),
        ),
    );
}

fn probe_one(bed: &mut Bed, rng: &mut Rng, rows: usize, probe: &Probe) {
    let ask = |_| Ask { prompt: rng.prompt(320, 150_000), params: greedy(64) };
    let asks: Vec<Ask> = (0..rows).map(ask).collect();
    bed.run_probed(&asks, 40, probe);
}
