//! Contract 1: tokens and logits of a request are the same bits whatever runs beside it and however
//! it is run. Twelve probes run alone; then again in batches, buckets, chunks, after prefix hits and
//! preemptions, eagerly, on other instruction sets, thread counts and lanes. Counters show that each
//! of these really happened.
#![forbid(unsafe_code)]

mod common;
#[path = "contract1/probes.rs"]
mod probes;

use common::models::{smollm2, tiny};
use common::outcome::{Outcome, assert_same};
use common::{Engine, Probe, Rig};
use lockstep_device::cpu::isa::{Isa, KernelKind, counters};
use probes::{company, probes};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// One engine at a time: the counters of instruction sets are the process's, and so are its cores.
static ENGINES: Mutex<()> = Mutex::new(());

/// A model with its probes and what came of each of them alone.
struct Subject {
    path: PathBuf,
    vocab: u32,
    probes: Vec<Probe>,
    alone: Vec<Outcome>,
    _turn: MutexGuard<'static, ()>,
}

type Alone = OnceLock<Vec<Outcome>>;

impl Subject {
    fn new(path: PathBuf, vocab: u32, cell: &Alone) -> Subject {
        let turn = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
        let probes = probes(vocab);
        let alone = cell.get_or_init(|| Rig::default().engine(&path).alone(&probes)).clone();
        // Alone is decode bucket 1; every probe has logits for each token and its prompt's last.
        for (outcome, probe) in alone.iter().zip(&probes) {
            assert_eq!(outcome.tokens.len() as u32, probe.params.max_tokens);
            let echoed = if probe.params.prompt_logprobs { probe.prompt.len() - 1 } else { 0 };
            assert_eq!(outcome.rows.len(), outcome.tokens.len() + echoed);
        }
        Subject { path, vocab, probes, alone, _turn: turn }
    }

    fn smollm2() -> Subject {
        static ALONE: Alone = OnceLock::new();
        Subject::new(smollm2(), 49152, &ALONE)
    }

    fn tiny() -> Subject {
        static ALONE: Alone = OnceLock::new();
        Subject::new(tiny("qwen3"), 256, &ALONE)
    }

    fn deepseek_v4() -> Subject {
        static ALONE: Alone = OnceLock::new();
        Subject::new(tiny("../dsv4-tiny"), 512, &ALONE)
    }

    fn engine(&self, rig: &Rig) -> Engine {
        rig.engine(&self.path)
    }

    /// Runs all probes in one batch on a new engine and compares.
    fn compare(&self, rig: &Rig, how: &str) -> Engine {
        let mut engine = self.engine(rig);
        let found = engine.together(&self.probes, &[]);
        assert_same(&self.alone, &found, how);
        engine
    }

    /// 40 requests at once: every captured decode bucket, and one above the captured ones.
    fn batches(&self) {
        let rig = Rig::default();
        let mut engine = self.engine(&rig);
        let found = engine.together(&self.probes, &company(self.vocab));
        assert_same(&self.alone, &found, "in a batch of 40");
        let (captured, eager) = engine.decode_buckets_used();
        assert_eq!(captured, [1, 2, 4, 8, 12, 16, 24, 32], "captured decode buckets");
        assert_eq!(eager, [40], "the bucket above graph_max_bs");
        let mixed = engine.status().buckets;
        let mixed = mixed.iter().filter(|b| !b.key.is_decode() && b.replays > 0).count();
        assert!(mixed >= 2, "{mixed} mixed buckets");
    }

    fn eager(&self) {
        let engine = &mut self.compare(&Rig::default().with(|k| k.eager = true), "eager");
        let c = engine.status().counters;
        assert!(c.steps > 20, "{c:?}");
        assert_eq!((c.decode_steps_captured, c.prefill_steps_captured), (0, 0));
    }

    /// Every step checked by the audit: a replay and its eager twin in the engine itself.
    fn audited(&self) {
        let engine = &mut self.compare(&Rig::default().with(|k| k.audit_rate = 1), "audited");
        let c = engine.status().counters;
        assert!(c.audits > 20 && c.audit_mismatches == 0, "{c:?}");
    }

    fn chunks(&self) {
        for chunk in [16, 64] {
            let rig = Rig::default().with(|k| k.chunk_tokens = chunk);
            let engine = &mut self.compare(&rig, &format!("in chunks of {chunk}"));
            let c = engine.status().counters;
            let prompt: u64 = self.probes.iter().map(|p| p.prompt.len() as u64).sum();
            assert!(c.prefill_steps >= prompt / u64::from(chunk), "{c:?}");
        }
    }

    fn prefix_hits(&self) {
        let mut engine = self.engine(&Rig::default().with(|k| k.prefix_cache = true));
        assert_same(&self.alone, &engine.alone(&self.probes), "with an empty prefix cache");
        let found = engine.together(&self.probes, &[]);
        assert_same(&self.alone, &found, "after a prefix hit");
        for (outcome, probe) in found.iter().zip(&self.probes) {
            // Whole pages of the prompt but for its last token; an echoed prompt is computed.
            let pages = (probe.prompt.len() as u32 - 1) / 32;
            let cached = if probe.params.prompt_logprobs { 0 } else { pages * 32 };
            assert_eq!(outcome.usage.cached_tokens, cached);
        }
        assert!(engine.status().counters.cached_tokens >= 1000);
    }

