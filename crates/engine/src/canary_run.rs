//! One canary step: inputs that are the same every time, and what the step leaves.

use crate::core::tables;
use crate::generation::{Bucket, Io};
use lockstep_device::sample::{BiasEntry, SampleParams};
use lockstep_device::{Device, DeviceError, Mode};
use lockstep_flow::limits::{LOGIT_BIAS_MAX, PAGE_TOKENS};
use lockstep_flow::{SamplingParams, Seed, Token};
use lockstep_plan::{BufferKind, StateKind, TOKEN_FROM_LAST};
use lockstep_pool::RowPlan;
use lockstep_sched::Scheduler;

/// Bytes of logits that are compared of a step: rows of it, evenly spread.
const LOGIT_BYTES_MAX: u64 = 4 << 20;
/// Rows whose written page and slot state are compared.
const PAGES_COMPARED: usize = 2;
/// Ways to sample, by row in turn: greedy; everything at once; a bias; a mask.
fn sampling(row: u32) -> SamplingParams {
    let plain = SamplingParams { logprobs: Some(5), ..SamplingParams::default() };
    match row % 4 {
        0 => SamplingParams { temperature: 0.0, ..plain },
        1 => SamplingParams {
            temperature: 0.9,
            top_p: 0.95,
            top_k: 40,
            repetition_penalty: 1.1,
            presence_penalty: 0.2,
            frequency_penalty: 0.1,
            seed: Seed(u64::from(row)),
            ..plain
        },
        2 => SamplingParams { logit_bias: vec![(Token(1), 2.0), (Token(7), -3.0)], ..plain },
        _ => SamplingParams { seed: Seed(u64::from(row) << 32), ..plain },
    }
}

fn is_masked(row: u32) -> bool {
    row % 4 == 3
}

/// The token at a position of a canary sequence; any would do.
fn token(seq: u32, position: u32, vocab: u32) -> u32 {
    (seq.wrapping_mul(2_654_435_761) ^ position.wrapping_mul(40_503).wrapping_add(17)) % vocab
}

/// True where a row takes its token from the device, as a decode row behind a step in flight does.
fn from_last(i: usize, row: &RowPlan) -> bool {
    i % 2 == 1 && row.n_tokens == 1
}

/// State by slots of a bucket's plan: names, and bytes of one slot.
pub fn slot_state(bucket: &Bucket) -> impl Iterator<Item = (&str, u64)> {
    bucket.proven.plan().buffers.iter().filter_map(|b| match b.kind {
        BufferKind::State(StateKind::Slots { slot_bytes }) => Some((b.name.as_str(), slot_bytes)),
        _ => None,
    })
}

/// Bits that differ between two runs of bytes; where one is longer, all of what is over.
pub fn differing_bits(a: &[u8], b: &[u8]) -> u64 {
    let common = a.len().min(b.len());
    let over = 8 * (a.len().max(b.len()) - common) as u64;
    if a[..common] == b[..common] {
        return over;
    }
    let bits = |(a, b): (&u8, &u8)| u64::from((a ^ b).count_ones());
    over + a.iter().zip(b).map(bits).sum::<u64>()
}

/// A canary step of a bucket.
pub struct CanaryRun<'a> {
    /// Which.
    pub bucket: &'a Bucket,
    /// Its rows.
    pub rows: &'a [RowPlan],
    /// Tokens of the vocabulary.
    pub vocab: u32,
}

