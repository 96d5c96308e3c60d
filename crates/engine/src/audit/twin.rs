//! A replay against its eager twin, as bits.
//!
//! Both write the same pages at the same places, so pages need not be kept or put back: their
//! digests are taken after the replay and again after the twin. State that a step updates in
//! place (what a slot holds) is kept before the replay, given to the twin, and put back after.

use super::evidence::{Place, Point};
use crate::generation::Bucket;
use lockstep_device::{Device, DeviceError, ExecId, PageBuffer};
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::{BucketKey, Lease};
use lockstep_plan::{Axis, Buffer, BufferId, BufferKind};
use lockstep_pool::Pool;
use lockstep_sched::Batch;

/// A page that the step writes, and the row that does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// The page.
    pub page: u32,
    /// The batch row.
    pub row: u32,
}

/// What a twin starts from, and what is compared.
#[derive(Debug)]
pub struct Twin {
    /// The buffers of a page group.
    pub page_buffers: Vec<PageBuffer>,
    /// State by slots: name and bytes of one slot.
    pub slot_buffers: Vec<(String, usize)>,
    /// Pages that the step writes.
    pub written: Vec<Written>,
    /// Slot of each row.
    pub slots: Vec<u32>,
    pages: Vec<u32>,
    replayed: Vec<u64>,
    again: Vec<u64>,
    /// `[rows][slot buffers]`, before the step.
    pub before: Vec<u8>,
    after: Vec<u8>,
    twins: Vec<u8>,
    /// By row: what came of it differs.
    pub suspects: Vec<bool>,
    /// Bytes compared by the last [`Twin::compare`].
    pub compared: u64,
}

/// A step that is audited.
pub struct Step<'a> {
    /// Its bucket.
    pub bucket: &'a Bucket,
    /// The bucket's twin.
    pub twin: ExecId,
    /// Its rows.
    pub batch: &'a Batch,
    /// Its lease.
    pub lease: &'a dyn Lease,
}

impl Twin {
    /// Working memory for steps of at most `rows` sequences and `tokens` tokens.
    pub fn new(
        page_buffers: &[PageBuffer],
        slot_buffers: Vec<(String, usize)>,
        rows: usize,
        tokens: usize,
    ) -> Twin {
        let on = usize::from(!page_buffers.is_empty());
        // A row that starts and ends inside pages touches one more than its tokens fill, and one.
        let pages = on * (2 * rows + tokens / PAGE_TOKENS as usize);
        let slot_bytes: usize = slot_buffers.iter().map(|(_, bytes)| bytes).sum();
        let words = vec![0; pages * page_buffers.len()];
        let bytes = vec![0; on * rows * slot_bytes];
        Twin {
            page_buffers: page_buffers.to_vec(),
            slot_buffers,
            written: Vec::with_capacity(pages),
            slots: Vec::with_capacity(rows),
            pages: Vec::with_capacity(pages),
            replayed: words.clone(),
            again: words,
            before: bytes.clone(),
            after: bytes.clone(),
            twins: bytes,
            suspects: Vec::with_capacity(rows),
            compared: 0,
        }
    }

    /// Keeps what the twin has to start from: the inputs, and what the step's slots hold.
    ///
    /// # Errors
    /// The device's.
    pub fn prepare(
        &mut self,
        device: &mut dyn Device,
        step: &Step<'_>,
        pool: &Pool,
    ) -> Result<(), DeviceError> {
        device.copy_inputs(step.bucket.exec, step.twin);
        self.slots.clear();
        self.written.clear();
        for (row, r) in step.batch.rows.iter().enumerate() {
            self.slots.push(r.plan.slot.0);
            let table = pool.block_table(r.plan.slot);
            let (first, last) = (r.plan.first_position.0, r.plan.end() - 1);
            for i in first / PAGE_TOKENS..=last / PAGE_TOKENS {
                self.written.push(Written { page: table[i as usize], row: row as u32 });
            }
        }
        self.pages.clear();
        self.pages.extend(self.written.iter().map(|w| w.page));
        read_slots(device, &self.slot_buffers, &self.slots, &mut self.before)
    }

    /// Runs the twin after the replay and compares. Gives the first point that differs; which
    /// rows do is in `suspects` then.
    ///
    /// # Errors
    /// The device's.
    pub fn compare(
        &mut self,
        device: &mut dyn Device,
        step: &Step<'_>,
    ) -> Result<Option<Point>, DeviceError> {
        self.suspects.clear();
        self.suspects.resize(step.batch.rows.len(), false);
        let words = self.pages.len() * self.page_buffers.len();
        device.digest_pages(&self.page_buffers, &self.pages, &mut self.replayed[..words])?;
        read_slots(device, &self.slot_buffers, &self.slots, &mut self.after)?;
        write_slots(device, &self.slot_buffers, &self.slots, &self.before)?;
        device.eager(step.twin, step.lease)?;
        device.digest_pages(&self.page_buffers, &self.pages, &mut self.again[..words])?;
        read_slots(device, &self.slot_buffers, &self.slots, &mut self.twins)?;
        write_slots(device, &self.slot_buffers, &self.slots, &self.after)?;
        let page_bytes: u64 = self.page_buffers.iter().map(|b| b.page_bytes).sum();
        let slot_bytes: usize = self.slot_buffers.iter().map(|(_, bytes)| bytes).sum();
        self.compared = self.pages.len() as u64 * page_bytes;
        self.compared += (self.slots.len() * slot_bytes) as u64;
        let mut first = self.compare_pages(words);
        first = first.or(self.compare_slots(slot_bytes));
        for id in outputs(step.bucket) {
            let point = self.compare_output(device, step, id);
            first = first.or(point);
        }
        Ok(first)
    }

