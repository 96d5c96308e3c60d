//! The world around scheduler and pool: clients, a clock, a device, and everybody's expectations.

use crate::device::{Device, outcome};
use crate::oracle::{EOS, GRAMMAR_TOKENS, Truth, Truths, VOCAB, alone};
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::{
    Failure, MaskError, Micros, Refusal, Request, RequestId, SamplingParams, Seed, Token, TokenMask,
};
use lockstep_pool::{Pool, PoolConfig, SubPool};
use lockstep_sched::{
    Ladder, Logits, SchedConfig, Scheduler, TokenSource, Update, standard_buckets,
};
use std::collections::HashMap;
use std::sync::Arc;

/// A grammar that the scheduler must wait for; the world plays its part.
#[derive(Debug)]
struct Grammar;

impl TokenMask for Grammar {
    fn fill(&mut self, words: &mut [u32]) -> Result<(), MaskError> {
        words.fill(u32::MAX);
        Ok(())
    }

    fn accept(&mut self, _: Token) -> Result<(), MaskError> {
        Ok(())
    }

    fn is_complete(&mut self) -> bool {
        false
    }
}

/// The sizes of a world.
#[derive(Clone, Debug)]
pub struct Sizes {
    pub pages: u32,
    pub running: u32,
    pub queued: u32,
    pub spare_slots: u32,
    pub chunk: u32,
    pub depth: u32,
    pub context: u32,
    pub prefix_cache: bool,
    pub padding_max_percent: u32,
}

/// What a client asks for.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Which of a few base texts the prompt starts with, and how much of it.
    pub base: u8,
    pub base_tokens: u32,
    /// Tokens of its own after that.
    pub own_tokens: u32,
    pub max_tokens: u32,
    pub min_tokens: u32,
    pub seed: u64,
    pub adapter: u32,
    pub echo: bool,
    pub grammar: bool,
    pub ignore_eos: bool,
    pub stops: bool,
    pub uses_cache: bool,
    pub deadline_ms: Option<u64>,
}

#[derive(Default, Debug)]
struct Seen {
    started: bool,
    output: Vec<Token>,
    prompt_logits: u32,
    ended: bool,
}

pub struct World {
    pub sched: Scheduler,
    pub device: Device,
    pub truth: Truths,
    pub now: Micros,
    seen: HashMap<RequestId, Seen>,
    aborted: HashMap<RequestId, Failure>,
    /// Whose grammar is at work, when it is done, and whether only the end may follow.
    held: Vec<(RequestId, u64, bool)>,
    launches: u64,
    next: u64,
    pub refused: u64,
}

impl World {
    pub fn new(sizes: &Sizes) -> World {
        let slots = sizes.running + sizes.spare_slots;
        let pool = Pool::new(PoolConfig {
            id: 3,
            pages: sizes.pages,
            slots,
            pages_per_seq_max: sizes.context.div_ceil(PAGE_TOKENS).min(sizes.pages - 1),
            rows_max: sizes.running,
            steps_in_flight_max: sizes.depth,
            sub_pools: vec![SubPool { name: "k.0".into(), bytes_per_page: 64 }],
            slot_snapshots: false,
        })
        .unwrap();
        let buckets = standard_buckets(sizes.running, sizes.chunk, sizes.chunk.min(48));
        let ladder = Ladder::new(buckets, sizes.running).unwrap();
        let config = SchedConfig {
            running_requests_max: sizes.running,
            queued_requests_max: sizes.queued,
            chunked_prefill_tokens: sizes.chunk,
            context_tokens_max: sizes.context,
            vocab: VOCAB,
            eos_tokens: vec![EOS],
            prefix_cache: sizes.prefix_cache,
            drafts: 0,
            depth: sizes.depth,
            padding_max_percent: sizes.padding_max_percent,
        };
        let device = Device::new(&pool);
        World {
            sched: Scheduler::new(config, ladder, pool).unwrap(),
            device,
            truth: HashMap::new(),
            now: Micros(0),
            seen: HashMap::new(),
            aborted: HashMap::new(),
            held: Vec::new(),
            launches: 0,
            next: 1,
            refused: 0,
        }
    }

