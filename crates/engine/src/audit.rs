//! The audit: a step that was chosen beforehand is checked while it serves.
//!
//! - *Tables.* What the step was given is compared with what its lease stands for.
//! - *Twin.* After the replay, the same inputs go through the eager twin in a shadow arena, and
//!   logits, sampling results and the pages that the step wrote are compared as bits. Under
//!   contract 1 any difference is a fault, not noise.
//!
//! The twin writes the same state as the replay did. What the replay wrote is kept before and put
//! back after, so a faulty twin cannot harm a sound replay.

use crate::generation::Bucket;
use lockstep_device::{Device, DeviceError, ExecId};
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::{AuditPart, AuditPartUse, BucketKey, EngineStatus, Lease, Micros};
use lockstep_plan::{BufferKind, StateKind};
use lockstep_sched::Batch;

/// A bucket that steps is audited at least this often.
const BUCKET_EVERY: Micros = Micros::from_millis(60_000);

/// Written pages of a step that are compared, at most: the first ones of its rows.
pub const PAGES_MAX: usize = 4;

/// Evidence that is kept, at most.
const EVIDENCE_MAX: usize = 16;

/// Which part of the audit found something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The step's tables.
    Tables,
    /// Replay against eager twin.
    Twin,
}

/// Something that the audit found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Evidence {
    /// Which part.
    pub part: Part,
    /// The step.
    pub step: u64,
    /// Its bucket.
    pub bucket: BucketKey,
    /// What differs, in words.
    pub what: String,
}

impl core::fmt::Display for Evidence {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let part = match self.part {
            Part::Tables => "tables",
            Part::Twin => "twin",
        };
        write!(f, "{part}: step {} of bucket {}: {}", self.step, self.bucket, self.what)
    }
}

/// The audit's schedule, working memory and findings. Nothing in it is allocated by a step that
/// finds nothing.
pub struct Audit {
    /// One step in this many; 0 is off.
    rate: u32,
    until: u32,
    last: Vec<Micros>,
    kept: Vec<u8>,
    again: Vec<u8>,
    pages: Vec<u32>,
    slots: Vec<(u32, [u8; 4], [u8; 4])>,
    /// Steps audited.
    pub audits: u64,
    /// Bytes compared.
    pub compared_bytes: u64,
    /// Findings by part: tables, twin.
    pub mismatches: [u64; 2],
    /// The first findings.
    pub evidence: Vec<Evidence>,
}

impl Audit {
    /// An audit of one step in `rate` over `buckets` buckets, of pages of `page_bytes` in all
    /// sub-pools together and steps of at most `rows_max` sequences.
    pub fn new(rate: u32, buckets: usize, page_bytes: u64, rows_max: usize) -> Audit {
        let bytes = if rate == 0 { 0 } else { page_bytes as usize * PAGES_MAX };
        Audit {
            rate,
            until: rate,
            last: vec![Micros(0); buckets],
            kept: vec![0; bytes],
            again: vec![0; bytes],
            pages: Vec::with_capacity(PAGES_MAX),
            slots: Vec::with_capacity(rows_max),
            audits: 0,
            compared_bytes: 0,
            mismatches: [0; 2],
            evidence: Vec::with_capacity(EVIDENCE_MAX),
        }
    }

    /// Decides, before a step runs, whether it is audited.
    pub fn choose(&mut self, bucket: usize, now: Micros) -> bool {
        if self.rate == 0 {
            return false;
        }
        self.until -= 1;
        if self.last[bucket] == Micros(0) {
            // The minute of a bucket starts with its first step: an audit right there would
            // double the time to the first token.
            self.last[bucket] = now;
        }
        let stale = now.since(self.last[bucket]) >= BUCKET_EVERY;
        let chosen = self.until == 0 || stale;
        if chosen {
            self.until = self.rate;
            self.last[bucket] = now;
        }
        chosen
    }

    /// Shows counts and findings.
    pub fn publish(&self, status: &mut EngineStatus) {
        for part in [AuditPart::Tables, AuditPart::Twin] {
            let bytes = if part == AuditPart::Twin { self.compared_bytes } else { 0 };
            let mismatches = self.mismatches[part as usize];
            status.audit.parts[part as usize] =
                AuditPartUse { audits: self.audits, bytes, mismatches };
        }
        for (to, last) in status.buckets.iter_mut().zip(&self.last) {
            to.audit.last = Some(*last).filter(|last| *last > Micros(0));
        }
        for evidence in self.evidence.iter().skip(status.audit.evidence.len()) {
            status.audit.evidence.push(evidence.to_string());
        }
    }

    /// Notes a finding.
    pub fn found(&mut self, part: Part, step: u64, bucket: BucketKey, what: String) {
        self.mismatches[part as usize] += 1;
        if self.evidence.len() < EVIDENCE_MAX {
            self.evidence.push(Evidence { part, step, bucket, what });
        }
    }

