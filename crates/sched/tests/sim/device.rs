//! A device that takes nothing on trust. It has memory for KV rows and last tokens, runs its steps
//! in order but as late as it is allowed to, sees freed pages overwritten at once, and checks on
//! every read of attention that it finds exactly the reader's own history.

use crate::oracle::{Truth, Truths, row_of, sample};
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::{PageId, Token};
use lockstep_pool::{OwnTables, PageState, Pool, StepLease};
use lockstep_sched::{Batch, Outcome, Scheduler, SeqRow, TokenSource};
use std::collections::{HashMap, VecDeque};

const POISON: u64 = 0;
/// What the tables hold before they are written, as buffers do that the step before has used.
const STALE: u32 = 0xdead_beef;
const PAGE: usize = PAGE_TOKENS as usize;

#[derive(Debug)]
struct Launched {
    tables: OwnTables,
    batch: Batch,
    /// By token row; `None` where it comes from `last_token`.
    literals: Vec<Option<Token>>,
    lease: StepLease,
    /// Once it has run: the row that each logit row saw.
    logits: Option<Vec<u64>>,
    sampled: Vec<Token>,
}

#[derive(Debug)]
pub struct Device {
    stride: usize,
    kv: Vec<u64>,
    last_token: Vec<Token>,
    steps: VecDeque<Launched>,
    /// Reads of attention that were checked, and steps by kind.
    pub reads: u64,
    pub last_token_rows: u64,
}

/// What a step brings back.
pub struct Returned {
    pub lease: StepLease,
    pub batch: Batch,
    /// By logit row: the row of the history that it saw.
    pub logits: Vec<u64>,
    /// By sequence row.
    pub sampled: Vec<Option<Token>>,
}

impl Device {
    pub fn new(pool: &Pool) -> Device {
        let config = pool.config();
        Device {
            stride: config.pages_per_seq_max as usize,
            kv: vec![POISON; config.pages as usize * PAGE],
            last_token: vec![Token(u32::MAX); config.slots as usize + 1],
            steps: VecDeque::new(),
            reads: 0,
            last_token_rows: 0,
        }
    }

    pub fn in_flight(&self) -> usize {
        self.steps.len()
    }

    /// A page that nobody holds belongs to whoever wants it: here, to somebody who scribbles.
    pub fn poison_free_pages(&mut self, pool: &Pool) {
        for page in 1..pool.config().pages {
            if pool.page_state(PageId(page)) == PageState::Free {
                self.kv[page as usize * PAGE..][..PAGE].fill(POISON);
            }
        }
    }

    /// Takes the step that the scheduler has just planned.
    pub fn launch(&mut self, sched: &mut Scheduler, batch: Batch) {
        let literals = batch
            .rows
            .iter()
            .flat_map(|row| match row.source {
                TokenSource::Literal => {
                    let tokens = sched.literal(row);
                    assert_eq!(tokens.len(), row.plan.n_tokens as usize, "a literal is known");
                    tokens.iter().copied().map(Some).collect::<Vec<_>>()
                }
                TokenSource::LastToken => {
                    assert_eq!(row.plan.n_tokens, 1, "one token is sampled a step");
                    vec![None]
                }
            })
            .collect();
        let mut tables = OwnTables::filled(batch.bucket, self.stride as u32, STALE);
        let lease = sched.lease(&mut tables.view()).expect("a planned step is leased");
        sched.verify_tables(&lease, &mut tables.view()).expect("tables are as just written");
        assert_eq!(lease.bucket(), batch.bucket);
        assert_eq!(lease.live(), batch.live);
        check_padding(&tables, &batch, self.stride);
        let sampled = Vec::new();
        self.steps.push_back(Launched { tables, batch, literals, lease, logits: None, sampled });
    }

    /// Runs the oldest `n` steps that have not run yet.
    pub fn run(&mut self, n: usize, truth: &Truths) {
        for i in 0..n.min(self.steps.len()) {
            if self.steps[i].logits.is_none() {
                self.run_step(i, truth);
            }
        }
    }

    fn run_step(&mut self, at: usize, truth: &Truths) {
        let Launched { tables, batch, literals, .. } = &self.steps[at];
        let t = batch.bucket.tokens as usize;
        let mut out = vec![POISON; t];
        let mut written: HashMap<usize, u32> = HashMap::new();
        let mut token = 0;
        for (s, row) in batch.rows.iter().enumerate() {
            let Truth { adapter, alone, .. } = &truth[&row.plan.request];
            let table = &tables.block_tables[s * self.stride..][..self.stride];
            for i in 0..row.plan.n_tokens {
                let position = row.plan.first_position.0 + i;
                assert_eq!(token, (row.token_row + i) as usize);
                assert_eq!(tables.positions[token], position);
                assert_eq!(tables.seq_of_token[token], s as u32);
                assert_eq!(tables.slots[s], row.plan.slot.0);
                let id = literals[token].unwrap_or_else(|| {
                    self.last_token_rows += 1;
                    self.last_token[row.plan.slot.index()]
                });
                assert_eq!(id, alone.tokens[position as usize], "token of {:?}", row.plan);
                let read =
                    |p: u32| self.kv[table[p as usize / PAGE] as usize * PAGE + p as usize % PAGE];
                for p in 0..position {
                    assert_eq!(
                        read(p),
                        alone.rows[p as usize],
                        "position {p} as read by {:?} at {position}",
                        row.plan
                    );
                    self.reads += 1;
                }
                let before = if position == 0 { 0 } else { read(position - 1) };
                let value = row_of(before, *adapter, id, position);
                let slot = tables.write_slots[token] as usize;
                assert_eq!(slot / PAGE, table[position as usize / PAGE] as usize);
                assert!(slot >= PAGE, "a live row writes to the reserved page");
                assert!(written.insert(slot, s as u32).is_none(), "a write slot is given twice");
                self.kv[slot] = value;
                out[token] = value;
                token += 1;
            }
        }
        // No row reads a page that another row of the step writes.
        for (s, row) in batch.rows.iter().enumerate() {
            let pages = (row.plan.end() as usize).div_ceil(PAGE);
            for &page in &tables.block_tables[s * self.stride..][..pages] {
                for slot in page as usize * PAGE..(page as usize + 1) * PAGE {
                    assert!(written.get(&slot).is_none_or(|w| *w == s as u32), "a foreign write");
                }
            }
        }
        for &slot in &tables.write_slots[token..] {
            self.kv[slot as usize] = 0xbad;
        }
        self.finish_step(at, &out, truth);
    }

