//! Canary steps: a bucket shows that it gives the same bits replayed and run op by op, in an arena
//! that was full of a pattern and in one that was not, with as many rows as it holds and with one.
//!
//! They run between two serving steps, one at a time, and with no more rows than there is time for
//! ([`Core::canary_cap`]). Their sequences have slots of their own and pages leased for them alone,
//! and grow by a row a bucket, so that later buckets read KV that earlier ones wrote.
//!
//! A staged generation's buckets are verified for its builder ([`crate::yard`]); those of the first
//! one while it serves ([`crate::first`]).

use crate::canary_run::{CanaryRun, differing_bits, slot_state};
use crate::core::Core;
use crate::generation::Bucket;
use lockstep_device::{AwayArena, Mode};
use lockstep_flow::generation::BucketEvidence;
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::{BucketKey, Micros, Position, RequestId, SlotId};
use lockstep_pool::{Logits, RowPlan};
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

/// Sequences of canary steps, at most; the pool has slots for so many beside the running ones.
pub const CANARY_SEQS_MAX: u32 = 64;
/// Live rows of a canary step between two serving steps, where time is short: two, so that one has
/// a neighbour.
const ROWS_BESIDE: u32 = 2;
/// The same while nothing runs, where nobody has asked for a generation; and of a bucket that has no
/// capture to compare with.
const ROWS_ALONE: u32 = 8;
/// How long a canary step may take between two serving steps.
const BESIDE: Micros = Micros::from_millis(40);
/// How long it may take while nothing runs: what comes meanwhile waits for it.
const ALONE: Micros = Micros::from_millis(250);
/// The same two where nobody has asked for a generation.
const UNASKED_BESIDE: Micros = Micros::from_millis(20);
const UNASKED_ALONE: Micros = Micros::from_millis(100);
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

/// With how many live rows a bucket's canary steps run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fullness {
    /// As many as the bucket holds, and time allows.
    Full,
    /// One token of one sequence: all other rows are padding.
    One,
}

/// The sets of rows that a bucket is shown, in this order: leftovers of the full one are what lies
/// in the padded rows of the other.
fn sets(key: BucketKey) -> &'static [Fullness] {
    match key.tokens {
        1 => &[Fullness::Full],
        _ => &[Fullness::Full, Fullness::One],
    }
}

/// Whose bucket it is, and who wants to know.
pub enum Asker {
    /// The builder of the staged generation.
    Builder(Sender<CanaryAnswer>),
    /// The live generation, which came up without canary steps.
    Live,
}

/// A bucket's canary steps under way.
pub struct Job {
    pub bucket: usize,
    rows: Vec<RowPlan>,
    set: usize,
    phase: usize,
    waits: u32,
    pub evidence: BucketEvidence,
    pub asker: Asker,
}

impl Job {
    /// Nothing of it has run yet.
    pub fn new(bucket: usize, evidence: BucketEvidence, asker: Asker) -> Job {
        Job { bucket, rows: Vec::new(), set: 0, phase: 0, waits: 0, evidence, asker }
    }
}

/// The canary's working memory while a generation is being verified.
#[derive(Default)]
pub struct CanaryState {
    seqs: Vec<Seq>,
    pub job: Option<Job>,
    /// What a row of the last canary step took.
    row: Micros,
    /// Slot state of the rows, before their first run.
    slots: Vec<u8>,
    kept: Vec<u8>,
    again: Vec<u8>,
}

/// How the canary steps of a set of rows run; the first one of a bucket begins with a poisoned arena.
fn phases(mode: Mode, set: usize) -> &'static [Mode] {
    match (mode, set) {
        (Mode::Captured, 0) => &[Mode::Captured, Mode::Eager, Mode::Captured],
        (Mode::Captured, _) => &[Mode::Captured, Mode::Eager],
        (Mode::Eager, _) => &[Mode::Eager, Mode::Eager],
    }
}

impl Core {
    /// Takes a bucket to verify.
    pub fn begin_canary(&mut self, canary: Canary) {
        let Canary { number, bucket, before, arena, reply } = canary;
        self.put_off_own_canary();
        let staged = self.staged.as_ref().is_some_and(|g| g.number() == number);
        if !staged || self.canary.job.is_some() {
            return;
        }
        if let Err(e) = self.device.install(arena) {
            // Only an arena of another device is refused: nothing of ours is lost with it.
            debug_assert!(false, "{e}");
            return;
        }
        self.canary.job = Some(Job::new(bucket, before, Asker::Builder(reply)));
    }

    /// The bucket of a job; none where its generation has gone meanwhile.
    fn canary_bucket(&self, job: &Job) -> Option<&Bucket> {
        match job.asker {
            Asker::Builder(_) => self.staged.as_ref().map(|g| &g.buckets[job.bucket]),
            Asker::Live => Some(&self.generation.buckets[job.bucket]),
        }
    }

