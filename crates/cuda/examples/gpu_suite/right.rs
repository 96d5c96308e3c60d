//! Right answers: what `transformers` computed from the same files, every position of a prompt that
//! the reference has, and a greedy continuation.
//!
//! The GPU keeps weights and the rows that matrices multiply as bf16, which rounds each by up to
//! 0.2%, some tens of times a model; the bar is a relative distance of 2% over all logits. Greedy
//! tokens agree with the reference's until the GPU's own margin falls under 0.15. The CPU device's
//! distance stands beside it: it quantises those rows to 8 bits where weights are quantised.

use crate::Table;
use crate::bed::{Ask, Bed, Keep, Outcome, cpu, gpu, greedy, margin, model};
use lockstep_device::Device;
use lockstep_engine::Knobs;
use std::path::Path;

/// Relative distance of logits.
const DISTANCE_MAX: f64 = 0.02;
/// Greedy tokens may part where the best two logits are this near.
const MARGIN: f32 = 0.15;

/// File, and the folder of its reference.
const MODELS: [(&str, &str); 15] = [
    ("llama", "llama"),
    ("llama3-rope", "llama3-rope"),
    ("mistral", "mistral"),
    ("mistral-window", "mistral-window"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("gguf/qwen3-F16.gguf", "qwen3"),
    ("gguf/wide-Q4_0.gguf", "gguf/wide-Q4_0"),
    ("gguf/wide-Q4_1.gguf", "gguf/wide-Q4_1"),
    ("gguf/wide-Q4_K.gguf", "gguf/wide-Q4_K"),
    ("gguf/wide-Q5_0.gguf", "gguf/wide-Q5_0"),
    ("gguf/wide-Q5_1.gguf", "gguf/wide-Q5_1"),
    ("gguf/wide-Q5_K.gguf", "gguf/wide-Q5_K"),
    ("gguf/wide-Q6_K.gguf", "gguf/wide-Q6_K"),
    ("gguf/wide-Q8_0.gguf", "gguf/wide-Q8_0"),
];

struct Reference {
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    /// Position and logits.
    rows: Vec<(u32, Vec<f32>)>,
}

fn reference(folder: &Path) -> Reference {
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    let json: serde_json::Value =
        serde_json::from_slice(&read("reference.json")).unwrap_or_else(|e| panic!("{e}"));
    let int = |v: &serde_json::Value| v.as_u64().unwrap_or_default() as u32;
    let ints = |key: &str| json[key].as_array().into_iter().flatten().map(int).collect();
    let layout = &json["logits"];
    let (first, every) = (int(&layout["first_position"]), int(&layout["every"]));
    let raw = read("logits.f32");
    let rows = raw.chunks_exact(4 * int(&layout["cols"]) as usize).enumerate();
    let float = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    Reference {
        prompt: ints("prompt"),
        greedy: ints("greedy"),
        rows: rows
            .map(|(i, r)| (first + i as u32 * every, r.chunks_exact(4).map(float).collect()))
            .collect(),
    }
}

fn ask(device: Box<dyn Device>, path: &Path, reference: &Reference) -> Outcome {
    let knobs = Knobs {
        graph_max_bs: 4,
        running_max: 64,
        chunk_tokens: 512,
        kv_bytes: 64 << 20,
        audit_rate: 0,
        prefix_cache: false,
        ..Knobs::default()
    };
    let mut params = greedy(reference.greedy.len() as u32);
    (params.prompt_logprobs, params.logprobs) = (true, Some(0));
    let mut bed = Bed::new(device, model(path, false), knobs, Keep::Rows);
    bed.run(&[Ask { prompt: reference.prompt.clone(), params }], 0).remove(0)
}

/// |a - b| / |b| over all rows of the reference.
fn distance(a: &Outcome, reference: &Reference) -> f64 {
    let (mut off, mut all) = (0f64, 0f64);
    for (position, b) in &reference.rows {
        let Some(a) = a.rows.get(position) else { return f64::NAN };
        for (a, b) in a.iter().zip(b) {
            off += (f64::from(*a) - f64::from(*b)).powi(2);
            all += f64::from(*b).powi(2);
        }
    }
    (off / all).sqrt()
}

pub fn run(fixtures: &Path, table: &mut Table) {
    for (name, folder) in MODELS {
        let tiny = fixtures.join("tiny");
        let reference = reference(&tiny.join(folder));
        let on_gpu = ask(Box::new(gpu()), &tiny.join(name), &reference);
        let on_cpu = ask(Box::new(cpu()), &tiny.join(name), &reference);
        let d = distance(&on_gpu, &reference);
        let pairs = on_gpu.tokens.iter().zip(&reference.greedy);
        let same = pairs.take_while(|(a, b)| a == b).count();
        let all = reference.greedy.len();
        // The logits that chose token i stand at the position before it.
        let position = (reference.prompt.len() - 1 + same) as u32;
        let parted = on_gpu.rows.get(&position).map_or(f32::NAN, |row| margin(row));
        let ok = d < DISTANCE_MAX && (same == all || parted < MARGIN);
        let then =
            if same == all { String::new() } else { format!(", then a margin of {parted:.3}") };
        table.verdict(
            ok,
            format!(
                "right {name}: logits within {d:.1e} of transformers (CPU device {:.1e}); greedy \
                 {same} of {all} alike{then}",
                distance(&on_cpu, &reference)
            ),
        );
    }
}