    /// Rows whose result differs; all of them where it is not known which.
    pub fn suspect_rows(&self) -> u32 {
        self.suspects.iter().filter(|s| **s).count() as u32
    }

    fn compare_pages(&mut self, words: usize) -> Option<Point> {
        let (replayed, again) = (&self.replayed[..words], &self.again[..words]);
        if replayed == again {
            return None;
        }
        let mut first: Option<(usize, Point)> = None;
        let per_page = self.page_buffers.len();
        for i in (0..words).filter(|&i| replayed[i] != again[i]) {
            let (Written { page, row }, buffer) = (self.written[i / per_page], i % per_page);
            self.suspects[row as usize] = true;
            if first.as_ref().is_none_or(|(at, _)| buffer < *at) {
                let name = self.page_buffers[buffer].name.clone();
                let point = Point { buffer: name, place: Place::Page(page), byte: None };
                first = Some((buffer, point));
            }
        }
        first.map(|(_, point)| point)
    }

    fn compare_slots(&mut self, slot_bytes: usize) -> Option<Point> {
        let len = self.slots.len() * slot_bytes;
        if self.after[..len] == self.twins[..len] {
            return None;
        }
        let mut first = None;
        for (row, &slot) in self.slots.iter().enumerate() {
            let mut at = row * slot_bytes;
            for (name, bytes) in &self.slot_buffers {
                let (a, b) = (&self.after[at..at + bytes], &self.twins[at..at + bytes]);
                if let Some(byte) = a.iter().zip(b).position(|(a, b)| a != b) {
                    self.suspects[row] = true;
                    first.get_or_insert_with(|| {
                        let (buffer, byte) = (name.clone(), Some(byte as u64));
                        Point { buffer, place: Place::Slot(slot), byte }
                    });
                }
                at += bytes;
            }
        }
        first
    }

    fn compare_output(
        &mut self,
        device: &dyn Device,
        step: &Step<'_>,
        id: BufferId,
    ) -> Option<Point> {
        let Step { bucket, twin, batch, .. } = step;
        let buffer = bucket.proven.plan().buffer(id);
        let len = live_bytes(buffer, batch.live);
        self.compared += len;
        let at = device.first_difference(bucket.exec, *twin, id, len)?;
        let name = buffer.name.clone();
        let Some((axis, stride)) = buffer.rows else {
            self.suspects.fill(true);
            return Some(Point { buffer: name, place: Place::Whole, byte: Some(at) });
        };
        let mut sides = [vec![0; stride as usize], vec![0; stride as usize]];
        for row in at / stride..len / stride {
            device.peek(bucket.exec, id, row * stride, &mut sides[0]);
            device.peek(*twin, id, row * stride, &mut sides[1]);
            if sides[0] != sides[1] {
                match row_of(batch, axis, row as u32) {
                    Some(row) => self.suspects[row] = true,
                    None => self.suspects.fill(true),
                }
            }
        }
        let (row, byte) = (at / stride, Some(at % stride));
        Some(Point { buffer: name, place: Place::Row(row), byte })
    }

    /// Gives every slot of the step what it held before it.
    ///
    /// # Errors
    /// The device's.
    pub fn rewind(&self, device: &mut dyn Device) -> Result<(), DeviceError> {
        write_slots(device, &self.slot_buffers, &self.slots, &self.before)
    }

    /// Gives every slot of the step what the replay left in it.
    ///
    /// # Errors
    /// The device's.
    pub fn restore(&self, device: &mut dyn Device) -> Result<(), DeviceError> {
        write_slots(device, &self.slot_buffers, &self.slots, &self.after)
    }
}

/// What is compared besides state: every output of the plan, the logits first.
fn outputs(bucket: &Bucket) -> impl Iterator<Item = BufferId> {
    let plan = bucket.proven.plan();
    let output = |id: &BufferId| matches!(plan.buffer(*id).kind, BufferKind::Output { .. });
    core::iter::once(bucket.io.logits)
        .chain(plan.buffer_ids().filter(output).filter(|id| *id != bucket.io.logits))
}

/// Bytes of the live rows of a buffer; all of one without rows.
pub fn live_bytes(buffer: &Buffer, live: BucketKey) -> u64 {
    buffer.rows.map_or(buffer.bytes, |(axis, stride)| u64::from(axis.rows(live)) * stride)
}

/// The batch row that row `row` of an axis belongs to.
fn row_of(batch: &Batch, axis: Axis, row: u32) -> Option<usize> {
    batch.rows.iter().enumerate().position(|(i, r)| match axis {
        Axis::T => (r.token_row..r.token_row + r.plan.n_tokens).contains(&row),
        Axis::S => i as u32 == row,
        Axis::R => (r.logit_row..r.logit_row + r.plan.logit_rows()).contains(&row),
    })
}

fn read_slots(
    device: &dyn Device,
    buffers: &[(String, usize)],
    slots: &[u32],
    to: &mut [u8],
) -> Result<(), DeviceError> {
    let mut at = 0;
    for &slot in slots {
        for (name, bytes) in buffers {
            let offset = u64::from(slot) * *bytes as u64;
            device.read_state(name, offset, &mut to[at..at + bytes])?;
            at += bytes;
        }
    }
    Ok(())
}

fn write_slots(
    device: &mut dyn Device,
    buffers: &[(String, usize)],
    slots: &[u32],
    from: &[u8],
) -> Result<(), DeviceError> {
    let mut at = 0;
    for &slot in slots {
        for (name, bytes) in buffers {
            let offset = u64::from(slot) * *bytes as u64;
            device.write_state(name, offset, &from[at..at + bytes])?;
            at += bytes;
        }
    }
    Ok(())
}
