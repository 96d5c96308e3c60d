//! The recall model: its references on logits and selections, and its sessions, whose every
//! assistant turn is the model's own greedy output.
#![forbid(unsafe_code)]

mod common;

use common::one_step::assert_selections;
use common::outcome::{Outcome, assert_same};
use common::reference::Golden;
use common::{Probe, Rig};
use lockstep_flow::SamplingParams;
use std::path::{Path, PathBuf};

/// The bar on logits, which reach 50 here. The references are f32, and up to 4.7e-5 from the same
/// model computed in f64; with angles rounded to f32 the distance was 6.9e-4 and grew with the
/// position.
const LOGITS_MAX: f32 = 5e-5;

fn recall() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/recall")
}

fn golden(tokens: usize) -> Golden {
    Golden::read(&recall().join(format!("reference-{tokens}.safetensors")))
}

fn rig(context_tokens: u32) -> Rig {
    Rig::default().with(|k| {
        k.running_max = 4;
        k.graph_max_bs = 4;
        k.context_tokens = context_tokens;
        k.kv_bytes = 1 << 30;
    })
}

#[test]
fn logits_agree_with_the_references() {
    let mut engine = rig(2048).engine(&recall());
    for (tokens, every) in [(150, 1), (700, 1), (1500, 4)] {
        let golden = golden(tokens);
        let outcome = &engine.alone(&[Probe::echo(golden.words("ids"))])[0];
        let (mut worst, mut most) = (0f32, 0f32);
        for i in 0..golden.rows("logits") {
            let (want, got) = (golden.floats("logits", i), outcome.logits(i as u32 * every));
            worst = want.iter().zip(got).map(|(a, b)| (a - b).abs()).fold(worst, f32::max);
            most = want.iter().map(|a| a.abs()).fold(most, f32::max);
        }
        println!("{tokens} tokens: {worst:e} of {most}");
        assert!(worst < LOGITS_MAX, "{tokens} tokens: {worst} of {most}");
    }
}

#[test]
fn selections_are_the_references() {
    for tokens in [150, 700, 1500] {
        assert_selections(&recall(), &golden(tokens), tokens);
    }
}

/// True where every token of the turns is the most probable one after what is before it, which is
/// what greedy decoding from the same history gives.
fn assert_turns(session: &serde_json::Value, ids: &[u32], outcome: &Outcome) -> usize {
    let mut tokens = 0;
    for turn in session["turns"].as_array().unwrap() {
        let at = |key: &str| turn[key].as_u64().unwrap() as usize;
        for (p, want) in ids.iter().enumerate().take(at("end")).skip(at("start")) {
            let logits = outcome.logits(p as u32 - 1);
            let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
            assert_eq!(best, Some(*want as usize), "{} token {p}", session["id"]);
            tokens += 1;
        }
    }
    tokens
}

/// One session of 1,024 tokens, one of 2,048 and one with reasoning; `LOCKSTEP_TEST_SESSIONS=all`
/// takes all 74.
#[test]
fn sessions_are_the_model_s_own_words() {
    let all = std::env::var_os("LOCKSTEP_TEST_SESSIONS").is_some_and(|v| v == "all");
    let text = std::fs::read_to_string(recall().join("cases.jsonl")).unwrap();
    let mut engine = rig(4608).engine(&recall());
    let (mut sessions, mut tokens, mut read) = (0, 0, 0);
    let started = std::time::Instant::now();
    let chosen = |n: usize| all || [0, 40, 70].contains(&n);
    for (_, line) in text.lines().enumerate().filter(|(n, _)| chosen(*n)) {
        let session: serde_json::Value = serde_json::from_str(line).unwrap();
        let ids = session["ids"].as_array().unwrap();
        let ids: Vec<u32> = ids.iter().map(|v| v.as_u64().unwrap() as u32).collect();
        let outcome = engine.alone(&[Probe::echo(&ids)]).remove(0);
        tokens += assert_turns(&session, &ids, &outcome);
        read += ids.len();
        sessions += 1;
    }
    println!("{sessions} sessions, {tokens} of {read} tokens, {:?}", started.elapsed());
    assert!(sessions >= 3 && tokens > 200, "{sessions} sessions, {tokens} tokens");
}

/// A later turn finds what an earlier one left: pages that end inside a row of 128 tokens, with the
/// compressor's state of the open row. Preempted and resumed, or computed from nothing, its answer
/// has the same bits.
#[test]
fn a_prefix_that_ends_inside_a_row_of_128_gives_the_same_bits() {
    let text = std::fs::read_to_string(recall().join("cases.jsonl")).unwrap();
    let session: serde_json::Value = serde_json::from_str(text.lines().nth(2).unwrap()).unwrap();
    let ids = session["ids"].as_array().unwrap();
    let ids: Vec<u32> = ids.iter().map(|v| v.as_u64().unwrap() as u32).collect();
    let turn = |n: usize| session["turns"][n]["start"].as_u64().unwrap() as usize;
    let params = SamplingParams {
        temperature: 0.0,
        max_tokens: 90,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let probe = |n: usize| Probe::new(ids[..turn(n)].iter().copied(), params.clone());
    let probes = [probe(0), probe(1), probe(1)];
    let alone = rig(2048).engine(&recall()).alone(&probes);
    let mut engine = rig(2048).with(|k| k.prefix_cache = true).engine(&recall());
    let cached = engine.alone(&probes);
    assert_same(&alone, &cached, "after prefix hits");
    let hits: Vec<u32> = cached.iter().map(|o| o.usage.cached_tokens).collect();
    assert!(hits[0] == 0 && hits[1] > 256 && hits[2] > 256, "{hits:?}");
    assert!(hits.iter().any(|n| n % 128 != 0), "a hit ends inside a row: {hits:?}");
    // All prompts fit, and what they grow by does not: the younger ones go and start again.
    let pool = &engine.status().pools;
    let bytes: u64 = pool.iter().map(|p| p.bytes_total).sum();
    let page_bytes = bytes / u64::from(pool[0].pages_total);
    let pages: u64 = probes.iter().map(|p| p.prompt.len() as u64 / 32 + 1).sum();
    let short = rig(2048).with(|k| k.kv_bytes = page_bytes * (pages + 5));
    let mut engine = short.engine(&recall());
    assert_same(&alone, &engine.together(&probes, &[]), "after preemptions");
    let preempted = engine.status().counters.preemptions;
    assert!(preempted > 0, "{preempted} preemptions");
}
