//! Drafts of the prediction block: its logits against the references, and the same tokens, logits
//! and log-probabilities with drafts as without, however requests sample, whatever runs beside
//! them, after prefix hits and preemptions. Counters show that drafts were checked and accepted.
#![forbid(unsafe_code)]

mod common;
#[path = "contract1/probes.rs"]
mod probes;

use common::outcome::{Outcome, assert_same};
use common::reference::Golden;
use common::{Engine, Probe, Rig};
use lockstep_flow::status::Counters;
use lockstep_flow::{SamplingParams, Seed, Token};
use probes::{company, probes};
use std::path::{Path, PathBuf};

/// The bar on logits.
const LOGITS_MAX: f32 = 5e-5;

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/dsv4-tiny")
}

fn recall() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/recall")
}

fn rig(drafts: u32) -> Rig {
    Rig::default().with(|k| {
        k.running_max = 8;
        k.graph_max_bs = 4;
        k.chunk_tokens = 64;
        k.kv_bytes = 128 << 20;
        k.drafts = drafts;
    })
}

/// Greatest distance of the block's logits from the reference's, and the greatest logit; `every`
/// position of the reference's has one here.
fn worst(golden: &Golden, outcome: &Outcome, every: u32) -> (f32, f32) {
    let (mut worst, mut most) = (0f32, 0f32);
    for i in 0..golden.rows("mtp_logits") {
        let want = golden.floats("mtp_logits", i);
        let at = i as u32 * every;
        let got = outcome.drafts.get(&at).unwrap_or_else(|| panic!("no draft at {at}"));
        worst = want.iter().zip(got).map(|(a, b)| (a - b).abs()).fold(worst, f32::max);
        most = want.iter().map(|a| a.abs()).fold(most, f32::max);
    }
    (worst, most)
}

#[test]
fn the_block_s_logits_are_the_references() {
    let mut engine = rig(1).engine(&tiny());
    for tokens in [24, 97, 300, 700] {
        let golden = Golden::read(&tiny().join(format!("reference-{tokens}.safetensors")));
        let outcome = &engine.alone(&[Probe::echo(golden.words("ids"))])[0];
        let (worst, _) = worst(&golden, outcome, 1);
        println!("{tokens} tokens: {worst:e}");
        assert!(worst < LOGITS_MAX, "{tokens} tokens: {worst}");
    }
}

/// The bar of the tiny model, although logits reach 42 here: see `recall.rs`.
#[test]
fn the_recall_model_s_block_agrees_with_its_references() {
    let mut engine = rig(1).with(|k| k.context_tokens = 2048).engine(&recall());
    for (tokens, every) in [(150, 1), (700, 1), (1500, 4)] {
        let golden = Golden::read(&recall().join(format!("reference-{tokens}.safetensors")));
        let outcome = &engine.alone(&[Probe::echo(golden.words("ids"))])[0];
        let (worst, most) = worst(&golden, outcome, every);
        println!("{tokens} tokens: {worst:e} of {most}");
        assert!(worst < LOGITS_MAX, "{tokens} tokens: {worst} of {most}");
    }
}

fn counters(engine: &mut Engine) -> Counters {
    engine.status().counters
}

/// Prompts that end where an assistant's turn begins, continued for `max_tokens`.
fn turns(count: usize, max_tokens: u32) -> Vec<Probe> {
    let text = std::fs::read_to_string(recall().join("cases.jsonl")).unwrap();
    let probe = |(n, line): (usize, &str)| {
        let session: serde_json::Value = serde_json::from_str(line).unwrap();
        let ids = session["ids"].as_array().unwrap().iter();
        let start = session["turns"][n % 2]["start"].as_u64().unwrap() as usize;
        let ids: Vec<u32> = ids.take(start).map(|v| v.as_u64().unwrap() as u32).collect();
        // Greedy ones, sampled ones, and ones with penalties and all that changes logits.
        let params = SamplingParams {
            temperature: [0.0, 0.8, 1.3][n % 3],
            top_p: if n.is_multiple_of(2) { 0.95 } else { 1.0 },
            presence_penalty: if n % 5 == 3 { 0.3 } else { 0.0 },
            repetition_penalty: if n % 5 == 4 { 1.1 } else { 1.0 },
            logit_bias: if n % 7 == 2 { vec![(Token(40), 1.5)] } else { Vec::new() },
            min_tokens: if n % 4 == 1 { 30 } else { 0 },
            logprobs: Some(2),
            seed: Seed(n as u64),
            max_tokens,
            ..SamplingParams::default()
        };
        Probe::new(ids, params)
    };
    text.lines().take(count).enumerate().map(probe).collect()
}

fn recall_rig(drafts: u32) -> Rig {
    rig(drafts).with(|k| {
        k.context_tokens = 1280;
        k.chunk_tokens = 256;
        k.kv_bytes = 700 << 20;
    })
}

