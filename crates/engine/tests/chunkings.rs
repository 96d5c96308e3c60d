//! DeepSeek-V4's references in chunks of any size: drawn from seeds, alone and in steps that several
//! prompts of unlike lengths share, every logit, every draft's logit and every selection.
#![forbid(unsafe_code)]

mod common;

use common::one_step::OneStep;
use common::outcome::{ByPosition, assert_same};
use common::reference::Golden;
use common::{Probe, Rig};
use lockstep_flow::{BucketKey, Position, RequestId, SamplingParams};
use lockstep_plan::{IndexDtype, KvDtype};
use lockstep_pool::{Logits, RowPlan};
use std::path::{Path, PathBuf};

/// The bar on logits.
const LOGITS_MAX: f32 = 5e-5;
const LENGTHS: [usize; 4] = [24, 97, 300, 700];

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/dsv4-tiny")
}

fn goldens() -> Vec<Golden> {
    let read = |n| Golden::read(&tiny().join(format!("reference-{n}.safetensors")));
    LENGTHS.into_iter().map(read).collect()
}

/// SplitMix64.
struct Draws(u64);

impl Draws {
    /// A number below `n`.
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % u64::from(n)) as u32
    }
}

/// A prompt on its way through steps.
struct Prompt<'a> {
    golden: &'a Golden,
    request: RequestId,
    done: u32,
}

impl Prompt<'_> {
    fn left(&self) -> u32 {
        self.golden.words("ids").len() as u32 - self.done
    }
}

struct Compared {
    steps: u32,
    worst: f32,
    selections: usize,
}

/// Runs prompts to their ends, up to `at_once` of them in a step, in chunks that `draws` decides.
fn run(step: &mut OneStep, goldens: &[&Golden], key: BucketKey, draws: &mut Draws) -> Compared {
    let mut slots = Vec::new();
    let mut prompts = Vec::new();
    for (i, golden) in goldens.iter().enumerate() {
        let request = RequestId(i as u64 + 1);
        let slot = step.pool.begin(request, 0, &[]).unwrap().slot;
        step.pool.extend(slot, request, golden.words("ids").len() as u32).unwrap();
        slots.push(slot);
        prompts.push(Prompt { golden, request, done: 0 });
    }
    let mut compared = Compared { steps: 0, worst: 0.0, selections: 0 };
    while prompts.iter().any(|p| p.left() > 0) {
        let (mut rows, mut ids, mut of) = (Vec::new(), Vec::new(), Vec::new());
        let first = draws.below(prompts.len() as u32) as usize;
        for i in (0..prompts.len()).map(|i| (first + i) % prompts.len()) {
            let p = &prompts[i];
            let room = key.tokens - ids.len() as u32;
            let most = p.left().min(room).min([1, 5, 40, 200][draws.below(4) as usize]);
            if most == 0 || (!rows.is_empty() && draws.below(4) == 0) {
                continue;
            }
            let n = 1 + draws.below(most);
            rows.push(RowPlan {
                request: p.request,
                slot: slots[i],
                first_position: Position(p.done),
                n_tokens: n,
                logits: Logits::All,
                samples: false,
            });
            for position in p.done..p.done + n {
                ids.push(p.golden.words("ids")[position as usize]);
                of.push((i, position as usize));
            }
        }
        let lease = step.step(&rows, &ids, ids.len() as u32, |step, op| {
            let layer = op.strip_prefix("layers.").and_then(|o| o.strip_suffix(".index_topk"));
            if let Some(layer) = layer {
                let found = step.words(&format!("layers.{layer}.selection"));
                let topk = found.len() / key.tokens as usize;
                for (&(i, position), found) in of.iter().zip(found.chunks(topk)) {
                    let name = format!("selection.{layer}");
                    let mut want = prompts[i].golden.row(&name, position).to_vec();
                    want.retain(|row| *row != u32::MAX);
                    want.sort_unstable();
                    let found: Vec<u32> =
                        found.iter().copied().filter(|row| *row != u32::MAX).collect();
                    assert_eq!(found, want, "layer {layer}, prompt {i}, position {position}");
                    compared.selections += 1;
                }
            }
            true
        });
        let logits = step.rows("logits");
        let vocab = logits.len() / key.logit_rows as usize;
        for (&(i, position), got) in of.iter().zip(logits.chunks(vocab)) {
            let want = prompts[i].golden.floats("logits", position);
            let apart = want.iter().zip(got).map(|(a, b)| (a - b).abs());
            compared.worst = apart.fold(compared.worst, f32::max);
        }
        for row in &rows {
            prompts[row.request.0 as usize - 1].done += row.n_tokens;
        }
        step.pool.complete(lease).unwrap();
        compared.steps += 1;
    }
    for (prompt, slot) in prompts.iter().zip(slots) {
        step.pool.release(slot, prompt.request).unwrap();
    }
    compared
}