    fn request(&self, ask: &Ask) -> Request {
        let base = |i: u32| Token((i * i * 7 + i * 3 + u32::from(ask.base) * 11) % 59);
        let own = |i: u32| Token((i * 5 + ask.seed as u32 * 13 + 1) % 59);
        let prompt: Vec<Token> =
            (0..ask.base_tokens).map(base).chain((0..ask.own_tokens).map(own)).collect();
        Request {
            id: RequestId(self.next),
            prompt: Arc::from(prompt),
            params: SamplingParams {
                seed: Seed(ask.seed),
                max_tokens: ask.max_tokens,
                min_tokens: ask.min_tokens,
                ignore_eos: ask.ignore_eos,
                prompt_logprobs: ask.echo,
                stop_tokens: if ask.stops { vec![Token(5), Token(9)] } else { vec![] },
                ..SamplingParams::default()
            },
            grammar: ask.grammar.then(|| Box::new(Grammar) as Box<dyn TokenMask>),
            arrived: self.now,
            deadline: ask.deadline_ms.map(|ms| Micros(self.now.0 + ms * 1000)),
            adapter: ask.adapter,
            use_prefix_cache: ask.uses_cache,
        }
    }

    /// Submits; a refusal must be one of the reasons that apply.
    pub fn submit(&mut self, ask: &Ask) -> Option<RequestId> {
        let request = self.request(ask);
        self.next += 1;
        let places = self.sched.places();
        match self.sched.submit(&request, self.now) {
            Ok(ticket) => {
                assert_eq!(ticket.id, request.id);
                let truth = Truth {
                    adapter: request.adapter,
                    seed: request.params.seed.0,
                    echo: request.params.prompt_logprobs,
                    grammar: request.grammar.is_some(),
                    prompt_tokens: request.prompt.len() as u32,
                    alone: alone(&request, self.sched.config().depth),
                };
                self.truth.insert(request.id, truth);
                self.seen.insert(request.id, Seen::default());
                Some(request.id)
            }
            Err(refusal) => {
                self.refused += 1;
                let total = request.prompt.len() as u32 + ask.max_tokens;
                match refusal {
                    Refusal::QueueFull { retry_after_s, .. } => {
                        assert_eq!(places, 0);
                        assert!((1..=60).contains(&retry_after_s));
                    }
                    Refusal::EmptyPrompt => assert!(request.prompt.is_empty()),
                    Refusal::ContextTooLong { .. } => {
                        assert!(total > self.sched.config().context_tokens_max);
                    }
                    Refusal::PoolTooSmall { needed_tokens, capacity_tokens } => {
                        assert_eq!(needed_tokens, total - 1);
                        assert!(needed_tokens > capacity_tokens);
                    }
                    other => panic!("refused for no reason: {other}"),
                }
                None
            }
        }
    }

    /// Cancels the `n`th of the requests that are live.
    pub fn cancel(&mut self, n: usize) {
        let mut live: Vec<_> = self.seen.iter().filter(|s| !s.1.ended).map(|s| *s.0).collect();
        live.sort_unstable();
        if live.is_empty() {
            return;
        }
        let id = live[n % live.len()];
        let was_live = self.sched.cancel(id);
        if was_live {
            self.aborted.insert(id, Failure::Cancelled);
            assert!(!self.sched.cancel(id), "a cancelled request is gone");
        }
        self.drain(&[]);
    }

    /// Grammars that are done say what they found; all of them where nothing else can happen.
    fn answer_held(&mut self, all: bool) -> bool {
        let due = |h: &(RequestId, u64, bool)| all || h.1 <= self.launches;
        let (done, rest) = std::mem::take(&mut self.held).into_iter().partition(due);
        let done: Vec<_> = done;
        self.held = rest;
        for (request, _, complete) in &done {
            self.sched.settle(*request, *complete, self.now);
        }
        self.drain(&[]);
        !done.is_empty()
    }

