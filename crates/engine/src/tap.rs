//! Looking at logits: what tests and audits compare as bits.

use crate::generation::Bucket;
use lockstep_device::Device;
use lockstep_flow::RequestId;
use lockstep_sched::{Batch, Outcome};

/// Sees the logits of every live row of every step, on the step thread, after the step has run and
/// before anything is made of its outcome.
pub trait LogitTap: Send {
    /// `logits[v]` is the model's own logit of token `v` at the position after `position`, before
    /// penalties, bias, mask and temperature.
    fn row(&mut self, request: RequestId, position: u32, logits: &[f32]);

    /// `logits[v]` is the prediction block's logit of token `v` two positions after `position`
    /// (more, where it drafts more than one token: of the last draft).
    fn draft(&mut self, _request: RequestId, _position: u32, _logits: &[f32]) {}
}

/// A tap and the row that it is shown.
pub struct Tap {
    tap: Box<dyn LogitTap>,
    row: Vec<f32>,
}

impl Tap {
    /// A tap of a model with `vocab` tokens.
    pub fn new(tap: Box<dyn LogitTap>, vocab: u32) -> Tap {
        Tap { tap, row: vec![0.0; vocab as usize] }
    }

    /// Shows the logit rows of the step that has just run.
    /// `outcomes` say which rows count: none behind a draft that was wrong.
    pub fn show(
        &mut self,
        device: &dyn Device,
        bucket: &Bucket,
        batch: &Batch,
        outcomes: &[Outcome],
    ) {
        let bytes = size_of_val(&self.row[..]) as u64;
        let mut first = 0;
        for (row, outcome) in batch.rows.iter().zip(outcomes) {
            let n = row.plan.logit_rows();
            let counts = match outcome {
                Outcome::Verified { sampled, .. } => n - row.drafts - 1 + sampled.len(),
                _ => n - row.drafts,
            };
            let request = row.plan.request;
            for (i, position) in (row.plan.end() - n..).enumerate().take(counts as usize) {
                let at = (first + i as u64) * bytes;
                let out = bytemuck::cast_slice_mut(&mut self.row);
                device.peek(bucket.exec, bucket.io.logits, at, out);
                self.tap.row(request, position, &self.row);
                let Some(logits) = bucket.io.draft_logits else { continue };
                let out = bytemuck::cast_slice_mut(&mut self.row);
                device.peek(bucket.exec, logits, at, out);
                self.tap.draft(request, position, &self.row);
            }
            first += u64::from(n);
        }
    }
}