#[test]
fn random_chunkings_select_the_reference_s_rows_and_give_its_logits() {
    let goldens = goldens();
    let key = BucketKey { tokens: 128, seqs: 4, logit_rows: 128 };
    let mut step = OneStep::of(&tiny(), key, 704, (KvDtype::F32, IndexDtype::F32));
    let tokens: usize = LENGTHS.iter().sum();
    for seed in 0..3 {
        let mut draws = Draws(seed);
        let mut alone = 0;
        for golden in &goldens {
            let compared = run(&mut step, &[golden], key, &mut draws);
            assert!(compared.worst < LOGITS_MAX, "seed {seed}, alone: {}", compared.worst);
            alone += compared.selections;
        }
        let all: Vec<&Golden> = goldens.iter().collect();
        let mixed = run(&mut step, &all, key, &mut draws);
        println!("seed {seed}: {} mixed steps, {:e}", mixed.steps, mixed.worst);
        assert!(mixed.worst < LOGITS_MAX, "seed {seed}, mixed: {}", mixed.worst);
        assert_eq!((alone, mixed.selections), (3 * tokens, 3 * tokens));
        assert!(mixed.steps > 12, "{} steps", mixed.steps);
    }
}

fn worst(golden: &Golden, name: &str, found: &ByPosition) -> f32 {
    let mut worst = 0f32;
    for i in 0..golden.rows(name) {
        let got = found.get(&(i as u32)).unwrap_or_else(|| panic!("no {name} at {i}"));
        let apart = golden.floats(name, i).into_iter().zip(got).map(|(a, b)| (a - b).abs());
        worst = apart.fold(worst, f32::max);
    }
    worst
}

fn rig(chunk_tokens: u32) -> Rig {
    Rig::default().with(|k| {
        k.running_max = 12;
        k.graph_max_bs = 8;
        k.chunk_tokens = chunk_tokens;
        k.kv_bytes = 128 << 20;
        k.drafts = 1;
    })
}

/// Through the scheduler, with drafts: prompts in an order that the seed draws, beside requests that
/// decode, so that what is left of a chunk is of any size.
#[test]
fn random_chunks_and_company_give_the_reference_s_logits_and_drafts() {
    let goldens = goldens();
    let echo = |golden: &Golden| Probe::echo(golden.words("ids"));
    let echoes: Vec<Probe> = goldens.iter().map(echo).collect();
    let whole = rig(1024).engine(&tiny()).alone(&echoes);
    for seed in 0..3 {
        let mut draws = Draws(100 + seed);
        let chunk = 16 + draws.below(200);
        let order: Vec<usize> = (0..6).map(|_| draws.below(4) as usize).chain(0..4).collect();
        let company: Vec<Probe> = (0..3)
            .map(|n| {
                let params = SamplingParams {
                    temperature: 0.9,
                    max_tokens: 1 + draws.below(60),
                    ignore_eos: true,
                    ..SamplingParams::default()
                };
                Probe::new((0..1 + draws.below(90)).map(|t| 3 + (t * 29 + n * 7) % 500), params)
            })
            .collect();
        let mut engine = rig(chunk).engine(&tiny());
        let probes: Vec<Probe> = order.iter().map(|i| echoes[*i].clone()).collect();
        let found = engine.together(&probes, &company);
        for (i, outcome) in order.iter().zip(&found) {
            let how = format!("seed {seed}, {} tokens in chunks of {chunk}", LENGTHS[*i]);
            assert_same(&whole[*i..=*i], core::slice::from_ref(outcome), &how);
            let logits = worst(&goldens[*i], "logits", &outcome.rows);
            let drafts = worst(&goldens[*i], "mtp_logits", &outcome.drafts);
            assert!(logits < LOGITS_MAX && drafts < LOGITS_MAX, "{how}: {logits} {drafts}");
        }
        assert_same(&whole, &engine.alone(&echoes), &format!("alone in chunks of {chunk}"));
    }
}
