//! DeepSeek-V4 with key-value rows and index keys of few bits: every kept row, score, selection and
//! attention against an emulation; the same bits alone, in company, in chunks and with drafts; and
//! how many of the recall model's sessions are still right.
#![forbid(unsafe_code)]

mod common;

use common::emulation::Emulation;
use common::one_step::OneStep;
use common::outcome::assert_same;
use common::reference::Golden;
use common::{Probe, Rig};
use lockstep_flow::{SamplingParams, Seed};
use lockstep_plan::{IndexDtype, KvDtype};
use lockstep_weights::V4Role;
use std::path::{Path, PathBuf};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/dsv4-tiny")
}

fn recall() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/recall")
}

/// What is served beside f32, every element type of either kind at least once.
const MODES: [(KvDtype, IndexDtype); 4] = [
    (KvDtype::Bf16, IndexDtype::Bf16),
    (KvDtype::Fp8, IndexDtype::Fp8),
    (KvDtype::Fp8, IndexDtype::Fp4),
    (KvDtype::F32, IndexDtype::F32),
];

/// A layer's ops against the emulation, as they run.
struct Check<'a> {
    e: &'a Emulation,
    tokens: usize,
    /// What ops are given, kept until they have run.
    before: Vec<f64>,
    compared: usize,
    selected: usize,
}

