//! Canary steps: a staged bucket shows that it gives the same bits replayed and run op by op, in an
//! arena that was full of a pattern and in one that was not.
//!
//! They run between two serving steps, one at a time, and with no more rows than the serving step
//! before had. Their sequences have slots of their own and pages leased for them alone, and grow by
//! a row a bucket, so that later buckets read KV that earlier ones wrote.

use crate::canary_run::{CanaryRun, differing_bits, slot_state};
use crate::core::Core;
use lockstep_device::{AwayArena, Mode};
use lockstep_flow::generation::BucketEvidence;
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::{Position, RequestId, SlotId};
use lockstep_pool::{Logits, RowPlan};
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

/// Sequences of canary steps, at most; the pool has slots for so many beside the running ones.
pub const CANARY_SEQS_MAX: u32 = 64;
/// Live rows of a canary step, where the serving step before had fewer.
const ROWS_MIN: u32 = 8;
/// Their requests' numbers, which no client's request reaches.
const FIRST_REQUEST: u64 = u64::MAX - CANARY_SEQS_MAX as u64;
/// Bytes of slot state that the rows of a step may have in all: it is put back between its runs.
const SLOT_BYTES_MAX: u64 = 16 << 20;
/// Turns that a canary step waits for a page before the generation is given up.
const WAITS_MAX: u32 = 20_000;
/// Tokens of the rows of a step that is no decode step, in turn.
const CHUNKS: [u32; 4] = [1, 7, 2, 13];

/// One bucket to be verified, and the arena to do it in, full of a pattern.
pub struct Canary {
    /// The generation.
    pub number: u64,
    /// Which of its buckets.
    pub bucket: usize,
    /// What is known of the bucket.
    pub before: BucketEvidence,
    /// Its arena.
    pub arena: Box<dyn AwayArena>,
    /// Gets the answer.
    pub reply: Sender<CanaryAnswer>,
}

/// What came of it.
pub struct CanaryAnswer {
    /// The arena, lent again.
    pub arena: Box<dyn AwayArena>,
    /// What is known of the bucket now.
    pub evidence: BucketEvidence,
    /// Why the generation cannot be used.
    pub failure: Option<String>,
}

/// A sequence of canary steps.
#[derive(Clone, Copy)]
struct Seq {
    request: RequestId,
    slot: SlotId,
    /// Where its next row begins.
    position: u32,
}

/// A bucket's canary steps under way.
struct Job {
    bucket: usize,
    rows: Vec<RowPlan>,
    phase: usize,
    waits: u32,
    evidence: BucketEvidence,
    reply: Sender<CanaryAnswer>,
}

/// The canary's working memory while a generation is being verified.
#[derive(Default)]
pub struct CanaryState {
    seqs: Vec<Seq>,
    job: Option<Job>,
    /// Slot state of the rows, before their first run.
    slots: Vec<u8>,
    kept: Vec<u8>,
    again: Vec<u8>,
}

impl CanaryState {
    /// True where a canary step wants to run.
    pub fn has_work(&self) -> bool {
        self.job.is_some()
    }
}

/// How the canary steps of a bucket run; the first one begins with a poisoned arena.
fn phases(mode: Mode) -> &'static [Mode] {
    match mode {
        Mode::Captured => &[Mode::Captured, Mode::Eager, Mode::Captured],
        Mode::Eager => &[Mode::Eager, Mode::Eager],
    }
}

impl Core {
    /// Takes a bucket to verify.
    pub fn begin_canary(&mut self, canary: Canary) {
        let Canary { number, bucket, before, arena, reply } = canary;
        let staged = self.staged.as_ref().is_some_and(|g| g.number() == number);
        if !staged || self.canary.job.is_some() {
            return;
        }
        if let Err(e) = self.device.install(arena) {
            // Only an arena of another device is refused: nothing of ours is lost with it.
            debug_assert!(false, "{e}");
            return;
        }
        let rows = Vec::new();
        let job = Job { bucket, rows, phase: 0, waits: 0, evidence: before, reply };
        self.canary.job = Some(job);
    }

