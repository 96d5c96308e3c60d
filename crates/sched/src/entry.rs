//! One request as the scheduler sees it.

use crate::Run;
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::{Micros, Request, RequestId, SlotId, Token, Usage};

/// Order of service: arrival, then order of submission.
pub(crate) type Order = (Micros, u64);

#[derive(Debug)]
pub(crate) struct Entry {
    pub id: RequestId,
    pub order: Order,
    /// Prompt and output so far; its memory is taken at admission.
    pub tokens: Vec<Token>,
    pub prompt_tokens: u32,
    pub max_tokens: u32,
    pub min_tokens: u32,
    pub ignore_eos: bool,
    pub stop_tokens: Vec<Token>,
    pub adapter: u32,
    pub caches: bool,
    /// Log-probabilities of the prompt's tokens are wanted.
    pub echo: bool,
    /// False where the next row needs the host to have seen the last token (a grammar).
    pub lookahead: bool,
    /// True while its grammar looks at its last token.
    pub held: bool,
    pub deadline: Option<Micros>,
    /// Where it runs; `None` while it waits.
    pub slot: Option<SlotId>,
    /// Counts its stays in a slot, so that a row of an earlier one is known as such.
    pub epoch: u32,
    /// Positions under this are in a planned step.
    pub issued: u32,
    /// Sampled tokens that the host has not seen: at most one a step in flight.
    pub pending: u32,
    /// Prompt positions under this have had their logits reported.
    pub reported: u32,
    /// Positions under this have been in a step before (a resume computes some again).
    pub reached: u32,
    pub started: bool,
    pub cached_tokens: u32,
    pub preemptions: u32,
    /// What may follow its last token: checked by its next row.
    pub drafts: Run,
    pub drafted_tokens: u32,
    pub accepted_tokens: u32,
    /// The running request whose prefill it waits for, and the pages it needs of it.
    pub waits_for: Option<(u32, RequestId, u32)>,
}

impl Entry {
    pub fn new(request: &Request, number: u64, prefix_cache: bool) -> Entry {
        let params = &request.params;
        let mut tokens = Vec::with_capacity(request.prompt.len() + params.max_tokens as usize);
        tokens.extend_from_slice(&request.prompt);
        Entry {
            id: request.id,
            order: (request.arrived, number),
            prompt_tokens: tokens.len() as u32,
            tokens,
            max_tokens: params.max_tokens,
            min_tokens: params.min_tokens,
            ignore_eos: params.ignore_eos,
            stop_tokens: params.stop_tokens.clone(),
            adapter: request.adapter,
            caches: prefix_cache && request.use_prefix_cache,
            echo: params.prompt_logprobs,
            lookahead: request.grammar.is_none(),
            held: false,
            deadline: request.deadline,
            slot: None,
            epoch: 0,
            issued: 0,
            pending: 0,
            reported: 0,
            reached: 0,
            started: false,
            cached_tokens: 0,
            preemptions: 0,
            drafts: Run::default(),
            drafted_tokens: 0,
            accepted_tokens: 0,
            waits_for: None,
        }
    }

    /// Tokens that exist, the ones in flight included.
    pub fn total(&self) -> u32 {
        self.tokens.len() as u32 + self.pending
    }

    /// Output tokens, the ones in flight included.
    pub fn produced(&self) -> u32 {
        self.total() - self.prompt_tokens
    }

    /// Tokens that the next row could compute; 0 while it has to wait for the host.
    pub fn remaining(&self) -> u32 {
        let done = self.held || self.produced() >= self.max_tokens;
        if done || (self.pending > 0 && !self.lookahead) { 0 } else { self.total() - self.issued }
    }

    /// Drafts that its next row may check: none where it waits for a grammar, and no more than may
    /// be accepted before the last token that it may have.
    pub fn drafts_wanted(&self) -> u32 {
        let room = (self.max_tokens - self.produced()).saturating_sub(1);
        if self.lookahead { room.min(self.drafts.len()) } else { 0 }
    }

    /// True where `token` as output token `index` ends it.
    pub fn ends_with(&self, token: Token, index: u32, eos_tokens: &[Token]) -> bool {
        let eos = !self.ignore_eos && eos_tokens.contains(&token);
        (eos || self.stop_tokens.contains(&token)) && index + 1 > self.min_tokens
    }

    /// True where its last token is the last one that it may have.
    pub fn is_full(&self, context_tokens_max: usize) -> bool {
        let output = self.tokens.len() - self.prompt_tokens as usize;
        output >= self.max_tokens as usize || self.tokens.len() >= context_tokens_max
    }

    /// True where the next row wants logits for every token.
    pub fn wants_all_logits(&self) -> bool {
        self.echo && self.issued >= self.reported && self.issued + 1 < self.prompt_tokens
    }

    /// What the prefix index may be asked for: all whole pages but the last token's, and none of
    /// the prompt's logits that are still to be reported.
    pub fn cacheable(&self) -> &[Token] {
        let mut limit = if self.caches { self.tokens.len() - 1 } else { 0 };
        if self.echo && self.reported + 1 < self.prompt_tokens {
            limit = limit.min(self.reported as usize);
        }
        &self.tokens[..limit]
    }

    /// Pages for every token that exists and one more.
    pub fn pages_wanted(&self) -> u32 {
        (self.total() + 1).div_ceil(PAGE_TOKENS)
    }

    /// Positions that can be in use at once, at most: the last token's KV is never needed.
    pub fn positions_max(prompt_tokens: u32, max_tokens: u32) -> u64 {
        u64::from(prompt_tokens) + u64::from(max_tokens) - 1
    }

    pub fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            completion_tokens: self.tokens.len() as u32 - self.prompt_tokens,
            preemptions: self.preemptions,
            drafted_tokens: self.drafted_tokens,
            accepted_tokens: self.accepted_tokens,
        }
    }
}
