//! Twelve requests of unlike lengths and sampling, and their company.

use crate::common::Probe;
use lockstep_flow::{SamplingParams, Seed, Token};

/// Prompt tokens that look like nothing in particular; two prompts share no prefix.
fn prompt(len: u32, salt: u32, vocab: u32) -> impl Iterator<Item = u32> {
    let mut state = 0x9e37_79b9u32 ^ salt.wrapping_mul(0x85eb_ca6b);
    (0..len).map(move |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        3 + (state >> 9) % (vocab - 3)
    })
}

fn base(max_tokens: u32, seed: u64) -> SamplingParams {
    SamplingParams { max_tokens, seed: Seed(seed), ignore_eos: true, ..SamplingParams::default() }
}

fn greedy(max_tokens: u32) -> SamplingParams {
    SamplingParams { temperature: 0.0, ..base(max_tokens, 0) }
}

/// The probes: prompts of 1 to 700 tokens, every sampling parameter in use somewhere.
pub fn probes(vocab: u32) -> Vec<Probe> {
    let bias = (0..40).map(|t| (Token(3 + t * 5), 4.0 - t as f32 / 8.0)).collect();
    let kinds: Vec<(u32, SamplingParams)> = vec![
        (1, greedy(16)),
        (2, SamplingParams { temperature: 0.8, top_p: 0.9, ..base(13, 7) }),
        (5, SamplingParams { top_k: 40, ..base(24, 8) }),
        (17, SamplingParams { repetition_penalty: 1.3, ..greedy(12) }),
        (
            31,
            SamplingParams {
                temperature: 0.7,
                presence_penalty: 0.5,
                frequency_penalty: 0.3,
                ..base(20, 9)
            },
        ),
        (32, SamplingParams { logit_bias: bias, ..greedy(9) }),
        (33, SamplingParams { temperature: 1.2, min_p: 0.05, logprobs: Some(5), ..base(18, 10) }),
        (64, SamplingParams { logprobs: Some(0), ..greedy(7) }),
        (75, SamplingParams { prompt_logprobs: true, logprobs: Some(3), ..greedy(6) }),
        (130, SamplingParams { temperature: 0.9, choice: 3, ..base(11, 11) }),
        (257, SamplingParams { logprobs: Some(2), ..greedy(8) }),
        (700, greedy(5)),
    ];
    let probe = |(i, (len, params)): (usize, (u32, SamplingParams))| {
        Probe::new(prompt(len, i as u32, vocab), params)
    };
    kinds.into_iter().enumerate().map(probe).collect()
}

/// Short requests that fill rows: with the probes they make 40, and they end one or two a step, so
/// that the batch shrinks through every bucket on the way down.
pub fn company(vocab: u32) -> Vec<Probe> {
    (0..28).map(|i| Probe::new(prompt(2 + i % 5, 100 + i, vocab), greedy(4 + i))).collect()
}
