//! The host lane's writes before a step, and its reads after.

use crate::active::Active;
use crate::generation::Io;
use lockstep_device::sample::{BiasEntry, SampleParams, SampleResult};
use lockstep_device::{Device, ExecId};
use lockstep_flow::limits::LOGIT_BIAS_MAX;
use lockstep_flow::{Failure, SamplingParams, Token};
use lockstep_plan::TOKEN_FROM_LAST;
use lockstep_pool::Logits;
use lockstep_sched::{Batch, Run, Scheduler, SeqRow, TokenSource};

/// Writes where each token row takes its token from; padded rows take token 0.
pub fn token_sources(sched: &Scheduler, batch: &Batch, to: &mut [u32]) {
    let mut at = 0;
    for row in &batch.rows {
        let n = row.plan.n_tokens as usize;
        match row.source {
            TokenSource::LastToken => to[at] = TOKEN_FROM_LAST,
            TokenSource::Literal => {
                let tokens = sched.literal(row);
                let drafts = sched.drafts(row);
                assert_eq!(tokens.len() + drafts.len(), n, "a live row has its tokens");
                for (to, token) in to[at..].iter_mut().zip(tokens.iter().chain(drafts)) {
                    *to = token.0;
                }
            }
        }
        at += n;
    }
    to[at..].fill(0);
}

/// The logit rows of one sequence row.
pub struct SamplingRows<'a> {
    /// The step's executable.
    pub exec: ExecId,
    /// Its inputs.
    pub io: &'a Io,
    /// First logit row.
    pub first: u32,
    /// Vocabulary, in tokens.
    pub vocab: u32,
    /// Tokens that end a text.
    pub eos: &'a [Token],
}

impl SamplingRows<'_> {
    /// Writes parameters, bias and mask. False where there is no mask although there should be one:
    /// the rows then sample without it and the request ends with the reason.
    pub fn write(&self, device: &mut dyn Device, row: &SeqRow, active: &mut Active) -> bool {
        let n = row.plan.logit_rows();
        let first_position = row.plan.end() - n;
        let samples_at = match (row.plan.samples, row.plan.logits) {
            (true, Logits::Drafts) => 0,
            (true, _) => n - 1,
            (false, _) => n,
        };
        if row.plan.logits == Logits::All {
            let top = active.params.logprobs.unwrap_or(0);
            for i in 0..samples_at.min(n) {
                // The logits of position p are those of the prompt's token at p + 1.
                let next = active.prompt.get((first_position + i + 1) as usize);
                let params = SampleParams::report(next.map_or(0, |t| t.0), top);
                self.put_params(device, i, params);
            }
        }
        (samples_at..n).all(|i| self.write_sampling(device, i, first_position + i, active))
    }

    /// Writes what row `i` samples by, the one after the token at `position`.
    fn write_sampling(
        &self,
        device: &mut dyn Device,
        i: u32,
        position: u32,
        active: &mut Active,
    ) -> bool {
        let prompt_len = active.prompt.len() as u32;
        let produced = position + 1 - prompt_len;
        let masked = match self.write_mask(device, i, active, produced) {
            Ok(masked) => masked,
            Err(failure) => {
                active.fail(failure);
                return false;
            }
        };
        let params = SampleParams::of(&active.params, position, prompt_len, masked);
        self.put_params(device, i, params);
        if !active.params.logit_bias.is_empty() {
            let size = LOGIT_BIAS_MAX * size_of::<BiasEntry>();
            let at = (self.first + i) as usize * size;
            let bytes = &mut device.input_mut(self.exec, self.io.bias)[at..at + size];
            BiasEntry::fill(&active.params, bytemuck::cast_slice_mut(bytes));
        }
        true
    }

    fn put_params(&self, device: &mut dyn Device, row: u32, params: SampleParams) {
        let all = bytemuck::cast_slice_mut::<u8, SampleParams>(
            device.input_mut(self.exec, self.io.params),
        );
        all[(self.first + row) as usize] = params;
    }

    /// Fills the row's mask, of its grammar and of `min_tokens`; true where there is one. What it
    /// holds follows from the request's own tokens alone.
    fn write_mask(
        &self,
        device: &mut dyn Device,
        row: u32,
        active: &mut Active,
        produced: u32,
    ) -> Result<bool, Failure> {
        let early = produced < active.params.min_tokens;
        if !active.is_constrained() && !early {
            return Ok(false);
        }
        let words = self.vocab.div_ceil(32) as usize;
        let masks = bytemuck::cast_slice_mut::<u8, u32>(device.input_mut(self.exec, self.io.masks));
        let at = (self.first + row) as usize * words;
        let mask = &mut masks[at..at + words];
        match (&active.guide, active.is_constrained()) {
            (Some(guide), _) => mask.copy_from_slice(&guide.words),
            (None, false) => mask.fill(u32::MAX),
            (None, true) => {
                let what = "a row samples before its mask is there".into();
                return Err(Failure::Engine { what });
            }
        }
        if early {
            self.forbid_end(mask, &active.params);
            if let (Some(guide), true) = (&active.guide, mask.iter().all(|word| *word == 0)) {
                // The grammar's text is complete: it ends, however short it is.
                mask.copy_from_slice(&guide.words);
            }
        }
        Ok(true)
    }

    /// Takes the tokens that end the text out of a mask.
    fn forbid_end(&self, mask: &mut [u32], params: &SamplingParams) {
        let eos = self.eos.iter().filter(|_| !params.ignore_eos);
        for token in eos.chain(&params.stop_tokens) {
            if let Some(word) = mask.get_mut(token.index() / 32) {
                *word &= !(1 << (token.0 % 32));
            }
        }
    }
}

/// What was drafted after a logit row.
pub fn drafts(device: &dyn Device, exec: ExecId, io: &Io, row: usize) -> Run {
    let word = |id| bytemuck::cast_slice::<u8, u32>(device.output(exec, id))[row];
    io.drafts.iter().flatten().map(|&id| Token(word(id))).collect()
}

/// The result rows of a step.
pub fn results(bytes: &[u8]) -> &[SampleResult] {
    bytemuck::cast_slice(bytes)
}