    /// Plans and launches a step; false where there was nothing to do.
    pub fn launch(&mut self) -> bool {
        self.launch_without(None)
    }

    /// As [`World::launch`], and a request is cancelled in between.
    pub fn launch_without(&mut self, cancelled: Option<usize>) -> bool {
        self.launches += 1;
        self.answer_held(false);
        let Some(mut batch) = self.sched.plan(self.now).cloned() else {
            self.drain(&[]);
            return self.sched.steps_in_flight() == 0 && self.answer_held(true);
        };
        if let Some(n) = cancelled {
            self.cancel(n);
            batch = self.sched.planned_step().expect("it is still planned").clone();
        }
        let config = self.sched.config();
        let rows = &batch.rows;
        assert!(rows.len() as u32 <= config.running_requests_max);
        assert!(batch.bucket.holds(batch.live.tokens, batch.live.seqs, batch.live.logit_rows));
        let prefill = &rows[batch.decode_rows as usize..];
        let tokens: u32 = prefill.iter().map(|r| r.plan.n_tokens).sum();
        assert!(tokens <= config.chunked_prefill_tokens);
        assert!(rows[..batch.decode_rows as usize].iter().all(|r| r.plan.n_tokens == 1));
        for row in rows {
            let truth = &self.truth[&row.plan.request];
            if truth.grammar || config.depth == 1 {
                assert_eq!(row.source, TokenSource::Literal, "the host has seen every token");
            }
            assert!(truth.echo || row.plan.logits != Logits::All);
            assert!(
                !row.plan.samples || row.output_index < truth.alone.tokens.len() as u32,
                "no row beyond what the oracle knows"
            );
        }
        self.device.launch(&mut self.sched, batch);
        self.drain(&[]);
        self.settle();
        true
    }

    /// Runs the oldest `n` steps on the device, which the host does not notice.
    pub fn run(&mut self, n: usize) {
        self.device.run(n, &self.truth);
    }

    /// Completes the oldest step.
    pub fn complete(&mut self) -> bool {
        let Some(back) = self.device.collect(&self.truth) else { return false };
        assert_eq!(self.sched.oldest_step().map(|b| &b.rows), Some(&back.batch.rows));
        let mut outcomes = Vec::new();
        for (row, token) in back.batch.rows.iter().zip(&back.sampled) {
            let request = row.plan.request;
            let held = self.truth[&request].grammar;
            if held && token.is_some() && self.sched.is_live(row) {
                let after = self.launches + (request.0 + u64::from(row.output_index)) % 4;
                self.held.push((request, after, row.output_index + 1 == GRAMMAR_TOKENS));
            }
            outcomes.push(outcome(*token, held));
        }
        self.sched.complete(back.lease, &outcomes, self.now).unwrap();
        self.drain(&back.logits);
        self.settle();
        true
    }

    /// `n` steps, as many in flight as may be.
    pub fn serve(&mut self, n: u32) {
        for _ in 0..n {
            let more = self.launch();
            if !more || self.device.in_flight() == self.sched.config().depth as usize {
                self.complete();
            }
        }
    }

    /// The oldest step fails as a whole.
    pub fn fail_step(&mut self) {
        let Some(back) = self.device.collect(&self.truth) else { return };
        for row in back.batch.rows.iter().filter(|r| self.sched.is_live(r)) {
            let what = "a step that was told to".to_owned();
            self.aborted.insert(row.plan.request, Failure::Engine { what });
        }
        self.sched.fail_step(back.lease, "a step that was told to", self.now).unwrap();
        self.drain(&[]);
        self.settle();
    }

