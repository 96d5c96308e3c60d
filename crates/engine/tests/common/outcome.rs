//! What came of a request, and whether it is the same as something else, bit for bit.

use lockstep_flow::{Event, EventKind, FinishReason, RequestId, Token, TokenLogprob, Usage};
use std::collections::{BTreeMap, HashMap};

/// Rows of logits by position.
pub type ByPosition = BTreeMap<u32, Vec<f32>>;

/// Logits by request and position, and those of drafts.
#[derive(Default)]
pub struct Rows(HashMap<RequestId, (ByPosition, ByPosition)>);

impl Rows {
    /// Keeps a row; a position that is computed twice (after a preemption) has the same bits.
    pub fn keep(&mut self, request: RequestId, position: u32, logits: &[f32]) {
        let rows = &mut self.0.entry(request).or_default().0;
        keep(rows, position, logits, &format!("request {request} position {position}"));
    }

    /// As [`Rows::keep`], of drafts.
    pub fn keep_draft(&mut self, request: RequestId, position: u32, logits: &[f32]) {
        let rows = &mut self.0.entry(request).or_default().1;
        keep(rows, position, logits, &format!("request {request} draft at {position}"));
    }

    pub fn take(&mut self, request: RequestId) -> (ByPosition, ByPosition) {
        self.0.remove(&request).unwrap_or_default()
    }
}

fn keep(rows: &mut ByPosition, position: u32, logits: &[f32], what: &str) {
    match rows.get(&position) {
        None => drop(rows.insert(position, logits.to_vec())),
        Some(before) => assert_eq!(first_difference(before, logits), None, "{what} computed again"),
    }
}

fn first_difference(a: &[f32], b: &[f32]) -> Option<usize> {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits())
}

/// Everything that a client sees of a request, and the logits behind it.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub tokens: Vec<Token>,
    pub logprobs: Vec<TokenLogprob>,
    pub prompt: Vec<TokenLogprob>,
    pub reason: FinishReason,
    pub usage: Usage,
    pub rows: ByPosition,
    /// Of the prediction block, where it drafts.
    pub drafts: ByPosition,
}

impl Outcome {
    /// Reads a request's events; panics where they are not in the order that a client relies on.
    pub fn of(events: &[Event], rows: ByPosition) -> Outcome {
        let (mut tokens, mut logprobs, mut prompt) = (Vec::new(), Vec::new(), Vec::new());
        let Some((last, before)) = events.split_last() else { panic!("no events") };
        assert!(matches!(events[0].kind, EventKind::Started { .. }), "{:?}", events[0]);
        for event in &before[1..] {
            match &event.kind {
                EventKind::Token { token, index, logprob } => {
                    assert_eq!(*index as usize, tokens.len());
                    tokens.push(*token);
                    logprobs.extend(logprob.clone());
                }
                EventKind::Prompt { from, entries } => {
                    assert_eq!(*from as usize, prompt.len() + 1);
                    prompt.extend_from_slice(entries);
                }
                other => panic!("{other:?} before the last event"),
            }
        }
        let EventKind::Finished { reason, usage } = last.kind else { panic!("{last:?}") };
        let drafts = ByPosition::new();
        Outcome { tokens, logprobs, prompt, reason, usage, rows, drafts }
    }

    /// Logits at a position.
    pub fn logits(&self, position: u32) -> &[f32] {
        self.rows.get(&position).unwrap_or_else(|| panic!("no logits at {position}"))
    }
}

type Bits = (Token, u32);

/// Log-probabilities as bits, the token's own before its alternatives.
fn bits(all: &[TokenLogprob]) -> Vec<(Bits, Vec<Bits>)> {
    let top = |l: &TokenLogprob| l.top.iter().map(|(t, p)| (*t, p.to_bits())).collect();
    all.iter().map(|l| ((l.token, l.logprob.to_bits()), top(l))).collect()
}

/// Asserts that two runs of the same probes gave the same tokens, log-probabilities and logits.
pub fn assert_same(expected: &[Outcome], found: &[Outcome], how: &str) {
    assert_eq!(expected.len(), found.len());
    for (i, (e, f)) in expected.iter().zip(found).enumerate() {
        let what = format!("{how}: probe {i}");
        for (position, e) in &e.rows {
            let f = f.rows.get(position);
            let f = f.unwrap_or_else(|| panic!("{what}: no logits at position {position}"));
            if let Some(at) = first_difference(e, f) {
                panic!("{what}: position {position}, token {at}: {} and {}", e[at], f[at]);
            }
        }
        assert_eq!(e.rows.len(), f.rows.len(), "{what}: positions with logits");
        assert_eq!(e.tokens, f.tokens, "{what}: tokens");
        assert_eq!(e.reason, f.reason, "{what}");
        assert_eq!(bits(&e.logprobs), bits(&f.logprobs), "{what}: log-probabilities");
        assert_eq!(bits(&e.prompt), bits(&f.prompt), "{what}: the prompt's log-probabilities");
    }
}
