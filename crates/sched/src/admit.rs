//! The door: what is let into the queue, and how a request leaves before its time.

use crate::Scheduler;
use crate::entry::Entry;
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::{Failure, FinishReason, Micros, Refusal, Request, RequestId, Ticket};

/// How many recent ends the estimate for `Retry-After` looks at.
pub(crate) const ENDS: usize = 32;
/// `Retry-After` before anything has ended, and its bounds, in seconds.
const RETRY_AFTER_DEFAULT_S: u32 = 1;
const RETRY_AFTER_MAX_S: u64 = 60;

impl Scheduler {
    /// Puts a request into the queue, in its place by arrival.
    ///
    /// # Errors
    /// Why it is not admitted; nothing of it is kept.
    ///
    /// # Panics
    /// Where a live request has the same id: ids are unique for the life of the process.
    pub fn submit(&mut self, request: &Request, now: Micros) -> Result<Ticket, Refusal> {
        if let Err(refusal) = self.check(request, now) {
            self.counters.refused.count(&refusal);
            return Err(refusal);
        }
        let index = self.vacant.pop().expect("the queue's limit was checked");
        let entry = Entry::new(request, self.submitted, self.config.prefix_cache);
        assert!(self.by_id.insert(entry.id, index).is_none(), "request {} is live", entry.id);
        self.submitted += 1;
        self.counters.admitted += 1;
        self.entries[index as usize] = Some(entry);
        let queued_before = self.queue(index);
        Ok(Ticket { id: request.id, queued_before })
    }

    /// How many more requests would be admitted now.
    pub fn places(&self) -> u32 {
        self.vacant.len() as u32
    }

    /// Takes no new requests from now on; `why` is what they are told. Those admitted go on.
    pub fn close(&mut self, why: impl Into<String>) {
        self.closed = Some(why.into());
    }

    /// Takes requests again.
    pub fn open(&mut self) {
        self.closed = None;
    }

    /// Ends a request with [`Failure::Cancelled`], wherever it is; its pages are given up now, or
    /// when the steps in flight that touch them are complete. False where it is not live (any
    /// more): its final event is out already.
    pub fn cancel(&mut self, request: RequestId) -> bool {
        self.abort(request, Failure::Cancelled)
    }

    /// Ends a request well, with [`FinishReason::Stop`]: its text holds a stop string, which only
    /// the room that makes text of tokens can see. False where it is not live (any more).
    pub fn stop(&mut self, request: RequestId) -> bool {
        let index = self.by_id.get(&request).copied();
        if let Some(index) = index {
            self.finish(index, FinishReason::Stop);
        }
        index.is_some()
    }

    /// Ends a request with `failure`. False where it is not live (any more).
    pub fn abort(&mut self, request: RequestId, failure: Failure) -> bool {
        let index = self.by_id.get(&request).copied();
        if let Some(index) = index {
            self.fail(index, failure);
        }
        index.is_some()
    }

    /// Ends every request with `failure`.
    pub fn abort_all(&mut self, failure: &Failure) {
        while let Some(&index) = self.running.last().or(self.waiting.back()) {
            self.fail(index, failure.clone());
        }
    }

    /// Ends what has passed its deadline.
    pub(crate) fn expire(&mut self, now: Micros) {
        for i in (0..self.running.len()).rev() {
            self.expire_one(self.running[i], now);
        }
        for i in (0..self.waiting.len()).rev() {
            self.expire_one(self.waiting[i], now);
        }
    }

    fn expire_one(&mut self, index: u32, now: Micros) {
        if self.entry(index).deadline.is_some_and(|d| d <= now) {
            self.fail(index, Failure::DeadlineExceeded);
            self.note_end(now);
        }
    }

    /// Puts an entry into its place in the queue; returns how many are before it.
    pub(crate) fn queue(&mut self, index: u32) -> u32 {
        let order = self.entry(index).order;
        let at = self.waiting.partition_point(|&i| self.entry(i).order < order);
        self.waiting.insert(at, index);
        at as u32
    }

    /// What no request can exceed.
    pub fn limits(&self) -> Limits {
        let pool = self.pool.config();
        Limits {
            vocab: self.config.vocab,
            context_max_tokens: self.config.context_tokens_max,
            capacity_tokens: pool.capacity_tokens().min(pool.pages_per_seq_max * PAGE_TOKENS),
        }
    }

    fn check(&self, request: &Request, now: Micros) -> Result<(), Refusal> {
        if let Some(why) = &self.closed {
            return Err(Refusal::NotServing { why: why.clone() });
        }
        self.limits().check(request)?;
        if self.vacant.is_empty() {
            return Err(Refusal::QueueFull {
                queued: self.queued(),
                limit: self.config.queued_requests_max,
                retry_after_s: self.retry_after_s(now),
            });
        }
        Ok(())
    }

    /// A place in the queue comes free each time a request ends: the mean time between the recent
    /// ends, in whole seconds, rounded up.
    fn retry_after_s(&self, now: Micros) -> u32 {
        let Some(&first) = self.ends.front() else { return RETRY_AFTER_DEFAULT_S };
        let mean_us = now.since(first).0 / self.ends.len() as u64;
        mean_us.div_ceil(1_000_000).clamp(1, RETRY_AFTER_MAX_S) as u32
    }

    pub(crate) fn note_end(&mut self, now: Micros) {
        if self.ends.len() == ENDS {
            self.ends.pop_front();
        }
        self.ends.push_back(now);
    }
}

/// What no request can exceed, whatever runs: plain data, so that it can be checked on any thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Vocabulary size.
    pub vocab: u32,
    /// Prompt and output of a sequence together.
    pub context_max_tokens: u32,
    /// Positions that one sequence can hold in the pool.
    pub capacity_tokens: u32,
}

impl Limits {
    /// Checks a request against them.
    ///
    /// # Errors
    /// The first limit that it exceeds, as a refusal.
    pub fn check(&self, request: &Request) -> Result<(), Refusal> {
        if request.prompt.is_empty() {
            return Err(Refusal::EmptyPrompt);
        }
        let vocab = self.vocab;
        if let Some(at) = request.prompt.iter().position(|t| t.0 >= vocab) {
            let token = request.prompt[at];
            return Err(Refusal::TokenOutOfRange { token, at: at as u32, vocab });
        }
        request.params.check(vocab).map_err(Refusal::Sampling)?;
        let prompt_tokens = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        let max_tokens = request.params.max_tokens;
        let context_max_tokens = self.context_max_tokens;
        if u64::from(prompt_tokens) + u64::from(max_tokens) > u64::from(context_max_tokens) {
            return Err(Refusal::ContextTooLong { prompt_tokens, max_tokens, context_max_tokens });
        }
        let needed = Entry::positions_max(prompt_tokens, max_tokens);
        let capacity_tokens = self.capacity_tokens;
        if needed > u64::from(capacity_tokens) {
            return Err(Refusal::PoolTooSmall { needed_tokens: needed as u32, capacity_tokens });
        }
        Ok(())
    }
}