    /// Free pages are overwritten, and the books must be right.
    fn settle(&mut self) {
        self.device.poison_free_pages(self.sched.pool());
        let report = self.sched.pool().audit();
        if let Some(violation) = report.violation {
            panic!("{violation}");
        }
        assert_eq!(report.sequences, self.sched.running());
        assert_eq!(report.steps_in_flight as usize, self.device.in_flight());
    }

    /// Checks what the clients are told against what they would have got alone.
    fn drain(&mut self, logits: &[u64]) {
        for update in self.sched.drain_updates() {
            let id = update.request();
            let seen = self.seen.get_mut(&id).expect("only admitted requests have updates");
            let truth = &self.truth[&id];
            assert!(!seen.ended, "request {id} ended before: {update:?}");
            match update {
                Update::Started { cached_tokens, .. } => {
                    assert!(!core::mem::replace(&mut seen.started, true), "started twice");
                    assert!(cached_tokens < truth.prompt_tokens);
                    assert!(!truth.echo || cached_tokens == 0 || truth.prompt_tokens == 1);
                }
                Update::Preempted { .. } => assert!(seen.started),
                Update::PromptLogits { logit_row, from, rows, .. } => {
                    assert!(truth.echo && from == seen.prompt_logits, "in order, once each");
                    let expected = &truth.alone.rows[from as usize..][..rows as usize];
                    assert_eq!(&logits[logit_row.index()..][..rows as usize], expected);
                    seen.prompt_logits += rows;
                }
                Update::Token { token, index, logit_row, .. } => {
                    assert_eq!(index as usize, seen.output.len());
                    assert_eq!(truth.alone.output.get(index as usize), Some(&token));
                    let position = truth.prompt_tokens + index - 1;
                    assert_eq!(logits[logit_row.index()], truth.alone.rows[position as usize]);
                    seen.output.push(token);
                }
                Update::Finished { reason, usage, .. } => {
                    seen.ended = true;
                    assert_eq!(seen.output, truth.alone.output);
                    assert_eq!(reason, truth.alone.reason);
                    assert_eq!(usage.completion_tokens, truth.alone.produced);
                    assert_eq!(usage.prompt_tokens, truth.prompt_tokens);
                    let wanted = if truth.echo { truth.prompt_tokens - 1 } else { 0 };
                    assert_eq!(
                        seen.prompt_logits, wanted,
                        "every prompt position is reported once"
                    );
                }
                Update::Failed { failure, .. } => {
                    seen.ended = true;
                    match self.aborted.get(&id) {
                        Some(expected) => assert_eq!(&failure, expected),
                        None => assert_eq!(failure, Failure::DeadlineExceeded),
                    }
                }
            }
        }
    }

    /// Nothing more comes in: everything must end, in a bounded number of steps.
    pub fn drain_all(&mut self) {
        let live = self.seen.values().filter(|s| !s.ended).count() as u32;
        let context = self.sched.config().context_tokens_max;
        let mut left = 40 + 4 * live * context;
        while !self.sched.is_idle() {
            let more = self.launch();
            if !more || self.device.in_flight() == self.sched.config().depth as usize {
                let more = self.complete() || more || self.sched.is_idle();
                assert!(more, "nothing to plan, nothing in flight, not idle");
            }
            left -= 1;
            assert!(left > 0, "requests do not end");
        }
        while self.complete() {}
        assert!(self.seen.values().all(|s| s.ended), "every accepted request ends");
        let counters = self.sched.counters();
        assert_eq!(counters.admitted, counters.finished + counters.failed);
        let report = self.sched.pool().audit();
        let counts = report.counts;
        assert_eq!(counts.owned + counts.shared + counts.quarantined + counts.in_flight, 0);
        assert_eq!(
            self.sched.places(),
            self.sched.config().running_requests_max + self.sched.config().queued_requests_max
        );
        self.sched.pool_mut().flush_cache();
        assert_eq!(self.sched.pool().free_pages(), self.sched.pool().config().pages - 1);
    }
}