    /// True where a canary step is to run now.
    pub fn canary_is_due(&self) -> bool {
        match self.canary.job.as_ref().map(|job| &job.asker) {
            None => false,
            Some(Asker::Builder(_)) => true,
            Some(Asker::Live) => self.own_may_step(),
        }
    }

    /// Runs one canary step, where one is wanted and no other step is on its way. True where it did.
    pub fn canary_turn(&mut self) -> bool {
        self.begin_own_canary();
        if !self.canary_is_due() || !self.flights.is_empty() {
            return false;
        }
        let Some(mut job) = self.canary.job.take() else { return false };
        if job.rows.is_empty() && !self.take_rows(&mut job) {
            self.no_rows(job);
            return false;
        }
        let number = match (&job.asker, &self.staged) {
            (Asker::Builder(_), Some(staged)) => staged.number(),
            _ => self.generation.number(),
        };
        let began = self.clock.now();
        let failure = self.canary_step(&mut job).err();
        self.counters.canary_steps += 1;
        let took = self.clock.now().since(began);
        let rows: u32 = job.rows.iter().map(|r| r.n_tokens).sum();
        self.canary.row = Micros(took.0 / u64::from(rows.max(1)));
        let (mode, sets) = match self.canary_bucket(&job) {
            Some(b) => (b.mode, sets(b.key).len()),
            None => (Mode::Eager, 0),
        };
        let set_done = job.phase == phases(mode, job.set).len();
        if failure.is_some() || set_done && job.set + 1 >= sets {
            self.end_canary(job, failure);
        } else {
            if set_done {
                self.move_on(&job.rows);
                (job.rows, job.set, job.phase) = (Vec::new(), job.set + 1, 0);
            }
            self.canary.job = Some(job);
        }
        self.own_stepped(took);
        self.spent.number = number;
        self.spent.canary(took);
        true
    }

    /// A set of rows found no page.
    fn no_rows(&mut self, mut job: Job) {
        // While steps are held nobody gives a page up by itself, and the pause would be for nothing:
        // the youngest that waits computes its tokens again.
        let held = self.held.is_some();
        if held && self.sched.preempt_youngest().expect("no step is planned while steps are held") {
            self.deliver(None);
            self.canary.job = Some(job);
            return;
        }
        job.waits += 1;
        let waited = job.waits > WAITS_MAX;
        let why = "the token pool has no page for a canary row: try again when less runs";
        match (&job.asker, waited) {
            (Asker::Builder(_), true) => self.end_canary(job, Some(why.into())),
            // The pool is somebody's who is served: the live generation tries again later.
            (Asker::Live, _) => self.own_canary_waits(job),
            (Asker::Builder(_), false) => self.canary.job = Some(job),
        }
    }

    /// Before a step is planned: what the canaries hold goes back where requests have too few
    /// pages. The steps of one set of rows are compared with each other, so that the rows of a
    /// builder's bucket stay until those have run: two more at most.
    pub fn yield_canary_pages(&mut self) {
        if self.canary.seqs.is_empty() || !self.sched.lacks_pages() {
            return;
        }
        match self.canary.job.take() {
            Some(job) if matches!(job.asker, Asker::Live) => self.own_canary_waits(job),
            Some(job) if !job.rows.is_empty() => self.canary.job = Some(job),
            job => {
                self.release_canaries();
                self.canary.job = job;
            }
        }
    }

    /// Chooses the rows of the job's next set. False where the pool has no page for them now.
    fn take_rows(&mut self, job: &mut Job) -> bool {
        let Some(bucket) = self.canary_bucket(job) else { return false };
        let bucket = bucket.clone();
        let fullness = sets(bucket.key)[job.set];
        let unasked = matches!(job.asker, Asker::Live);
        job.rows = self.canary_rows(&bucket, fullness, unasked);
        let rows: u32 = job.rows.iter().map(|r| r.n_tokens).sum();
        if rows == 0 {
            return false;
        }
        let e = &mut job.evidence;
        e.canaries += 1;
        e.canary_rows += rows;
        e.canary_rows_max = e.canary_rows_max.max(rows);
        e.canary_padding_max = e.canary_padding_max.max(bucket.key.tokens - rows);
        true
    }

    /// The canary sequences go on behind these rows.
    fn move_on(&mut self, rows: &[RowPlan]) {
        for (seq, row) in self.canary.seqs.iter_mut().zip(rows) {
            seq.position = row.end();
        }
    }

    fn end_canary(&mut self, job: Job, failure: Option<String>) {
        self.move_on(&job.rows);
        let Job { evidence, bucket, asker, .. } = job;
        let reply = match asker {
            Asker::Builder(reply) => reply,
            Asker::Live => return self.end_own_canary(bucket, evidence, failure),
        };
        let Some(staged) = &self.staged else { return };
        let arena = match self.device.lend(staged.arena) {
            Ok(arena) => arena,
            Err(_) => return,
        };
        let answer = CanaryAnswer { arena, evidence, failure };
        if let Err(unread) = reply.send(answer) {
            // Nobody builds it any more: what is left goes with the generation.
            drop(unread);
            self.discard_staged();
        }
    }

