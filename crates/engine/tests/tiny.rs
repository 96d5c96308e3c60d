//! The tiny models of `fixtures/tiny` through the whole step path, against what `transformers`
//! computed from the same weights: every position of a 300-token prompt, prefilled in one piece,
//! in chunks of 16, and decoded token by token; then the greedy continuation.
#![forbid(unsafe_code)]

mod common;
/// A plain forward pass in f64.
#[allow(dead_code)]
#[path = "../../weights/tests/tiny/forward.rs"]
mod forward;

use common::models::{Reference, tiny};
use common::outcome::{Outcome, assert_same};
use common::{Probe, Rig};
use lockstep_flow::{SamplingParams, Token};
use lockstep_plan::KvDtype;

/// The bar for float weights, with KV kept as f32.
const FLOAT_MAX: f32 = 2e-4;

fn greedy(max_tokens: u32) -> SamplingParams {
    SamplingParams { temperature: 0.0, max_tokens, ignore_eos: true, ..SamplingParams::default() }
}

/// Runs with room for the whole prompt, logits of every token included, in one step.
fn rig(chunk_tokens: u32, kv: KvDtype) -> Rig {
    Rig::default().with(|k| {
        k.running_max = 256;
        k.graph_max_bs = 1;
        k.chunk_tokens = chunk_tokens;
        k.kv_dtype = Some(kv);
        k.kv_bytes = 8 << 20;
    })
}

/// Echoes the prompt, so that every position has logits, and goes on greedily.
fn echo(reference: &Reference) -> Probe {
    let mut params = greedy(reference.greedy.len() as u32);
    (params.prompt_logprobs, params.logprobs) = (true, Some(0));
    Probe::new(reference.prompt.iter().copied(), params)
}

/// Is given the prompt's first token and made to produce the others one by one.
fn decode(reference: &Reference) -> Probe {
    let prompt = &reference.prompt;
    let params = greedy(prompt.len() as u32);
    let forced = prompt[1..].iter().map(|t| Token(*t)).collect();
    Probe { forced: Some(forced), ..Probe::new(prompt[..1].iter().copied(), params) }
}

/// The three ways through the prompt; asserts that they are the same bits.
fn outcome(model: &str, reference: &Reference, kv: KvDtype) -> Outcome {
    let mut engine = rig(512, kv).engine(&tiny(model));
    let whole = engine.alone(&[echo(reference)]);
    let prefills = engine.status().counters.prefill_steps;
    assert_eq!(prefills, 1, "{model}: the prompt went in one step");
    let one_by_one = engine.alone(&[decode(reference)]);
    let counters = engine.status().counters;
    assert!(counters.decode_steps >= 299, "{model}: {counters:?}");
    let mut engine = rig(16, kv).engine(&tiny(model));
    let chunked = engine.alone(&[echo(reference)]);
    let prefills = engine.status().counters.prefill_steps;
    assert_eq!(prefills, 300u64.div_ceil(16), "{model}: the prompt went in chunks");
    assert_same(&whole, &chunked, &format!("{model} in chunks"));
    for position in 0..300 {
        let (a, b) = (whole[0].logits(position), one_by_one[0].logits(position));
        let same = a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "{model}: decode differs from prefill at position {position}");
    }
    whole.into_iter().next().unwrap()
}

fn assert_greedy(model: &str, reference: &Reference, outcome: &Outcome) {
    let tokens: Vec<u32> = outcome.tokens.iter().map(|t| t.0).collect();
    assert_eq!(tokens, reference.greedy, "{model}: the greedy continuation");
}

