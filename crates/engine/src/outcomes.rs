//! From a step's results to outcomes, and from the scheduler's updates to events.

use crate::active::Active;
use crate::core::Core;
use crate::generation::Bucket;
use crate::inputs;
use lockstep_device::sample::SampleResult;
use lockstep_flow::{EventKind, Failure, RequestId, Token, TokenLogprob};
use lockstep_sched::{Outcome, Update};

impl Core {
    /// Reads the sampled tokens and has grammars move past them.
    pub(crate) fn collect(&mut self, at: usize) {
        let Bucket { exec, io, .. } = self.generation.buckets[at];
        let results = inputs::results(self.device.output(exec, io.results));
        let batch = self.sched.oldest_step().expect("a step is in flight");
        self.outcomes.clear();
        let now = self.clock.now();
        let logit_first = self.flights.logit_first(batch.step);
        for (i, (row, &first)) in batch.rows.iter().zip(logit_first).enumerate() {
            if let Some(failure) = self.audit.verdict(i) {
                self.outcomes.push(Outcome::Failed(failure));
                continue;
            }
            let outcome = match (row.plan.samples, self.active.get_mut(&row.plan.request)) {
                (true, Some(active)) if self.sched.is_live(row) => {
                    let end = (first + row.plan.logit_rows()) as usize;
                    let sampled = end - 1 - row.drafts as usize;
                    let device = self.device.as_ref();
                    let drafted = |i| inputs::drafts(device, exec, &io, sampled + i);
                    let drafted = io.drafts[0].is_some().then_some(drafted);
                    let checked = self.sched.drafts(row);
                    let ends = |i, token| self.sched.ends_with(row, i, token);
                    let results = &results[sampled..end];
                    let outcome = active.take_sample(results, checked, ends, drafted);
                    if let (Outcome::SampledHeld(token), Some(guide)) =
                        (&outcome, active.guide.take())
                    {
                        self.masks.advance(row.plan.request, guide, *token, now);
                    }
                    outcome
                }
                _ => Outcome::Computed,
            };
            self.outcomes.push(outcome);
        }
    }

    /// Turns the scheduler's updates into events. `at` is the bucket of the step whose results the
    /// updates speak of.
    pub(crate) fn deliver(&mut self, at: Option<usize>) {
        let mut updates = core::mem::take(&mut self.updates);
        loop {
            updates.extend(self.sched.drain_updates());
            updates.iter().for_each(|update| self.count_update(update));
            // Whoever learns of a request's end finds it in the status.
            if updates.iter().any(Update::is_final) {
                self.publish();
            }
            for update in updates.drain(..) {
                self.deliver_one(update, at);
            }
            // Clients that went away end within this turn; their pages are free after the step.
            let Some(gone) = self.gone.pop() else { break };
            let failure = self.active.get_mut(&gone).and_then(Active::failure);
            self.sched.abort(gone, failure.unwrap_or(Failure::Cancelled));
        }
        self.updates = updates;
    }

    fn count_update(&mut self, update: &Update) {
        let c = &mut self.counters;
        match update {
            Update::Started { cached_tokens, .. } => c.cached_tokens += u64::from(*cached_tokens),
            Update::Token { .. } => c.generated_tokens += 1,
            Update::Failed { failure: Failure::Cancelled, .. } => c.cancelled += 1,
            _ => {}
        }
    }

    fn deliver_one(&mut self, update: Update, at: Option<usize>) {
        let request = update.request();
        let kind = match update {
            Update::Preempted { .. } => return,
            Update::Started { cached_tokens, .. } => EventKind::Started { cached_tokens },
            Update::PromptLogits { logit_row, from, rows, .. } => {
                let at = at.expect("prompt logits come from a completed step");
                match self.prompt_entries(request, at, logit_row.index(), from, rows) {
                    Some(entries) => EventKind::Prompt { from: from + 1, entries },
                    None => return,
                }
            }
            Update::Token { logit_row, token, index, .. } => {
                let at = at.expect("a token comes from a completed step");
                let logprob = self.logprob(request, at, logit_row.index(), token);
                EventKind::Token { token, index, logprob }
            }
            Update::Finished { reason, usage, .. } => EventKind::Finished { reason, usage },
            Update::Failed { failure, usage, .. } => EventKind::Failed { failure, usage },
        };
        let last = kind.is_final();
        let Some(active) = self.active.get_mut(&request) else { return };
        if !active.emit(request, kind) && !last {
            self.gone.push(request);
        }
        if last {
            let guide = self.active.remove(&request).and_then(|active| active.guide);
            match guide {
                Some(guide) => self.masks.retire(guide),
                None => self.masks.forget(request),
            }
            self.shared.leave(1);
        }
    }

    /// Log-probability of the token that logit row `row` sampled, where it was asked for.
    fn logprob(
        &self,
        request: RequestId,
        at: usize,
        row: usize,
        token: Token,
    ) -> Option<TokenLogprob> {
        let wanted = self.active.get(&request)?.params.logprobs?;
        let Bucket { exec, io, .. } = self.generation.buckets[at];
        let results = inputs::results(self.device.output(exec, io.results));
        Some(entry(&results[row], token, wanted))
    }

    fn prompt_entries(
        &self,
        request: RequestId,
        at: usize,
        row: usize,
        from: u32,
        rows: u32,
    ) -> Option<Vec<TokenLogprob>> {
        let active = self.active.get(&request)?;
        let wanted = active.params.logprobs.unwrap_or(0);
        let Bucket { exec, io, .. } = self.generation.buckets[at];
        let results = inputs::results(self.device.output(exec, io.results));
        let targets = active.prompt.get(from as usize + 1..)?;
        let entries = targets.iter().take(rows as usize).enumerate();
        Some(entries.map(|(i, &token)| entry(&results[row + i], token, wanted)).collect())
    }
}

/// A result row as a client sees it.
fn entry(result: &SampleResult, token: Token, wanted: u32) -> TokenLogprob {
    let top =
        (0..wanted as usize).map(|i| (Token(result.top_ids[i]), result.top_logprobs[i])).collect();
    TokenLogprob { token, logprob: result.logprob, top }
}