    /// A pool in which nine requests start and cannot all stay as they grow by three pages each:
    /// the youngest go back to the queue and resume.
    fn preemptions(&self, page_bytes: u64) {
        let grow = |p: &Probe| {
            let mut p = p.clone();
            p.params.max_tokens = 90;
            p
        };
        let probes: Vec<Probe> = self.probes[..9].iter().map(grow).collect();
        let alone = self.engine(&Rig::default()).alone(&probes);
        for prefix_cache in [false, true] {
            let rig = Rig::default().with(|k| {
                k.kv_bytes = page_bytes * 19;
                k.prefix_cache = prefix_cache;
            });
            let mut engine = self.engine(&rig);
            let found = engine.together(&probes, &[]);
            assert_same(&alone, &found, "after preemptions");
            let preempted = found.iter().filter(|o| o.usage.preemptions > 0).count();
            let c = engine.status().counters;
            println!("{preempted} probes preempted, {} preemptions", c.preemptions);
            assert!(preempted > 1 && c.preemptions > 1, "{c:?}");
        }
    }

    fn threads_and_lanes(&self) {
        self.compare(&Rig { threads: 1, ..Rig::default() }, "on one thread");
        self.compare(&Rig::default().with(|k| k.lanes = 1), "on one lane");
    }

    /// Each instruction set that this CPU has; `probes_max` bounds what the portable one runs.
    fn instruction_sets(&self, kinds: &[KernelKind], portable_prompt_max: usize) {
        for isa in Isa::ALL {
            if !isa.is_available() {
                println!("this CPU lacks {isa}: not compared");
                continue;
            }
            let short = |p: &&Probe| isa != Isa::Portable || p.prompt.len() <= portable_prompt_max;
            let probes: Vec<Probe> = self.probes.iter().filter(short).cloned().collect();
            let alone: Vec<Outcome> = self.alone[..probes.len()].to_vec();
            let before = Isa::ALL.map(|i| KernelKind::ALL.map(|k| counters().get(k, i)));
            let mut engine = self.engine(&Rig { isa: isa.name(), ..Rig::default() });
            assert_same(&alone, &engine.together(&probes, &[]), isa.name());
            for (other, before) in Isa::ALL.iter().zip(before) {
                for (kind, before) in KernelKind::ALL.into_iter().zip(before) {
                    let ran = counters().get(kind, *other) - before;
                    let expected = *other == isa && kinds.contains(&kind);
                    assert_eq!(ran > 20, expected, "{kind:?} ran {ran} times on {other}");
                    assert!(expected || ran == 0, "{kind:?} ran {ran} times on {other}");
                }
            }
        }
    }
}

use KernelKind::{Attention, Embed, GemmFloat, GemmQuantised, Norm, Quantise, Rope, Sample};

#[test]
fn smollm2_gives_the_same_bits_in_every_bucket_chunk_and_mode() {
    let subject = Subject::smollm2();
    subject.batches();
    subject.eager();
    subject.chunks();
}

#[test]
fn smollm2_gives_the_same_bits_after_hits_and_preemptions_and_under_audit() {
    let subject = Subject::smollm2();
    subject.prefix_hits();
    // 30 layers of keys and values, 3 heads of 64, f16, and the token ids.
    subject.preemptions(30 * 2 * 3 * 64 * 2 * 32 + 128);
    subject.audited();
}

#[test]
fn smollm2_gives_the_same_bits_on_every_instruction_set_thread_count_and_lane_count() {
    let subject = Subject::smollm2();
    subject.threads_and_lanes();
    subject.instruction_sets(&[GemmQuantised, Quantise, Norm, Rope, Attention, Embed, Sample], 17);
}

#[test]
fn a_float_model_gives_the_same_bits_however_it_runs() {
    let subject = Subject::tiny();
    subject.batches();
    subject.eager();
    subject.chunks();
    subject.prefix_hits();
    // 2 layers of keys and values, 2 heads, f32, and the token ids.
    subject.preemptions(2 * 2 * 2 * 32 * 4 * 32 + 128);
    subject.audited();
    subject.threads_and_lanes();
    subject.instruction_sets(&[GemmFloat, Norm, Rope, Attention, Embed, Sample], 700);
}

/// Window, compressed rows, index keys and compressor state are all pages, so a chunk, a cached
/// prefix or a resumed sequence finds each of them or none.
#[test]
fn deepseek_v4_gives_the_same_bits_however_it_runs() {
    let subject = Subject::deepseek_v4();
    subject.batches();
    subject.eager();
    subject.chunks();
    subject.prefix_hits();
    // Window rows of 7 layers; of 3 layers rows and index keys of 4 tokens and their state; of 2
    // layers rows of 128 tokens and their state; the token ids.
    let (c4, c128) = (2048 + 32768 + 1024 + 16384, 256 + 16384);
    subject.preemptions(7 * 32 * 64 * 4 + 3 * c4 + 2 * c128 + 128);
    subject.audited();
    subject.threads_and_lanes();
    subject.instruction_sets(&[GemmFloat, Norm, Rope, Attention, Embed, Sample], 17);
}