const FLOAT: [(&str, &str); 12] = [
    ("llama", "llama"),
    ("llama3-rope", "llama3-rope"),
    ("mistral", "mistral"),
    ("mistral-window", "mistral-window"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("gguf/llama-F32.gguf", "llama"),
    ("gguf/llama-F16.gguf", "llama"),
    ("gguf/llama3-rope-F16.gguf", "llama3-rope"),
    ("gguf/mistral-window-F16.gguf", "mistral-window"),
    ("gguf/qwen2-BF16.gguf", "qwen2"),
    ("gguf/qwen3-F16.gguf", "qwen3"),
];

#[test]
fn float_models_agree_with_transformers() {
    for (model, reference) in FLOAT {
        let reference = Reference::read(&tiny(reference));
        let outcome = outcome(model, &reference, KvDtype::F32);
        let worst = reference.worst(|p| outcome.logits(p));
        println!("{model}: {worst:e}");
        assert!(worst < FLOAT_MAX, "{model}: {worst}");
        assert_greedy(model, &reference, &outcome);
    }
}

/// KV kept as f16, the default for weights that are not f32, rounds keys and values to 11 bits.
#[test]
fn half_kv_stays_near_the_reference() {
    for (model, reference) in [("llama", "llama"), ("gguf/qwen3-F16.gguf", "qwen3")] {
        let reference = Reference::read(&tiny(reference));
        let outcome = outcome(model, &reference, KvDtype::F16);
        let worst = reference.worst(|p| outcome.logits(p));
        println!("{model}, f16 KV: {worst:e}");
        assert!(worst < 2e-2, "{model}: {worst}");
    }
}

/// Activations as the quantised products read them: 8-bit codes in blocks of 32.
fn round_to_int8(row: &mut [f64]) {
    for block in row.chunks_mut(32) {
        let scale = block.iter().fold(0.0, |m: f64, x| m.max(x.abs())) / 127.0;
        if scale > 0.0 {
            block.iter_mut().for_each(|x| *x = (*x / scale).round_ties_even() * scale);
        }
    }
}

/// Greatest and root mean square difference of two sets of logits at the reference's positions.
fn difference<'a>(
    reference: &Reference,
    a: impl Fn(u32) -> &'a [f32],
    b: impl Fn(u32) -> &'a [f32],
) -> (f64, f64) {
    let of = |(p, _): (u32, _)| {
        a(p).iter().zip(b(p)).map(|(a, b)| f64::from(a - b)).collect::<Vec<f64>>()
    };
    let all: Vec<f64> = reference.positions().flat_map(of).collect();
    let mean_square = all.iter().map(|d| d * d).sum::<f64>() / all.len() as f64;
    (all.iter().fold(0.0, |m: f64, d| m.max(d.abs())), mean_square.sqrt())
}

/// Quantised weights multiply activations rounded to 8 bits a block, which the references (f32
/// activations) are not. How far that takes the logits is what a forward pass in f64 that rounds
/// the same rows says; ours are as far, and nearer to that pass than either is to the reference (a
/// code that falls on the other side of a half moves others behind it, so not equal to it).
#[test]
fn quantised_models_are_off_by_the_rounding_of_activations_alone() {
    for format in ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"] {
        let model = format!("gguf/wide-{format}.gguf");
        let reference = Reference::read(&tiny(&format!("gguf/wide-{format}")));
        let outcome = outcome(&model, &reference, KvDtype::F32);
        let checkpoint = lockstep_weights::Checkpoint::open(&tiny(&model)).unwrap();
        let prompt: Vec<usize> = reference.prompt.iter().map(|t| *t as usize).collect();
        let rounded: Vec<Vec<f32>> = forward::logits_rounding(&checkpoint, &prompt, round_to_int8)
            .into_iter()
            .map(|row| row.into_iter().map(|x| x as f32).collect())
            .collect();
        let ours = |p: u32| outcome.logits(p);
        let rounded = |p: u32| &rounded[p as usize][..];
        let exact = |p: u32| reference.at(p);
        let (max, rms) = difference(&reference, ours, exact);
        let (rounding_max, rounding_rms) = difference(&reference, rounded, exact);
        let (_, between) = difference(&reference, ours, rounded);
        let equal = outcome.tokens.iter().zip(&reference.greedy).take_while(|(a, b)| a.0 == **b);
        println!(
            "{model}: {max:.4} (rms {rms:.5}) from the reference, rounding alone {rounding_max:.4} \
             ({rounding_rms:.5}), between them ({between:.5}); {} greedy tokens",
            equal.count()
        );
        assert!(rms < 1.2 * rounding_rms && max < 2.0 * rounding_max, "{model}");
        assert!(between < rounding_rms, "{model}");
        assert!(rounding_rms < 0.1, "{model}: the bound itself");
    }
}
