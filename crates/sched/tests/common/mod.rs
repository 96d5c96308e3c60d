//! A host that drives the scheduler and samples what it is told to.
#![allow(dead_code, reason = "each test file uses a part of it")]

use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::{
    BucketKey, Micros, Refusal, Request, RequestId, SamplingParams, Ticket, Token,
};
use lockstep_pool::{OwnTables, Pool, PoolConfig, StepLease};
use lockstep_sched::{
    Batch, Ladder, Outcome, SchedConfig, Scheduler, SeqRow, Update, standard_buckets,
};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

pub const EOS: Token = Token(99);
pub const CONTEXT: u32 = 4096;
pub const CHUNK: u32 = 64;

/// A request whose prompt counts up from 0.
pub fn request(id: u64, prompt_tokens: u32, max_tokens: u32) -> Request {
    Request {
        id: RequestId(id),
        prompt: Arc::from((0..prompt_tokens).map(|i| Token(i % 90)).collect::<Vec<_>>()),
        params: SamplingParams { max_tokens, ..SamplingParams::default() },
        grammar: None,
        arrived: Micros(0),
        deadline: None,
        adapter: 0,
        use_prefix_cache: true,
    }
}

pub struct Host {
    pub sched: Scheduler,
    pub now: Micros,
    /// Of each bucket, made before the first step.
    tables: HashMap<BucketKey, OwnTables>,
    leases: VecDeque<StepLease>,
}

impl Host {
    /// Chunks of 64, echo buckets of 32, context 4096.
    pub fn new(running: u32, queued: u32, pages: u32, depth: u32) -> Host {
        let buckets = standard_buckets(running, CHUNK, 32);
        Host::with(buckets, |c| (c.queued_requests_max, c.depth) = (queued, depth), running, pages)
    }

    /// The same with other buckets, and knobs changed.
    pub fn with(
        buckets: Vec<BucketKey>,
        change: impl FnOnce(&mut SchedConfig),
        running: u32,
        pages: u32,
    ) -> Host {
        let mut config = SchedConfig {
            running_requests_max: running,
            queued_requests_max: 4,
            chunked_prefill_tokens: CHUNK,
            context_tokens_max: CONTEXT,
            vocab: 100,
            eos_tokens: vec![EOS],
            prefix_cache: true,
            drafts: 0,
            depth: 1,
            padding_max_percent: 25,
        };
        change(&mut config);
        let depth = config.depth;
        let stride = (CONTEXT / PAGE_TOKENS).min(pages - 1);
        let pool = Pool::new(PoolConfig {
            id: 0,
            pages,
            slots: running * depth,
            pages_per_seq_max: stride,
            rows_max: running,
            steps_in_flight_max: depth,
            sub_pools: vec![],
            slot_snapshots: false,
        })
        .unwrap();
        let tables = buckets.iter().map(|b| (*b, OwnTables::new(*b, stride))).collect();
        let ladder = Ladder::new(buckets, running).unwrap();
        let sched = Scheduler::new(config, ladder, pool).unwrap();
        Host { sched, now: Micros(0), tables, leases: VecDeque::with_capacity(4) }
    }

    pub fn submit(&mut self, request: &Request) -> Result<Ticket, Refusal> {
        self.sched.submit(request, self.now)
    }

    /// Has the planned step signed for.
    pub fn lease(&mut self) {
        let bucket = self.sched.planned_step().expect("a step is planned").bucket;
        let tables = self.tables.get_mut(&bucket).expect("a bucket of the ladder");
        let lease = self.sched.lease(&mut tables.view()).unwrap();
        self.leases.push_back(lease);
    }

    /// Has a canary step of these rows signed for, and ends it.
    pub fn canary(&mut self, rows: &[lockstep_sched::RowPlan]) {
        let tokens = rows.iter().map(|r| r.n_tokens).sum();
        let live = BucketKey { tokens, seqs: rows.len() as u32, logit_rows: rows.len() as u32 };
        let bucket = self.sched.ladder().pick(live).expect("a bucket");
        let tables = self.tables.get_mut(&bucket).expect("a bucket of the ladder");
        let lease = self.sched.lease_canary(rows, bucket, &mut tables.view()).unwrap();
        self.sched.end_canary(lease).unwrap();
    }

    /// Plans a step and has it signed for.
    pub fn launch(&mut self) -> Option<Batch> {
        let batch = self.sched.plan(self.now)?.clone();
        self.lease();
        Some(batch)
    }

    /// The oldest step comes back.
    pub fn finish(&mut self, outcomes: &[Outcome]) {
        let lease = self.leases.pop_front().expect("a step is in flight");
        self.sched.complete(lease, outcomes, self.now).unwrap();
        assert_eq!(self.sched.pool().audit().violation, None);
    }

    /// Plans, runs and completes one step.
    pub fn step(&mut self, sample: impl Fn(&SeqRow) -> Token) -> Option<Batch> {
        let batch = self.launch();
        if batch.is_none() && self.leases.is_empty() {
            return None;
        }
        if batch.is_none() || self.leases.len() as u32 == self.sched.config().depth {
            let of = |row: &SeqRow| {
                if row.plan.samples { Outcome::Sampled(sample(row)) } else { Outcome::Computed }
            };
            let outcomes: Vec<_> = self.sched.oldest_step().unwrap().rows.iter().map(of).collect();
            self.finish(&outcomes);
        }
        batch
    }

    /// Steps until nothing is left, and everything that was told meanwhile.
    pub fn run_to_idle(&mut self, sample: impl Fn(&SeqRow) -> Token) -> Vec<Update> {
        let mut updates = Vec::new();
        for _ in 0..100_000 {
            self.step(&sample);
            updates.extend(self.sched.drain_updates());
            if self.sched.is_idle() {
                return updates;
            }
        }
        panic!("requests do not end");
    }

    /// A step without any memory of its own: what the engine does.
    pub fn quiet_step(&mut self, outcomes: &mut Vec<Outcome>, sample: impl Fn(&SeqRow) -> Token) {
        if let Some(bucket) = self.sched.plan(self.now).map(|b| b.bucket) {
            let tables = self.tables.get_mut(&bucket).expect("a bucket of the ladder");
            let lease = self.sched.lease(&mut tables.view()).unwrap();
            self.leases.push_back(lease);
            if (self.leases.len() as u32) < self.sched.config().depth {
                return;
            }
        }
        let Some(lease) = self.leases.pop_front() else { return };
        outcomes.clear();
        for row in &self.sched.oldest_step().unwrap().rows {
            outcomes.push(if row.plan.samples {
                Outcome::Sampled(sample(row))
            } else {
                Outcome::Computed
            });
        }
        self.sched.complete(lease, outcomes, self.now).unwrap();
        self.sched.drain_updates().for_each(drop);
    }
}