/// With drafts the recall model gives what it gives without, in about half the steps.
#[test]
fn drafts_change_no_token_of_the_recall_model() {
    let probes = turns(6, 48);
    let want = recall_rig(0).engine(&recall()).alone(&probes);
    for drafts in [1, 3] {
        let mut engine = recall_rig(drafts).engine(&recall());
        let together = engine.together(&probes, &[]);
        assert_same(&want, &together, &format!("{drafts} drafts, together"));
        let alone = if drafts == 1 { engine.alone(&probes) } else { together.clone() };
        assert_same(&want, &alone, &format!("{drafts} drafts, alone"));
        let c = counters(&mut engine);
        let rate = c.accepted_tokens as f64 / c.drafted_tokens as f64;
        println!(
            "{drafts} drafts: {} of {} accepted ({rate:.3}), {} tokens in {} decode steps",
            c.accepted_tokens, c.drafted_tokens, c.generated_tokens, c.decode_steps
        );
        let per_request: u32 = alone.iter().map(|o| o.usage.accepted_tokens).sum();
        assert!(per_request > 0 && u64::from(per_request) <= c.accepted_tokens);
        if drafts == 1 {
            assert!(rate > 0.6, "{rate}");
            for (a, b) in alone.iter().zip(&together) {
                assert_eq!(a.usage.drafted_tokens, b.usage.drafted_tokens);
                assert_eq!(a.usage.accepted_tokens, b.usage.accepted_tokens);
            }
        }
    }
}

/// Every kind of request of contract 1, on weights whose drafts are mostly wrong: what a rejected
/// draft wrote is never read.
#[test]
fn rejected_drafts_leave_nothing() {
    let (mut probes, company) = (probes(512), company(512));
    probes[3].forced = Some((0..8).map(|t| Token(100 + t * 3)).collect());
    let wide = |drafts: u32| {
        rig(drafts).with(|k| {
            k.running_max = 40;
            k.kv_bytes = 256 << 20;
        })
    };
    let want = wide(0).engine(&tiny()).alone(&probes);
    let mut engine = wide(2).engine(&tiny());
    assert_same(&want, &engine.alone(&probes), "alone");
    assert_same(&want, &engine.together(&probes, &company), "in company");
    let c = counters(&mut engine);
    println!("{} of {} accepted", c.accepted_tokens, c.drafted_tokens);
    assert!(c.drafted_tokens > 500 && c.accepted_tokens < c.drafted_tokens / 2);
    // Requests with a grammar draft nothing, and that is counted.
    assert!(c.undrafted_rows > 0);
    let again = engine.alone(&probes[3..4]);
    assert_eq!(again[0].usage.drafted_tokens, 0);
}

/// A prefix hit starts behind pages whose last tokens another request had drafted past; a
/// preempted request computes its own again.
#[test]
fn drafts_survive_prefix_hits_and_preemptions() {
    let greedy = |n: u32| SamplingParams {
        temperature: if n.is_multiple_of(2) { 0.0 } else { 0.9 },
        seed: Seed(u64::from(n)),
        max_tokens: 90,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let probe = |n: u32| Probe::new((0..40 + n % 3 * 30).map(|t| 20 + t), greedy(n));
    let probes: Vec<Probe> = (0..8).map(probe).collect();
    let want = rig(0).engine(&tiny()).alone(&probes);
    let small = rig(2).with(|k| {
        k.prefix_cache = true;
        k.kv_bytes = 6 << 20;
        k.audit_rate = 1;
    });
    let mut engine = small.engine(&tiny());
    for round in 0..2 {
        assert_same(&want, &engine.together(&probes, &[]), &format!("round {round}"));
    }
    let c = counters(&mut engine);
    assert!(c.preemptions > 0 && c.cached_tokens > 0 && c.drafted_tokens > 0, "{c:?}");
    assert!(c.audits > 0);
    assert_eq!(c.audit_mismatches, 0, "{:?}", engine.status().audit.evidence);
}

/// A text may end at a draft: what was accepted behind the end is not part of it.
#[test]
fn a_text_ends_at_a_stop_token_inside_a_run_of_drafts() {
    let plain = turns(3, 60).into_iter().step_by(3).next().unwrap();
    let cached = |drafts| recall_rig(drafts).with(|k| k.prefix_cache = true);
    let mut engine = cached(0).engine(&recall());
    let whole = engine.alone(core::slice::from_ref(&plain)).remove(0);
    let mut drafting = cached(3).engine(&recall());
    for at in [5usize, 6, 7, 9] {
        let mut probe = plain.clone();
        probe.params.stop_tokens = vec![whole.tokens[at]];
        let want = engine.alone(core::slice::from_ref(&probe));
        let got = drafting.alone(core::slice::from_ref(&probe));
        assert_same(&want, &got, &format!("stop at {at}"));
        assert_eq!(want[0].usage.completion_tokens, got[0].usage.completion_tokens);
        let mut probe = plain.clone();
        probe.params.max_tokens = at as u32;
        let want = engine.alone(core::slice::from_ref(&probe));
        let got = drafting.alone(core::slice::from_ref(&probe));
        assert_same(&want, &got, &format!("at most {at}"));
    }
}

#[test]
fn a_model_without_a_prediction_block_says_so() {
    let device = lockstep_device::CpuDevice::new(1, "auto").unwrap();
    let refused = rig(1).refused(&common::models::tiny("qwen3"), Box::new(device)).to_string();
    assert!(refused.contains("no prediction block"), "{refused}");
}