    /// Logits and sampling, the last ops of the plan.
    fn finish_step(&mut self, at: usize, out: &[u64], truth: &Truths) {
        let Launched { tables, batch, .. } = &self.steps[at];
        let logits: Vec<u64> = tables.logit_tokens.iter().map(|&t| out[t as usize]).collect();
        let mut sampled = vec![Token(u32::MAX); logits.len()];
        let mut r = 0;
        let mut stored = 0;
        for row in &batch.rows {
            let Truth { seed, alone, .. } = &truth[&row.plan.request];
            for i in 0..row.plan.logit_rows() {
                let position = row.plan.end() - row.plan.logit_rows() + i;
                assert_eq!(logits[r], alone.rows[position as usize], "logits of {:?}", row.plan);
                let last = i + 1 == row.plan.logit_rows();
                let slot = if last && row.plan.samples { row.plan.slot.0 } else { 0 };
                assert_eq!(tables.logit_slots[r], slot);
                if slot != 0 {
                    sampled[r] = sample(logits[r], *seed);
                    self.last_token[slot as usize] = sampled[r];
                    stored += 1;
                }
                r += 1;
            }
        }
        assert_eq!(stored, batch.rows.iter().filter(|r| r.plan.samples).count());
        let step = &mut self.steps[at];
        (step.logits, step.sampled) = (Some(logits), sampled);
    }

    /// The oldest step's results; it has run by now at the latest.
    pub fn collect(&mut self, truth: &Truths) -> Option<Returned> {
        self.run(1, truth);
        let step = self.steps.pop_front()?;
        let logits = step.logits.expect("it has run");
        let last = |row: &SeqRow| (row.logit_row + row.plan.logit_rows() - 1) as usize;
        let sample = |row: &SeqRow| row.plan.samples.then(|| step.sampled[last(row)]);
        let sampled = step.batch.rows.iter().map(sample).collect();
        Some(Returned { lease: step.lease, batch: step.batch, logits, sampled })
    }
}

/// Padding touches the reserved page and the reserved slot only, and every entry is in range.
fn check_padding(tables: &OwnTables, batch: &Batch, stride: usize) {
    let (bucket, live) = (batch.bucket, batch.live);
    let (t, s) = (bucket.tokens, bucket.seqs);
    for i in live.tokens as usize..t as usize {
        assert!(tables.write_slots[i] < PAGE_TOKENS);
        assert_eq!(tables.positions[i], 0);
        let seq = tables.seq_of_token[i];
        assert!(seq < s && (seq >= live.seqs || live.seqs == s));
    }
    for i in live.seqs as usize..s as usize {
        assert_eq!(tables.slots[i], 0);
        assert!(tables.block_tables[i * stride..][..stride].iter().all(|p| *p == 0));
    }
    if live.seqs < s {
        let counted: u32 = tables.token_counts.iter().sum();
        assert_eq!(counted, t, "every token row belongs to one sequence row");
    }
    for (i, row) in batch.rows.iter().enumerate() {
        assert_eq!(tables.kv_lens[i], row.plan.end());
        assert_eq!(tables.token_counts[i], row.plan.n_tokens);
        let table = &tables.block_tables[i * stride..][..stride];
        let pages = table.iter().rposition(|p| *p != 0).map_or(0, |last| last + 1);
        assert!(table[..pages].iter().all(|p| *p != 0 && *p != 0xdead_beef));
        assert!(pages >= (row.plan.end() as usize).div_ceil(PAGE));
    }
    assert!(tables.logit_tokens.iter().all(|x| *x < t));
    assert!(tables.logit_slots[live.logit_rows as usize..].iter().all(|x| *x == 0));
    assert!(tables.first_tokens.iter().all(|x| *x < t));
}

/// The sample that a row of the history gives; the same function as the oracle's.
pub fn outcome(token: Option<Token>, held: bool) -> Outcome {
    match (token, held) {
        (None, _) => Outcome::Computed,
        (Some(t), false) => Outcome::Sampled(t),
        (Some(t), true) => Outcome::SampledHeld(t),
    }
}