    /// Runs one canary step, where one is wanted. True where it did.
    pub fn canary_turn(&mut self) -> bool {
        let Some(mut job) = self.canary.job.take() else { return false };
        if job.rows.is_empty() {
            job.rows = self.canary_rows(job.bucket);
            job.evidence.canary_rows = job.rows.iter().map(|r| r.n_tokens).sum();
            if job.rows.is_empty() {
                job.waits += 1;
                if job.waits > WAITS_MAX {
                    let why = "the token pool has no page for a canary row: try again when less \
                               runs";
                    self.end_canary(job, Some(why.into()));
                } else {
                    self.canary.job = Some(job);
                }
                return false;
            }
        }
        let began = self.clock.now();
        let failure = self.canary_step(&mut job).err();
        self.counters.canary_steps += 1;
        let mode = self.staged.as_ref().map_or(Mode::Eager, |g| g.buckets[job.bucket].mode);
        let last = job.phase == phases(mode).len();
        if last || failure.is_some() {
            self.end_canary(job, failure);
        } else {
            self.canary.job = Some(job);
        }
        let took = self.clock.now().since(began);
        self.spent.canary(took);
        true
    }

    fn end_canary(&mut self, job: Job, failure: Option<String>) {
        let Some(staged) = &self.staged else { return };
        let arena = match self.device.lend(staged.arena) {
            Ok(arena) => arena,
            Err(_) => return,
        };
        let Job { evidence, reply, rows, .. } = job;
        for (seq, row) in self.canary.seqs.iter_mut().zip(&rows) {
            seq.position = row.end();
        }
        let answer = CanaryAnswer { arena, evidence, failure };
        if let Err(unread) = reply.send(answer) {
            // Nobody builds it any more: what is left goes with the generation.
            drop(unread);
            self.discard_staged();
        }
    }

    /// Rows of a bucket's canary steps; none where the pool has no page for them now.
    fn canary_rows(&mut self, bucket: usize) -> Vec<RowPlan> {
        let Some(staged) = &self.staged else { return Vec::new() };
        let key = staged.buckets[bucket].key;
        let eager = staged.buckets[bucket].mode == Mode::Eager;
        let cap = match (self.sched.is_idle(), eager) {
            (true, false) => CANARY_SEQS_MAX,
            (false, false) => self.last_rows.max(ROWS_MIN),
            // What runs op by op anyway has no capture to compare with.
            (_, true) => ROWS_MIN,
        };
        let slot_bytes: u64 = slot_state(&staged.buckets[bucket]).map(|(_, bytes)| bytes).sum();
        let with_state = (SLOT_BYTES_MAX / slot_bytes.max(1)).max(1);
        let mut left = cap.min(CANARY_SEQS_MAX).min(key.tokens);
        let seqs = u64::from(key.seqs.min(CANARY_SEQS_MAX)).min(with_state) as usize;
        let echo = !key.is_decode() && key.logit_rows >= key.tokens;
        let mut rows = Vec::new();
        while rows.len() < seqs && left > 0 {
            let i = rows.len();
            let chunk = if key.is_decode() { 1 } else { CHUNKS[i % CHUNKS.len()] };
            let n_tokens = chunk.min(left);
            let Some(seq) = self.canary_seq(i, n_tokens) else { break };
            left -= n_tokens;
            rows.push(RowPlan {
                request: seq.request,
                slot: seq.slot,
                first_position: Position(seq.position),
                n_tokens,
                logits: if echo { Logits::All } else { Logits::Last },
                samples: true,
            });
        }
        rows
    }

