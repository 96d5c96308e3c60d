//! Looking at logits: what tests and audits compare as bits.

use crate::generation::Bucket;
use lockstep_device::Device;
use lockstep_flow::RequestId;
use lockstep_sched::Batch;

/// Sees the logits of every live row of every step, on the step thread, after the step has run and
/// before anything is made of its outcome.
pub trait LogitTap: Send {
    /// `logits[v]` is the model's own logit of token `v` at the position after `position`, before
    /// penalties, bias, mask and temperature.
    fn row(&mut self, request: RequestId, position: u32, logits: &[f32]);
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
    pub fn show(&mut self, device: &dyn Device, bucket: &Bucket, batch: &Batch) {
        let bytes = size_of_val(&self.row[..]) as u64;
        let mut logit_row = 0;
        for row in &batch.rows {
            let n = row.plan.logit_rows();
            for position in row.plan.end() - n..row.plan.end() {
                let out = bytemuck::cast_slice_mut(&mut self.row);
                device.peek(bucket.exec, bucket.io.logits, logit_row * bytes, out);
                self.tap.row(row.plan.request, position, &self.row);
                logit_row += 1;
            }
        }
    }
}