impl Check<'_> {
    /// Looks at what op `what` of `layer` has just done.
    fn after(&mut self, step: &OneStep, layer: u32, what: &str) {
        let at = |name: &str| format!("layers.{layer}.{name}");
        let rows =
            |name: &str| -> Vec<f64> { step.rows(&at(name)).into_iter().map(f64::from).collect() };
        let spec = &self.e.spec;
        let (dim, key_dim) = (spec.head_dim as usize, spec.index_head_dim as usize);
        let ratio = spec.compression[layer as usize].ratio().unwrap_or(0) as usize;
        match what {
            "window_store" => self.window(step, layer, &rows("wkv.out"), ratio > 0),
            "compress_rows" => {
                let ape = self.e.weights(layer, V4Role::CompressApe);
                let norm = self.e.weights(layer, V4Role::CompressNorm);
                for i in 0..self.tokens / ratio {
                    let sizes = (i, ratio, dim);
                    let x = self.e.pooled(step, &at("compressor_pages"), sizes, &ape);
                    let mut x = self.e.norm(&x, &norm);
                    self.e.rope(&mut x, i * ratio, true, false);
                    let kept = self.e.row(step, &at("compressed_pages"), i, ratio);
                    self.e.assert_row(&x, &kept, &format!("layer {layer} row {i}"));
                    self.compared += 1;
                }
            }
            "index_compress_rows" => {
                let ape = self.e.weights(layer, V4Role::IndexApe);
                let norm = self.e.weights(layer, V4Role::IndexNorm);
                for i in 0..self.tokens / ratio {
                    let sizes = (i, ratio, key_dim);
                    let x = self.e.pooled(step, &at("index_compressor_pages"), sizes, &ape);
                    let mut x = self.e.norm(&x, &norm);
                    self.e.rope(&mut x, i * ratio, true, false);
                    let kept = self.e.key(step, &at("index_pages"), i);
                    self.e.assert_key(&x, &kept, &format!("layer {layer} key {i}"));
                    self.compared += 1;
                }
            }
            "index_wq_b" => self.before = rows("index_wq_b.out"),
            "index_q_rope" => {
                let after = rows("index_wq_b.out");
                let heads = self.before.chunks(key_dim).zip(after.chunks(key_dim));
                for (n, (x, kept)) in heads.enumerate() {
                    let mut x = x.to_vec();
                    self.e.rope(&mut x, n / spec.index_heads as usize, true, false);
                    self.e.assert_key(&x, kept, &format!("layer {layer} query {n}"));
                }
            }
            "index_scores" => self.scores(step, layer),
            "index_topk" => self.selection(step, layer),
            "attention" => self.attention(step, layer, ratio),
            _ => {}
        }
    }

    fn window(&mut self, step: &OneStep, layer: u32, kv: &[f64], compressed: bool) {
        let dim = self.e.spec.head_dim as usize;
        let norm = self.e.weights(layer, V4Role::KvNorm);
        for (t, x) in kv.chunks(dim).enumerate() {
            let mut x = self.e.norm(x, &norm);
            self.e.rope(&mut x, t, compressed, false);
            let kept = self.e.row(step, &format!("layers.{layer}.window_pages"), t, 1);
            self.e.assert_row(&x, &kept, &format!("layer {layer} token {t}"));
            self.compared += 1;
        }
    }

    /// Keeps the kernel's scores, which the selection is made of, once they are what the rounded
    /// queries and keys give.
    fn scores(&mut self, step: &OneStep, layer: u32) {
        let spec = &self.e.spec;
        let (heads, dim) = (spec.index_heads as usize, spec.index_head_dim as usize);
        let found = step.rows(&format!("layers.{layer}.index_scores.out"));
        let q = step.rows(&format!("layers.{layer}.index_wq_b.out"));
        let weights = step.rows(&format!("layers.{layer}.index_weights.out"));
        let keys: Vec<Vec<f64>> = (0..self.tokens / 4)
            .map(|i| self.e.key(step, &format!("layers.{layer}.index_pages"), i))
            .collect();
        let rows_max = found.len() / self.tokens;
        for t in (0..self.tokens).filter(|t| (t + 1) / 4 > spec.index_topk as usize) {
            for (i, key) in keys.iter().enumerate().take((t + 1) / 4) {
                let head = |h: usize| {
                    let q = &q[(t * heads + h) * dim..][..dim];
                    let dot: f64 = q.iter().zip(key).map(|(q, k)| f64::from(*q) * k).sum();
                    f64::from(weights[t * heads + h]) * dot.max(0.0)
                };
                let want = (0..heads).map(head).sum::<f64>() / ((heads * dim) as f64).sqrt();
                let got = f64::from(found[t * rows_max + i]);
                assert!((want - got).abs() < 1e-4, "layer {layer} {t} {i}: {want} {got}");
                self.compared += 1;
            }
        }
        self.before = found.into_iter().map(f64::from).collect();
    }

    fn selection(&mut self, step: &OneStep, layer: u32) {
        let topk = self.e.spec.index_topk as usize;
        let found = step.words(&format!("layers.{layer}.selection"));
        let rows_max = self.before.len() / self.tokens;
        for t in 0..self.tokens {
            let scores = &self.before[t * rows_max..][..(t + 1) / 4];
            let mut order: Vec<u32> = (0..scores.len() as u32).collect();
            if order.len() > topk {
                order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
                order.truncate(topk);
                order.sort_unstable();
                self.selected += 1;
            }
            let found = found[t * topk..][..topk].iter().copied().take_while(|i| *i != u32::MAX);
            assert_eq!(found.collect::<Vec<_>>(), order, "layer {layer} token {t}");
        }
    }

    fn attention(&mut self, step: &OneStep, layer: u32, ratio: usize) {
        let spec = &self.e.spec;
        let at = |name: &str| format!("layers.{layer}.{name}");
        let (heads, dim, topk) =
            (spec.heads as usize, spec.head_dim as usize, spec.index_topk as usize);
        let sinks = self.e.weights(layer, V4Role::Sink);
        let (q, out) = (step.rows(&at("wq_b.out")), step.rows(&at("attention.out")));
        let selection = (ratio == 4).then(|| step.words(&at("selection")));
        for t in (0..self.tokens).step_by(7) {
            let window = (t + 1).saturating_sub(spec.window as usize)..=t;
            let mut rows: Vec<Vec<f64>> =
                window.map(|p| self.e.row(step, &at("window_pages"), p, 1)).collect();
            let closed = (t + 1).checked_div(ratio).unwrap_or(0);
            let chosen: Vec<usize> = match &selection {
                None => (0..closed).collect(),
                Some(all) => {
                    let all = all[t * topk..][..topk].iter().take_while(|i| **i != u32::MAX);
                    all.map(|i| *i as usize).collect()
                }
            };
            let compressed = |i| self.e.row(step, &at("compressed_pages"), i, ratio);
            rows.extend(chosen.into_iter().map(compressed));
            for (h, sink) in sinks.iter().enumerate().take(heads) {
                let first = (t * heads + h) * dim;
                let q = &q[first..first + dim];
                let dot = |r: &Vec<f64>| -> f64 {
                    r.iter().zip(q).map(|(r, q)| r * f64::from(*q)).sum::<f64>()
                        / (dim as f64).sqrt()
                };
                let scores: Vec<f64> = rows.iter().map(dot).collect();
                let most = scores.iter().fold(*sink, |a, s| a.max(*s));
                let mut sum = (sink - most).exp();
                let mut o = vec![0f64; dim];
                for (s, r) in scores.iter().zip(&rows) {
                    let p = (s - most).exp();
                    sum += p;
                    o.iter_mut().zip(r).for_each(|(o, r)| *o += p * r);
                }
                o.iter_mut().for_each(|o| *o /= sum);
                self.e.rope(&mut o, t, ratio > 0, true);
                for (c, want) in o.iter().enumerate() {
                    let got = f64::from(out[first + c]);
                    let what = format!("layer {layer} token {t} head {h} channel {c}");
                    assert!((want - got).abs() < 2e-5, "{what}: {want} {got}");
                }
                self.compared += 1;
            }
        }
    }
}

