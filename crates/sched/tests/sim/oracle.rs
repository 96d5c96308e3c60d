//! What a request must come to: its tokens when it runs alone, computed without pages, batches or
//! steps. The "model" is a chain of hashes over (adapter, token, position), so that a single wrong,
//! missing or foreign row anywhere in a history changes every token after it.

use lockstep_flow::{FinishReason, Request, RequestId, Token};
use std::collections::HashMap;

pub const VOCAB: u32 = 61;
pub const EOS: Token = Token(60);

fn mix(h: u64, n: u64) -> u64 {
    let h = (h ^ n).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let h = (h ^ (h >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ (h >> 29)
}

/// The KV row of a position: everything before it, its token and the adapter.
pub fn row_of(before: u64, adapter: u32, token: Token, position: u32) -> u64 {
    mix(mix(mix(before, u64::from(adapter) + 1), u64::from(token.0)), u64::from(position)) | 1
}

/// The token sampled from a position's row: about one in 64 ends the text.
pub fn sample(row: u64, seed: u64) -> Token {
    let h = mix(row, seed);
    if h.is_multiple_of(64) { EOS } else { Token((h >> 8) as u32 % EOS.0) }
}

/// A request run alone.
#[derive(Clone, Debug)]
pub struct Alone {
    /// KV rows by position, some way beyond the end of the text.
    pub rows: Vec<u64>,
    /// Tokens by position, as many.
    pub tokens: Vec<Token>,
    /// Output tokens that the client gets.
    pub output: Vec<Token>,
    pub reason: FinishReason,
    /// Tokens produced, an end-of-text token included.
    pub produced: u32,
}

/// What the device and the checks know of a request.
#[derive(Clone, Debug)]
pub struct Truth {
    pub adapter: u32,
    pub seed: u64,
    pub echo: bool,
    pub grammar: bool,
    pub prompt_tokens: u32,
    pub alone: Alone,
}

/// By request.
pub type Truths = HashMap<RequestId, Truth>;

/// Output tokens after which the grammar of a request allows only the end.
pub const GRAMMAR_TOKENS: u32 = 7;

/// Runs a request alone. `beyond`: positions that a step in flight may compute after the end.
pub fn alone(request: &Request, beyond: u32) -> Alone {
    let p = &request.params;
    let mut tokens = request.prompt.to_vec();
    let mut rows = Vec::new();
    let mut before = 0;
    let mut end = None;
    let (mut output, mut after) = (Vec::new(), 0);
    while after <= beyond {
        let position = rows.len();
        before = row_of(before, request.adapter, tokens[position], position as u32);
        rows.push(before);
        if rows.len() < tokens.len() {
            continue;
        }
        let token = sample(before, p.seed.0);
        tokens.push(token);
        if end.is_some() {
            after += 1;
            continue;
        }
        let produced = (tokens.len() - request.prompt.len()) as u32;
        let stop = (token == EOS && !p.ignore_eos) || p.stop_tokens.contains(&token);
        if stop && produced > p.min_tokens {
            end = Some((FinishReason::Stop, produced));
            continue;
        }
        output.push(token);
        if request.grammar.is_some() && produced == GRAMMAR_TOKENS {
            end = Some((FinishReason::Stop, produced));
        } else if produced == p.max_tokens {
            end = Some((FinishReason::Length, produced));
        }
    }
    let (reason, produced) = end.expect("every request ends");
    Alone { rows, tokens, output, reason, produced }
}