impl CanaryRun<'_> {
    /// Leases, writes the inputs, runs, and gives the lease back.
    pub fn step(
        &self,
        device: &mut dyn Device,
        sched: &mut Scheduler,
        mode: Mode,
        first: bool,
    ) -> Result<(), String> {
        let Bucket { exec, io, key, .. } = *self.bucket;
        if first {
            device.check_manifest(exec).map_err(|e| e.to_string())?;
        }
        for (i, row) in self.rows.iter().enumerate().filter(|(i, row)| from_last(*i, row)) {
            let last = token(i as u32, row.first_position.0, self.vocab);
            let at = u64::from(row.slot.0) * 4;
            let wrote = device.write_state("last_token", at, &last.to_le_bytes());
            wrote.map_err(|e| e.to_string())?;
        }
        let (mut tables, source) = tables(device, exec, &io);
        self.sources(source);
        let lease = sched.lease_canary(self.rows, key, &mut tables).map_err(|e| e.to_string())?;
        self.inputs(device);
        let ran = match mode {
            Mode::Captured => device.replay(exec, &lease),
            Mode::Eager => device.eager(exec, &lease),
        };
        sched.end_canary(lease).map_err(|e| e.to_string())?;
        ran.map_err(|e| e.to_string())
    }

    fn sources(&self, to: &mut [u32]) {
        let mut at = 0;
        for (i, row) in self.rows.iter().enumerate() {
            for position in row.first_position.0..row.end() {
                to[at] = token(i as u32, position, self.vocab);
                at += 1;
            }
            if from_last(i, row) {
                to[at - 1] = TOKEN_FROM_LAST;
            }
        }
        to[at..].fill(0);
    }

    /// Live counts, and how each logit row samples.
    fn inputs(&self, device: &mut dyn Device) {
        let Bucket { exec, io, .. } = self.bucket;
        let live: [u32; 3] = self.live().into();
        bytemuck::cast_slice_mut::<u8, u32>(device.input_mut(*exec, io.live_counts))
            .copy_from_slice(&live);
        let mut logit = 0;
        for (i, row) in self.rows.iter().enumerate() {
            let (i, n) = (i as u32, row.logit_rows());
            for report in 0..n - 1 {
                let next = token(i, row.first_position.0 + report + 1, self.vocab);
                self.params(device, logit + report, SampleParams::report(next, 3));
            }
            logit += n;
            let (at, sampling) = (logit - 1, sampling(i));
            let params = SampleParams::of(&sampling, row.end() - 1, 1, is_masked(i));
            self.params(device, at, params);
            if !sampling.logit_bias.is_empty() {
                let size = LOGIT_BIAS_MAX * size_of::<BiasEntry>();
                let bytes = &mut device.input_mut(*exec, io.bias)[at as usize * size..][..size];
                BiasEntry::fill(&sampling, bytemuck::cast_slice_mut(bytes));
            }
            if is_masked(i) {
                let words = self.vocab.div_ceil(32) as usize;
                let masks = bytemuck::cast_slice_mut::<u8, u32>(device.input_mut(*exec, io.masks));
                masks[at as usize * words..][..words].fill(0x5555_5555);
            }
        }
    }

    fn params(&self, device: &mut dyn Device, row: u32, params: SampleParams) {
        let Bucket { exec, io, .. } = self.bucket;
        let all = device.input_mut(*exec, io.params);
        bytemuck::cast_slice_mut::<u8, SampleParams>(all)[row as usize] = params;
    }

    fn live(&self) -> (u32, u32, u32) {
        let tokens = self.rows.iter().map(|r| r.n_tokens).sum();
        let logit_rows = self.rows.iter().map(|r| r.logit_rows()).sum();
        (tokens, self.rows.len() as u32, logit_rows)
    }

    /// Keeps what a step updates in place.
    pub fn keep_slots(&self, device: &dyn Device, to: &mut Vec<u8>) -> Result<(), DeviceError> {
        to.clear();
        for row in self.rows {
            self.slot(device, row, to)?;
        }
        Ok(())
    }

    /// Puts it back.
    pub fn put_slots_back(&self, device: &mut dyn Device, kept: &[u8]) -> Result<(), DeviceError> {
        let mut at = 0;
        for row in self.rows {
            for (name, bytes) in slot_state(self.bucket) {
                let to = u64::from(row.slot.0) * bytes;
                device.write_state(name, to, &kept[at..at + bytes as usize])?;
                at += bytes as usize;
            }
        }
        Ok(())
    }

    /// All state of a row's slot.
    fn slot(
        &self,
        device: &dyn Device,
        row: &RowPlan,
        to: &mut Vec<u8>,
    ) -> Result<(), DeviceError> {
        for (name, bytes) in slot_state(self.bucket) {
            let at = to.len();
            to.resize(at + bytes as usize, 0);
            device.read_state(name, u64::from(row.slot.0) * bytes, &mut to[at..])?;
        }
        Ok(())
    }

    /// What a step left: sampling results and last tokens of all rows, logits of some, slot state
    /// and written pages of some.
    pub fn look(&self, device: &dyn Device, to: &mut Vec<u8>) -> Result<(), DeviceError> {
        let Bucket { exec, io, .. } = self.bucket;
        let plan = self.bucket.proven.plan();
        let (_, _, logit_rows) = self.live();
        to.clear();
        let stride = |id| plan.buffer(id).rows.map_or(0, |(_, stride)| stride);
        let results = stride(io.results) as usize * logit_rows as usize;
        to.extend_from_slice(&device.output(*exec, io.results)[..results]);
        let stride = stride(io.logits);
        let rows = (LOGIT_BYTES_MAX / stride.max(1)).clamp(1, u64::from(logit_rows));
        let every = u64::from(logit_rows).div_ceil(rows).max(1);
        for row in (0..u64::from(logit_rows)).step_by(every as usize) {
            let at = to.len();
            to.resize(at + stride as usize, 0);
            device.peek(*exec, io.logits, row * stride, &mut to[at..]);
        }
        for row in self.rows {
            let at = to.len();
            to.resize(at + 4, 0);
            device.read_state("last_token", u64::from(row.slot.0) * 4, &mut to[at..])?;
        }
        for row in self.rows.iter().rev().take(PAGES_COMPARED) {
            self.slot(device, row, to)?;
        }
        self.pages(device, io, to)
    }

    /// The page that each of the last rows wrote, in every buffer of pages.
    fn pages(&self, device: &dyn Device, io: &Io, to: &mut Vec<u8>) -> Result<(), DeviceError> {
        let plan = self.bucket.proven.plan();
        let (tokens, ..) = self.live();
        let mut slots = vec![0u8; 4 * tokens as usize];
        device.peek(self.bucket.exec, io.write_slots, 0, &mut slots);
        let mut token = 0;
        for row in self.rows.iter().rev().take(PAGES_COMPARED) {
            token += row.n_tokens as usize;
            let slot = &slots[4 * (tokens as usize - token)..][..4];
            let slot = u32::from_le_bytes(slot.try_into().expect("four bytes"));
            let page = u64::from(slot / PAGE_TOKENS);
            for buffer in &plan.buffers {
                if let BufferKind::State(StateKind::Pages { page_bytes }) = buffer.kind {
                    let at = to.len();
                    to.resize(at + page_bytes as usize, 0);
                    device.read_state(&buffer.name, page * page_bytes, &mut to[at..])?;
                }
            }
        }
        Ok(())
    }
}