#[test]
fn every_kept_row_is_the_emulation_s() {
    let golden = Golden::read(&tiny().join("reference-300.safetensors"));
    let ids = golden.words("ids");
    for (kv, index) in MODES {
        let e = Emulation::new(&tiny(), kv, index);
        let mut step = OneStep::kept_as(&tiny(), ids.len() as u32, kv, index);
        let tokens = ids.len();
        let mut check = Check { e: &e, tokens, before: Vec::new(), compared: 0, selected: 0 };
        step.walk(ids, |step, op| {
            let Some((layer, what)) =
                op.strip_prefix("layers.").and_then(|rest| rest.split_once('.'))
            else {
                return true;
            };
            check.after(step, layer.parse().unwrap(), what);
            true
        });
        println!("{kv:?} {index:?}: {} rows and heads", check.compared);
        assert!(check.compared > 10_000 && check.selected > 700, "{}", check.compared);
    }
}

fn probes() -> Vec<Probe> {
    let probe = |n: u32| {
        let params = SamplingParams {
            temperature: if n.is_multiple_of(2) { 0.0 } else { 0.8 },
            seed: Seed(n.into()),
            max_tokens: 12,
            ignore_eos: true,
            ..SamplingParams::default()
        };
        Probe::new((0..[5, 60, 140, 260][n as usize]).map(|t| 3 + (t * 37 + n * 11) % 500), params)
    };
    (0..4).map(probe).collect()
}

#[test]
fn every_precision_gives_the_same_bits_however_it_runs() {
    let probes = probes();
    for (kv, index) in MODES {
        let rig = |chunk: u32, drafts: u32| {
            Rig::default().with(|k| {
                k.running_max = 4;
                k.graph_max_bs = 4;
                k.kv_bytes = 64 << 20;
                k.chunk_tokens = chunk;
                k.drafts = drafts;
                (k.kv_dtype, k.index_dtype) = (Some(kv), index);
            })
        };
        let mut engine = rig(512, 0).engine(&tiny());
        let alone = engine.alone(&probes);
        assert_same(&alone, &engine.together(&probes, &[]), &format!("{kv:?} {index:?} together"));
        let mut engine = Rig { isa: "portable", ..rig(37, 2) }.engine(&tiny());
        let found = engine.together(&probes, &[]);
        assert_same(&alone, &found, &format!("{kv:?} {index:?} in chunks, with drafts, portable"));
    }
}

/// Whether every token of a session's turns is what the model gives; 3 sessions, or all 74 with
/// `LOCKSTEP_TEST_SESSIONS=all`.
#[test]
fn sessions_right_in_each_precision() {
    let all = std::env::var_os("LOCKSTEP_TEST_SESSIONS").is_some_and(|v| v == "all");
    let text = std::fs::read_to_string(recall().join("cases.jsonl")).unwrap();
    let chosen: Vec<serde_json::Value> = text
        .lines()
        .enumerate()
        .filter(|(n, _)| all || [0, 40, 70].contains(n))
        .map(|(_, line)| serde_json::from_str(line).unwrap())
        .collect();
    for (kv, index) in MODES {
        let rig = Rig::default().with(|k| {
            k.running_max = 4;
            k.graph_max_bs = 4;
            k.context_tokens = 4608;
            k.kv_bytes = 1 << 30;
            (k.kv_dtype, k.index_dtype) = (Some(kv), index);
        });
        let mut engine = rig.engine(&recall());
        let (mut right, mut tokens, mut same) = (0, 0, 0);
        for session in &chosen {
            let ids = session["ids"].as_array().unwrap();
            let ids: Vec<u32> = ids.iter().map(|v| v.as_u64().unwrap() as u32).collect();
            let outcome = engine.alone(&[Probe::echo(&ids)]).remove(0);
            let mut good = true;
            for turn in session["turns"].as_array().unwrap() {
                let at = |key: &str| turn[key].as_u64().unwrap() as usize;
                let turn = at("start")..at("end");
                for (p, id) in turn.clone().zip(&ids[turn]) {
                    let logits = outcome.logits(p as u32 - 1);
                    let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
                    let is = best == Some(*id as usize);
                    (tokens, same, good) = (tokens + 1, same + usize::from(is), good && is);
                }
            }
            right += usize::from(good);
        }
        println!(
            "{kv:?} rows, {index:?} keys: {right} of {} sessions, {same} of {tokens} tokens",
            chosen.len()
        );
        assert!(same * 100 >= tokens * 99, "{kv:?} {index:?}: {same} of {tokens} tokens");
    }
}
