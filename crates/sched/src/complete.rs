//! The outcome of a step: stopping rules, and what is to be told.

use crate::{Run, SchedError, Scheduler, SeqRow};
use lockstep_flow::{Failure, FinishReason, Micros, RequestId, Row, Token, Usage};
use lockstep_pool::{Logits, StepLease};

/// What came back for one row.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// The row samples nothing (a prefill chunk that is not the last), or nobody wants it any more.
    Computed,
    /// The sampled token.
    Sampled(Token),
    /// Tokens sampled one after the other: the row's own, and one more for each of its drafts that
    /// was right, in order; and drafts of what follows, for the request's next row.
    Verified { sampled: Run, drafts: Run },
    /// The sampled token of a request whose grammar is still to look at it: the request takes no
    /// further row until [`Scheduler::settle`] says what the grammar found.
    SampledHeld(Token),
    /// The request cannot go on.
    Failed(Failure),
}

/// What the engine makes events of.
#[derive(Clone, PartialEq, Debug)]
pub enum Update {
    /// It left the queue for the first time.
    Started { request: RequestId, cached_tokens: u32 },
    /// It went back into the queue; clients are not told.
    Preempted { request: RequestId },
    /// Logit rows `logit_row..logit_row + rows` of the completed step are those of the prompt
    /// positions `from..from + rows`: they say how likely the prompt tokens one further on are.
    PromptLogits { request: RequestId, logit_row: Row, from: u32, rows: u32 },
    /// One more output token, sampled from logit row `logit_row` of the completed step. A token
    /// that ends the text is not among these.
    Token { request: RequestId, logit_row: Row, token: Token, index: u32 },
    /// Final: it ended well.
    Finished { request: RequestId, reason: FinishReason, usage: Usage },
    /// Final: it did not.
    Failed { request: RequestId, failure: Failure, usage: Usage },
}

impl Update {
    /// Whose it is.
    pub const fn request(&self) -> RequestId {
        match self {
            Update::Started { request, .. }
            | Update::Preempted { request }
            | Update::PromptLogits { request, .. }
            | Update::Token { request, .. }
            | Update::Finished { request, .. }
            | Update::Failed { request, .. } => *request,
        }
    }

    /// True for the one update that ends a request (contract 5).
    pub const fn is_final(&self) -> bool {
        matches!(self, Update::Finished { .. } | Update::Failed { .. })
    }
}

impl Scheduler {
    /// The oldest step in flight is complete, with one outcome a row, in the order of its rows.
    /// Rows of requests that have ended or been preempted meanwhile are thrown away.
    ///
    /// # Errors
    /// The lease is not that step's, or the count of outcomes is not that of its rows; nothing has
    /// changed then but that a lease which the pool refused is lost with the error.
    pub fn complete(
        &mut self,
        lease: StepLease,
        outcomes: &[Outcome],
        now: Micros,
    ) -> Result<(), SchedError> {
        let step = lease.generation();
        if step != self.completed + 1 || step > self.leased {
            return Err(SchedError::NoStep);
        }
        let at = (step % self.batches.len() as u64) as usize;
        let (expected, found) = (self.batches[at].rows.len(), outcomes.len());
        if expected != found {
            return Err(SchedError::OutcomeCount { expected, found });
        }
        for (i, outcome) in outcomes.iter().enumerate() {
            self.keep_accepted(&lease, at, i, outcome)?;
        }
        self.pool.complete(lease).map_err(|(_, e)| e)?;
        self.completed = step;
        for (i, outcome) in outcomes.iter().enumerate() {
            let row = self.batches[at].rows[i];
            if self.is_live(&row) {
                self.complete_row(&row, outcome, now);
            } else {
                self.counters.discarded_rows += 1;
            }
        }
        self.batches[at].rows.clear();
        Ok(())
    }

    /// The oldest step in flight has failed as a whole and is not running any more: its requests
    /// end with `what`, and nothing that it wrote is kept.
    ///
    /// # Errors
    /// The lease is not that step's.
    pub fn fail_step(
        &mut self,
        lease: StepLease,
        what: &str,
        now: Micros,
    ) -> Result<(), SchedError> {
        let step = lease.generation();
        if step != self.completed + 1 || step > self.leased {
            return Err(SchedError::NoStep);
        }
        self.pool.abandon(lease).map_err(|(_, e)| e)?;
        self.completed = step;
        self.fail_rows((step % self.batches.len() as u64) as usize, what);
        self.note_end(now);
        Ok(())
    }