    /// The `i`th canary sequence, with room for `tokens` more.
    fn canary_seq(&mut self, i: usize, tokens: u32) -> Option<Seq> {
        let context = self.sched.config().context_tokens_max;
        let running = self.sched.running();
        let pool = self.sched.pool_mut();
        if let Some(seq) = self.canary.seqs.get_mut(i)
            && seq.position + tokens > context
        {
            pool.release(seq.slot, seq.request).ok()?;
            seq.slot = pool.begin(seq.request, 0, &[]).ok()?.slot;
            seq.position = 0;
        }
        if i == self.canary.seqs.len() {
            let request = RequestId(FIRST_REQUEST + i as u64);
            let slot = pool.begin(request, 0, &[]).ok()?.slot;
            self.canary.seqs.push(Seq { request, slot, position: 0 });
        }
        let seq = self.canary.seqs[i];
        let end = seq.position + tokens;
        let missing = end.saturating_sub(pool.extent_tokens(seq.slot)).div_ceil(PAGE_TOKENS);
        // What runs may need a page each at its next step; a canary never takes those.
        if missing > 0 && pool.free_pages() + pool.cached_pages() < missing + running {
            return None;
        }
        let room = pool.extend(seq.slot, seq.request, end).ok()?;
        (room >= end).then_some(seq)
    }

    /// Gives slots and pages of the canary sequences back.
    pub fn release_canaries(&mut self) {
        self.canary.job = None;
        let pool = self.sched.pool_mut();
        for seq in self.canary.seqs.drain(..) {
            pool.release(seq.slot, seq.request).expect("a canary sequence holds its slot");
        }
        let CanaryState { slots, kept, again, .. } = &mut self.canary;
        (*slots, *kept, *again) = (Vec::new(), Vec::new(), Vec::new());
    }

    /// One canary step of the job, compared with its first one.
    fn canary_step(&mut self, job: &mut Job) -> Result<(), String> {
        let staged = self.staged.as_ref().ok_or("the staged generation is gone")?;
        let bucket = staged.buckets[job.bucket].clone();
        let mode = phases(bucket.mode)[job.phase];
        let run = CanaryRun { bucket: &bucket, rows: &job.rows, vocab: self.vocab };
        let slots = &mut self.canary.slots;
        let same_start = match job.phase {
            0 => run.keep_slots(self.device.as_ref(), slots),
            _ => run.put_slots_back(self.device.as_mut(), slots),
        };
        same_start.map_err(|e| e.to_string())?;
        let ran = run.step(self.device.as_mut(), &mut self.sched, mode, job.phase == 0);
        ran.map_err(|e| format!("a canary step of bucket {}: {e}", bucket.key))?;
        let e = &mut job.evidence;
        e.replays += u32::from(mode == Mode::Captured);
        e.eager_steps += u32::from(mode == Mode::Eager);
        e.poisoned_steps += u32::from(job.phase == 0);
        e.manifest_checks += u32::from(job.phase == 0);
        self.shared.manifest_checks.fetch_add(u64::from(job.phase == 0), Ordering::Relaxed);
        let CanaryState { kept, again, .. } = &mut self.canary;
        let to = if job.phase == 0 { &mut *kept } else { &mut *again };
        run.look(self.device.as_ref(), to).map_err(|e| e.to_string())?;
        job.phase += 1;
        if job.phase > 1 {
            e.compared_bits += 8 * kept.len() as u64;
            let bits = differing_bits(kept, again);
            e.differing_bits += bits;
            if bits > 0 {
                return Err(format!(
                    "bucket {}: {bits} of {} bits of a canary step differ between a replay in an \
                     arena full of {:#x} and one {}",
                    bucket.key,
                    8 * kept.len(),
                    crate::yard::POISON,
                    if mode == Mode::Eager { "op by op" } else { "in the arena as it was left" },
                ));
            }
        }
        let more = job.phase < phases(bucket.mode).len();
        for row in job.rows.iter().filter(|_| more) {
            let (slot, request, to) = (row.slot, row.request, row.first_position.0);
            self.sched.pool_mut().rewind(slot, request, to).map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}
