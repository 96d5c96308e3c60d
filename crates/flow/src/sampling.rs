//! How a token is chosen from a row of logits, and the bounds of every parameter.

use crate::limits;
use crate::{Seed, Token};
use core::fmt;

/// Sampling parameters of one request, checked once at admission by [`SamplingParams::check`].
///
/// Order of application, the same on every device (the order that vLLM documents):
/// repetition, presence and frequency penalty; logit bias; mask of the grammar, and before
/// `min_tokens` of the tokens that would end the text; temperature;
/// top-k; top-p; min-p; draw. Ties are broken by the lower token id everywhere.
#[derive(Clone, PartialEq, Debug)]
pub struct SamplingParams {
    /// 0 is greedy. Range 0..=2 on the OpenAI endpoints.
    pub temperature: f32,
    /// Keep the `top_k` most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set whose probability reaches `top_p`; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than `min_p` times the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Divides (or multiplies, where negative) logits of tokens seen in prompt or output; 1 is off.
    /// [`limits::REPETITION_PENALTY_MIN`] to [`limits::REPETITION_PENALTY_MAX`].
    pub repetition_penalty: f32,
    /// Subtracted once from tokens seen in the output.
    pub presence_penalty: f32,
    /// Subtracted per occurrence in the output.
    pub frequency_penalty: f32,
    /// Added to a token's logit, at most [`limits::LOGIT_BIAS_MAX`] entries.
    pub logit_bias: Vec<(Token, f32)>,
    /// Seeds the draws of this request; with `choice` and the position it fixes every draw.
    pub seed: Seed,
    /// Which of `n` choices this sequence is.
    pub choice: u32,
    /// How many alternatives to report with each token's log-probability; `None` reports none.
    pub logprobs: Option<u32>,
    /// Report log-probabilities of the prompt's own tokens too (`echo` with `logprobs`).
    pub prompt_logprobs: bool,
    /// Most tokens to produce.
    pub max_tokens: u32,
    /// Before this many tokens none is chosen that would end the text, unless the grammar allows
    /// no other.
    pub min_tokens: u32,
    /// Go on past end-of-text tokens (load tests).
    pub ignore_eos: bool,
    /// Tokens that end the text, beside the model's own.
    pub stop_tokens: Vec<Token>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: Seed(0),
            choice: 0,
            logprobs: None,
            prompt_logprobs: false,
            max_tokens: limits::MAX_TOKENS_DEFAULT,
            min_tokens: 0,
            ignore_eos: false,
            stop_tokens: Vec::new(),
        }
    }
}

/// A parameter out of its range: which, what it was, what would work.
#[derive(Clone, PartialEq, Debug)]
pub struct SamplingError {
    /// The parameter's name on the wire.
    pub param: &'static str,
    /// What was given.
    pub found: String,
    /// What is accepted.
    pub expected: &'static str,
}

impl fmt::Display for SamplingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}; it must be {}", self.param, self.found, self.expected)
    }
}

impl core::error::Error for SamplingError {}

impl SamplingParams {
    /// Checks every bound; `vocab` is the model's vocabulary size in tokens.
    pub fn check(&self, vocab: u32) -> Result<(), SamplingError> {
        let f = |param, value: f32, ok: bool, expected| {
            if ok {
                Ok(())
            } else {
                Err(SamplingError { param, found: value.to_string(), expected })
            }
        };
        let t = self.temperature;
        f("temperature", t, (0.0..=100.0).contains(&t), "between 0 and 100")?;
        f("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1")?;
        f("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "between 0 and 1")?;
        let r = self.repetition_penalty;
        let (least, most) = (limits::REPETITION_PENALTY_MIN, limits::REPETITION_PENALTY_MAX);
        f("repetition_penalty", r, (least..=most).contains(&r), "between 0.01 and 10")?;
        for (param, v) in [
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            f(param, v, (-2.0..=2.0).contains(&v), "between -2 and 2")?;
        }
        let n = |param, found: usize, ok: bool, expected| {
            if ok {
                Ok(())
            } else {
                Err(SamplingError { param, found: found.to_string(), expected })
            }
        };
        let bias = self.logit_bias.len();
        n("logit_bias", bias, bias <= limits::LOGIT_BIAS_MAX, "at most 512 entries")?;
        for (token, value) in &self.logit_bias {
            n("logit_bias", token.index(), token.0 < vocab, "token ids inside the vocabulary")?;
            f("logit_bias", *value, (-100.0..=100.0).contains(value), "between -100 and 100")?;
        }
        let lp = self.logprobs.unwrap_or(0) as usize;
        n("logprobs", lp, lp <= limits::TOP_LOGPROBS_MAX, "at most 20")?;
        let stops = self.stop_tokens.len();
        n("stop_token_ids", stops, stops <= limits::STOP_TOKENS_MAX, "at most 64 entries")?;
        for token in &self.stop_tokens {
            n("stop_token_ids", token.index(), token.0 < vocab, "token ids inside the vocabulary")?;
        }
        n("max_tokens", 0, self.max_tokens > 0, "at least 1")
    }

    /// True where the draw is the argmax.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }

    /// True where any penalty changes logits.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeated(repetition_penalty: f32) -> Result<(), SamplingError> {
        SamplingParams { repetition_penalty, ..SamplingParams::default() }.check(100)
    }

    #[test]
    fn a_repetition_penalty_that_makes_logits_infinite_is_refused() {
        let logit = 1e30_f32;
        for r in [limits::REPETITION_PENALTY_MIN, 1.0, limits::REPETITION_PENALTY_MAX] {
            assert_eq!(repeated(r), Ok(()));
            assert!((logit / r).is_finite() && (-logit * r).is_finite(), "{r}");
        }
        for r in [0.0, -1.0, 1e-45, 1e-40, 1e-38, 0.0099, 10.01, f32::INFINITY, f32::NAN] {
            let e = repeated(r).unwrap_err();
            assert_eq!((e.param, e.expected), ("repetition_penalty", "between 0.01 and 10"), "{r}");
        }
    }

    #[test]
    fn no_other_parameter_within_its_bounds_makes_a_logit_infinite() {
        let most = SamplingParams {
            presence_penalty: -2.0,
            frequency_penalty: -2.0,
            logit_bias: vec![(Token(0), 100.0)],
            ..SamplingParams::default()
        };
        assert_eq!(most.check(100), Ok(()));
        let count = limits::CONTEXT_TOKENS_MAX as f32;
        let logit = 1e30 - count * most.frequency_penalty - most.presence_penalty;
        assert!((logit + most.logit_bias[0].1).is_finite());
        // A temperature divides differences from the greatest logit, which are 0 or below: the
        // quotient is 0 or makes no weight, as small as the temperature may be.
        let cold = SamplingParams { temperature: 1e-45, ..SamplingParams::default() };
        assert_eq!(cold.check(100), Ok(()));
    }
}