    fn complete_row(&mut self, row: &SeqRow, outcome: &Outcome, now: Micros) {
        let index = row.entry;
        if let Outcome::Failed(failure) = outcome {
            self.fail(index, failure.clone());
            self.note_end(now);
            return;
        }
        let request = row.plan.request;
        if row.plan.logits == Logits::All {
            let entry = self.entry_mut(index);
            entry.reported = entry.reported.max(row.plan.end());
            let from = row.plan.first_position.0;
            // The logits of the prompt's last token are those of the first output token.
            let rows = row.plan.end().min(entry.prompt_tokens - 1) - from;
            let logit_row = Row(row.logit_row);
            self.updates.push(Update::PromptLogits { request, logit_row, from, rows });
        }
        match outcome {
            Outcome::Verified { sampled, drafts } if row.plan.samples && !sampled.is_empty() => {
                return self.accept_run(row, sampled.as_slice(), *drafts, now);
            }
            _ => {}
        }
        let token = match (row.plan.samples, outcome) {
            (false, _) => {
                self.publish(index);
                return;
            }
            (true, Outcome::Sampled(token)) => *token,
            (true, Outcome::SampledHeld(token)) => {
                self.entry_mut(index).held = true;
                *token
            }
            (true, _) => {
                let what = "the step gave no token for a row that samples one".into();
                self.fail(index, Failure::Engine { what });
                return;
            }
        };
        self.publish(index);
        let logit_row = Row(row.logit_row + row.plan.logit_rows() - 1);
        if let Some(reason) = self.accept(index, logit_row, token) {
            self.finish(index, reason);
            self.note_end(now);
        }
    }

    /// What the grammar of a held request found: `complete` where nothing but the end may follow.
    /// The request ends then, or at its limits, or takes rows again. False where it is not live
    /// (any more).
    pub fn settle(&mut self, request: RequestId, complete: bool, now: Micros) -> bool {
        let Some(&index) = self.by_id.get(&request) else { return false };
        let context = self.config.context_tokens_max as usize;
        let entry = self.entry_mut(index);
        assert!(core::mem::take(&mut entry.held), "only a held request waits for its grammar");
        let reason = match (complete, entry.is_full(context)) {
            (true, _) => FinishReason::Stop,
            (false, true) => FinishReason::Length,
            (false, false) => return true,
        };
        self.finish(index, reason);
        self.note_end(now);
        true
    }

    /// Tells the pool which drafts of a row were not accepted: what it wrote of them does not count.
    fn keep_accepted(
        &mut self,
        lease: &StepLease,
        batch: usize,
        i: usize,
        outcome: &Outcome,
    ) -> Result<(), SchedError> {
        let row = self.batches[batch].rows[i];
        let accepted = match outcome {
            Outcome::Verified { sampled, .. } if self.is_live(&row) => {
                self.accepted(&row, sampled.as_slice())
            }
            // A row that fails leaves nothing of its drafts either.
            _ => 0,
        };
        if accepted < row.drafts {
            self.pool.keep(lease, row.plan.slot, row.plan.end() - row.drafts + accepted)?;
        }
        Ok(())
    }

    /// Drafts of a row that count: those before the last token sampled, and before one that ends
    /// the text.
    fn accepted(&self, row: &SeqRow, sampled: &[Token]) -> u32 {
        let drafts = &self.entry(row.entry).drafts.as_slice()[..row.drafts as usize];
        let right = drafts.iter().zip(sampled).zip(0..);
        right.take_while(|((d, s), i)| d == s && !self.ends_with(row, *i, **s)).count() as u32
    }

    /// True where `token`, sampled after the `i`th draft of a row (0: after its own token), ends the
    /// text. False where the row's request is not live any more.
    pub fn ends_with(&self, row: &SeqRow, i: u32, token: Token) -> bool {
        let index = row.output_index + i;
        self.is_live(row) && self.entry(row.entry).ends_with(token, index, &self.config.eos_tokens)
    }

    /// Takes the token of a row and those that its accepted drafts led to.
    fn accept_run(&mut self, row: &SeqRow, sampled: &[Token], drafts: Run, now: Micros) {
        let (index, accepted) = (row.entry, self.accepted(row, sampled));
        let kept = accepted.min(sampled.len().saturating_sub(1) as u32);
        self.counters.drafted_tokens += u64::from(row.drafts);
        self.counters.accepted_tokens += u64::from(kept);
        let entry = self.entry_mut(index);
        entry.drafted_tokens += row.drafts;
        entry.accepted_tokens += kept;
        entry.issued = row.plan.end() - row.drafts + kept;
        entry.reached = entry.reached.max(entry.issued);
        entry.pending += kept;
        entry.drafts = drafts;
        let first = row.logit_row + row.plan.logit_rows() - 1 - row.drafts;
        for (i, &token) in (0..=kept).zip(sampled) {
            if let Some(reason) = self.accept(index, Row(first + i), token) {
                self.finish(index, reason);
                self.note_end(now);
                return;
            }
        }
        self.publish(index);
    }

    /// Takes a sampled token; says whether and why the request is done with it.
    fn accept(&mut self, index: u32, logit_row: Row, token: Token) -> Option<FinishReason> {
        let output = self.entry(index).tokens.len() as u32 - self.entry(index).prompt_tokens;
        let stop = self.entry(index).ends_with(token, output, &self.config.eos_tokens);
        let context = self.config.context_tokens_max as usize;
        let entry = self.entry_mut(index);
        entry.pending -= 1;
        entry.tokens.push(token);
        let full = entry.is_full(context) && !entry.held;
        let request = entry.id;
        if stop {
            return Some(FinishReason::Stop);
        }
        self.updates.push(Update::Token { request, logit_row, token, index: output });
        full.then_some(FinishReason::Length)
    }
}
