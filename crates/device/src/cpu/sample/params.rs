//! What the host writes for a logit row, and what it reads back.

use bytemuck::{Pod, Zeroable};
use lockstep_flow::SamplingParams;
use lockstep_flow::limits::{LOGIT_BIAS_MAX, TOP_LOGPROBS_MAX};

/// How to choose one row's token.
#[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct SampleParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// 1 is off.
    pub repetition_penalty: f32,
    /// 0 is off.
    pub presence_penalty: f32,
    /// 0 is off.
    pub frequency_penalty: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// Low half of the request's seed.
    pub seed_low: u32,
    /// High half.
    pub seed_high: u32,
    /// Which of the request's choices.
    pub choice: u32,
    /// Position of the token that the row's logits come from; what is drawn takes the next one.
    pub position: u32,
    /// Tokens of the prompt: positions from here on are output, as far as penalties go.
    pub prompt_len: u32,
    /// 1 where the row's grammar mask applies, else 0.
    pub masked: u32,
    /// A token whose log-probability is reported instead of sampling (`echo`); -1 samples.
    pub target: i32,
    /// Alternatives to report with the token's log-probability; -1 reports neither.
    pub logprobs: i32,
    /// Entries of the row's logit bias.
    pub bias_count: u32,
}

const _: () = assert!(size_of::<SampleParams>() == 64);

impl SampleParams {
    /// A row that samples by `params` at `position`, of a sequence whose prompt has `prompt_len`
    /// tokens. Its bias entries are written by [`BiasEntry::fill`].
    pub fn of(params: &SamplingParams, position: u32, prompt_len: u32, masked: bool) -> Self {
        SampleParams {
            temperature: params.temperature,
            top_p: params.top_p,
            min_p: params.min_p,
            repetition_penalty: params.repetition_penalty,
            presence_penalty: params.presence_penalty,
            frequency_penalty: params.frequency_penalty,
            top_k: params.top_k,
            seed_low: params.seed.0 as u32,
            seed_high: (params.seed.0 >> 32) as u32,
            choice: params.choice,
            position,
            prompt_len,
            masked: u32::from(masked),
            target: -1,
            logprobs: params.logprobs.map_or(-1, |n| n.min(TOP_LOGPROBS_MAX as u32) as i32),
            bias_count: params.logit_bias.len().min(LOGIT_BIAS_MAX) as u32,
        }
    }

    /// A row that reports the log-probability of `token` and the `top` best.
    pub fn report(token: u32, top: u32) -> Self {
        SampleParams {
            temperature: 0.0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            top_k: 0,
            seed_low: 0,
            seed_high: 0,
            choice: 0,
            position: 0,
            prompt_len: 0,
            masked: 0,
            target: token as i32,
            logprobs: top.min(TOP_LOGPROBS_MAX as u32) as i32,
            bias_count: 0,
        }
    }

    /// True where the choice is the greatest logit.
    pub(super) fn is_greedy(&self) -> bool {
        self.temperature <= 0.0 || self.top_k == 1
    }

    /// True where any penalty changes logits.
    pub(super) fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}

/// Added to one token's logit.
#[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BiasEntry {
    /// Token id; one past the vocabulary is ignored.
    pub token: u32,
    /// Added.
    pub bias: f32,
}

impl BiasEntry {
    /// Writes the bias of `params` to a row of entries; entries behind are left alone.
    pub fn fill(params: &SamplingParams, row: &mut [BiasEntry]) {
        for (entry, &(token, bias)) in row.iter_mut().zip(&params.logit_bias) {
            *entry = BiasEntry { token: token.0, bias };
        }
    }
}

/// How a row went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum SampleStatus {
    /// A token was chosen.
    Ok = 0,
    /// A logit is NaN or +infinity: the model or its input is broken.
    NotFinite = 1,
    /// Mask and bias leave no token.
    NothingAllowed = 2,
    /// `target` is outside the vocabulary.
    BadTarget = 3,
}

impl SampleStatus {
    /// The status of a result word; `None` where no kernel can have written it.
    pub const fn from_word(word: u32) -> Option<SampleStatus> {
        match word {
            0 => Some(SampleStatus::Ok),
            1 => Some(SampleStatus::NotFinite),
            2 => Some(SampleStatus::NothingAllowed),
            3 => Some(SampleStatus::BadTarget),
            _ => None,
        }
    }
}

/// One row's outcome.
#[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct SampleResult {
    /// The token; 0 where the status is not `Ok`.
    pub token: u32,
    /// A [`SampleStatus`] as a word.
    pub status: u32,
    /// Natural log of the token's probability under the raw logits; NaN where none was asked for.
    pub logprob: f32,
    /// Entries of the two lists: what was asked for, or fewer where fewer are possible.
    pub top_count: u32,
    /// The most likely tokens under the raw logits, best first, ties by the lower id.
    pub top_ids: [u32; TOP_LOGPROBS_MAX],
    /// Their log-probabilities.
    pub top_logprobs: [f32; TOP_LOGPROBS_MAX],
}

impl SampleResult {
    /// What went wrong with the row, in words, where anything did.
    pub fn fault(&self) -> Option<&'static str> {
        match SampleStatus::from_word(self.status) {
            Some(SampleStatus::Ok) => None,
            Some(SampleStatus::NotFinite) => Some("a logit is NaN or infinite"),
            Some(SampleStatus::NothingAllowed) => Some("grammar and logit bias allow no token"),
            Some(SampleStatus::BadTarget) => Some("a reported token is outside the vocabulary"),
            None => Some("a sampling result holds a status that no kernel writes"),
        }
    }

    pub(super) fn of(token: u32, status: SampleStatus) -> SampleResult {
        SampleResult {
            token,
            status: status as u32,
            logprob: f32::NAN,
            top_count: 0,
            top_ids: [0; TOP_LOGPROBS_MAX],
            top_logprobs: [0.0; TOP_LOGPROBS_MAX],
        }
    }
}