    /// Live rows that a canary step of a bucket may have now: as many as the serving step before
    /// it, where somebody has asked for it, and more where it is expected to end in time.
    fn canary_cap(&self, bucket: &Bucket, unasked: bool) -> u32 {
        let (least, time) = match (self.sched.is_idle() || self.held.is_some(), unasked) {
            (true, false) => (CANARY_SEQS_MAX, ALONE),
            (true, true) => (ROWS_ALONE, UNASKED_ALONE),
            (false, false) => (self.last_rows.max(ROWS_BESIDE), BESIDE),
            (false, true) => (ROWS_BESIDE, UNASKED_BESIDE),
        };
        let in_time = time.0.checked_div(self.canary.row.0).unwrap_or(0);
        let most = match bucket.mode {
            Mode::Captured => bucket.key.tokens,
            Mode::Eager => ROWS_ALONE.min(bucket.key.tokens),
        };
        least.max(u32::try_from(in_time).unwrap_or(u32::MAX)).min(most)
    }

    /// Rows of a bucket's canary steps; none where the pool has no page for them now.
    fn canary_rows(&mut self, bucket: &Bucket, fullness: Fullness, unasked: bool) -> Vec<RowPlan> {
        let key = bucket.key;
        let mut left = match fullness {
            Fullness::One => 1,
            Fullness::Full => self.canary_cap(bucket, unasked),
        };
        let slot_bytes: u64 = slot_state(bucket).map(|(_, bytes)| bytes).sum();
        let with_state = (SLOT_BYTES_MAX / slot_bytes.max(1)).max(1);
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
        // What runs has its pages first, and one more each; while steps are held it takes none.
        let theirs = match self.held {
            None => self.sched.pages_ahead() + self.sched.running(),
            Some(_) => 0,
        };
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
        if missing > 0 && pool.free_pages() + pool.cached_pages() < missing + theirs {
            return None;
        }
        let room = pool.extend(seq.slot, seq.request, end).ok()?;
        (room >= end).then_some(seq)
    }

    /// Pages that the canary sequences hold; they share none.
    pub fn canary_pages(&self) -> u32 {
        let pool = self.sched.pool();
        self.canary.seqs.iter().map(|s| pool.extent_tokens(s.slot) / PAGE_TOKENS).sum()
    }

    /// Gives slots and pages of the canary sequences back. A bucket of the live generation that was
    /// under way is taken again later.
    pub fn release_canaries(&mut self) {
        if let Some(Job { bucket, asker: Asker::Live, .. }) = self.canary.job.take() {
            self.first.again(bucket);
        }
        let pool = self.sched.pool_mut();
        for seq in self.canary.seqs.drain(..) {
            pool.release(seq.slot, seq.request).expect("a canary sequence holds its slot");
        }
        let CanaryState { slots, kept, again, .. } = &mut self.canary;
        (*slots, *kept, *again) = (Vec::new(), Vec::new(), Vec::new());
    }

    /// One canary step of the job, compared with its first one.
    fn canary_step(&mut self, job: &mut Job) -> Result<(), String> {
        let bucket = self.canary_bucket(job).ok_or("the staged generation is gone")?.clone();
        let mode = phases(bucket.mode, job.set)[job.phase];
        let first = job.set == 0 && job.phase == 0;
        let poisoned = first && self.is_poisoned(job)?;
        let run = CanaryRun { bucket: &bucket, rows: &job.rows, vocab: self.vocab };
        let slots = &mut self.canary.slots;
        let same_start = match job.phase {
            0 => run.keep_slots(self.device.as_ref(), slots),
            _ => run.put_slots_back(self.device.as_mut(), slots),
        };
        same_start.map_err(|e| e.to_string())?;
        let ran = run.step(self.device.as_mut(), &mut self.sched, mode, first);
        ran.map_err(|e| format!("a canary step of bucket {}: {e}", bucket.key))?;
        let e = &mut job.evidence;
        e.replays += u32::from(mode == Mode::Captured);
        e.eager_steps += u32::from(mode == Mode::Eager);
        e.poisoned_steps += u32::from(poisoned);
        e.manifest_checks += u32::from(first);
        self.shared.manifest_checks.fetch_add(u64::from(first), Ordering::Relaxed);
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
                    "bucket {}: {bits} of {} bits of a canary step of {} rows differ between {} and \
                     one {}",
                    bucket.key,
                    8 * kept.len(),
                    job.rows.iter().map(|r| r.n_tokens).sum::<u32>(),
                    match job.set {
                        0 => format!("one in an arena full of {:#x}", crate::yard::POISON),
                        _ => "one in the arena as a full step left it".into(),
                    },
                    if mode == Mode::Eager { "op by op" } else { "in the arena as it was left" },
                ));
            }
        }
        let more = job.phase < phases(bucket.mode, job.set).len();
        for row in job.rows.iter().filter(|_| more) {
            let (slot, request, to) = (row.slot, row.request, row.first_position.0);
            self.sched.pool_mut().rewind(slot, request, to).map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}