    /// Keeps what the twin has to start from: the inputs, and the last token of every slot of the
    /// step.
    pub fn before(
        &mut self,
        device: &mut dyn Device,
        bucket: &Bucket,
        twin: ExecId,
        batch: &Batch,
    ) -> Result<(), DeviceError> {
        device.copy_inputs(bucket.exec, twin);
        self.slots.clear();
        for row in &batch.rows {
            let slot = row.plan.slot.0;
            let mut token = [0; 4];
            device.read_state(LAST_TOKEN, u64::from(slot) * 4, &mut token)?;
            self.slots.push((slot, token, token));
        }
        Ok(())
    }

    /// Runs the twin after the replay and compares. Returns what differs first, in words.
    pub fn after(
        &mut self,
        device: &mut dyn Device,
        bucket: &Bucket,
        twin: ExecId,
        batch: &Batch,
        lease: &dyn Lease,
    ) -> Result<Option<String>, DeviceError> {
        self.audits += 1;
        self.written_pages(device, bucket, batch);
        let kept = self.read_pages(device, bucket, false)?;
        for (slot, before, after) in &mut self.slots {
            device.read_state(LAST_TOKEN, u64::from(*slot) * 4, after)?;
            device.write_state(LAST_TOKEN, u64::from(*slot) * 4, before)?;
        }
        device.eager(twin, lease)?;
        let again = self.read_pages(device, bucket, true)?;
        assert_eq!(kept, again, "the same pages are read before and after");
        let mut what = self.compare_pages(bucket, kept);
        for (slot, _, after) in &self.slots {
            let at = u64::from(*slot) * 4;
            let mut twin_token = [0; 4];
            device.read_state(LAST_TOKEN, at, &mut twin_token)?;
            if twin_token != *after {
                what.get_or_insert_with(|| format!("{LAST_TOKEN} of slot {slot} differs"));
            }
            device.write_state(LAST_TOKEN, at, after)?;
        }
        self.put_back(device, bucket)?;
        let plan = bucket.proven.plan();
        for id in [bucket.io.logits, bucket.io.results] {
            let buffer = plan.buffer(id);
            let row_bytes = buffer.rows.map_or(buffer.bytes, |(_, stride)| stride);
            let len = row_bytes * u64::from(batch.live.logit_rows);
            self.compared_bytes += len;
            if let Some(at) = device.first_difference(bucket.exec, twin, id, len) {
                let (name, row) = (&buffer.name, at / row_bytes.max(1));
                what.get_or_insert_with(|| format!("{name} differs at byte {at}, row {row}"));
            }
        }
        Ok(what)
    }

    /// The first distinct pages that the step's live rows write.
    fn written_pages(&mut self, device: &mut dyn Device, bucket: &Bucket, batch: &Batch) {
        self.pages.clear();
        let bytes = device.input_mut(bucket.exec, bucket.io.write_slots);
        let slots: &[u32] = bytemuck::cast_slice(bytes);
        for slot in &slots[..batch.live.tokens as usize] {
            let page = slot / PAGE_TOKENS;
            if self.pages.len() < PAGES_MAX && !self.pages.contains(&page) {
                self.pages.push(page);
            }
        }
    }

    fn read_pages(
        &mut self,
        device: &dyn Device,
        bucket: &Bucket,
        again: bool,
    ) -> Result<usize, DeviceError> {
        let to = if again { &mut self.again } else { &mut self.kept };
        let mut at = 0;
        for &page in &self.pages {
            for (name, page_bytes) in page_buffers(bucket) {
                let out = &mut to[at..at + page_bytes];
                device.read_state(name, page as u64 * page_bytes as u64, out)?;
                at += page_bytes;
            }
        }
        Ok(at)
    }

    fn compare_pages(&mut self, bucket: &Bucket, len: usize) -> Option<String> {
        self.compared_bytes += len as u64;
        if self.kept[..len] == self.again[..len] {
            return None;
        }
        let mut at = 0;
        for &page in &self.pages {
            for (name, page_bytes) in page_buffers(bucket) {
                let (a, b) = (&self.kept[at..at + page_bytes], &self.again[at..at + page_bytes]);
                if let Some(byte) = a.iter().zip(b).position(|(a, b)| a != b) {
                    return Some(format!("{name} differs at byte {byte} of page {page}"));
                }
                at += page_bytes;
            }
        }
        None
    }

    fn put_back(&self, device: &mut dyn Device, bucket: &Bucket) -> Result<(), DeviceError> {
        let mut at = 0;
        for &page in &self.pages {
            for (name, page_bytes) in page_buffers(bucket) {
                let bytes = &self.kept[at..at + page_bytes];
                device.write_state(name, page as u64 * page_bytes as u64, bytes)?;
                at += page_bytes;
            }
        }
        Ok(())
    }
}

/// The state that sampling updates.
const LAST_TOKEN: &str = "last_token";

/// Page buffers of a plan, with the bytes of one page of each.
fn page_buffers(bucket: &Bucket) -> impl Iterator<Item = (&str, usize)> {
    bucket.proven.plan().buffers.iter().filter_map(|b| match b.kind {
        BufferKind::State(StateKind::Pages { page_bytes }) => {
            Some((b.name.as_str(), page_bytes as usize))
        }
        _ => None,
    })
}
