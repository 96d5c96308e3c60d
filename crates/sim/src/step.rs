//! A step's tables as the device sees them, by name.

use lockstep_device::lab::LabDevice;
use lockstep_device::{Device, ExecId};
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_plan::{BufferId, BufferKind, LIVE_COUNTS, StateKind};

/// One executable of the device, with its step's inputs in place.
pub struct Step<'a> {
    pub lab: &'a mut LabDevice,
    pub exec: ExecId,
}

/// Live rows of the step.
#[derive(Clone, Copy, Debug)]
pub struct LiveRows {
    pub tokens: usize,
    pub seqs: usize,
    pub logits: usize,
}

/// Bytes as values of one kind.
pub fn pods<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

impl Step<'_> {
    pub fn id(&self, name: &str) -> Option<BufferId> {
        self.lab.plan(self.exec).find(name)
    }

    /// All bytes of a buffer of the arena, or nothing where the plan has none of that name.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        let Some(id) = self.id(name) else { return Vec::new() };
        let mut out = vec![0; self.lab.plan(self.exec).buffer(id).bytes as usize];
        self.lab.device().peek(self.exec, id, 0, &mut out);
        out
    }

    pub fn set_bytes(&mut self, name: &str, bytes: &[u8]) {
        if let Some(id) = self.id(name) {
            self.lab.write_buffer(self.exec, id, 0, bytes);
        }
    }

    pub fn words(&self, name: &str) -> Vec<u32> {
        pods(&self.bytes(name))
    }

    pub fn set_words(&mut self, name: &str, words: &[u32]) {
        self.set_bytes(name, bytemuck::cast_slice(words));
    }

    pub fn live(&self) -> LiveRows {
        let words = self.words(LIVE_COUNTS);
        let at = |i: usize| words.get(i).map_or(0, |w| *w as usize);
        LiveRows { tokens: at(0), seqs: at(1), logits: at(2) }
    }

    /// Entries of a block table's row.
    pub fn stride(&self) -> usize {
        let seqs = self.lab.plan(self.exec).bucket.seqs as usize;
        self.words("block_table").len() / seqs.max(1)
    }

    /// Page buffers with the bytes of a page of each.
    pub fn page_buffers(&self) -> Vec<(String, u64)> {
        let pages = |b: &lockstep_plan::Buffer| match b.kind {
            BufferKind::State(StateKind::Pages { page_bytes }) => {
                Some((b.name.clone(), page_bytes))
            }
            _ => None,
        };
        self.lab.plan(self.exec).buffers.iter().filter_map(pages).collect()
    }

    /// Pages that live rows read and that no row of this step writes.
    pub fn closed_pages(&self) -> Vec<u32> {
        let (live, stride) = (self.live(), self.stride());
        let written = self.written_pages();
        let table = self.words("block_table");
        let rows = &table[..(live.seqs * stride).min(table.len())];
        let mut pages: Vec<u32> =
            rows.iter().copied().filter(|p| *p != 0 && !written.contains(p)).collect();
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    /// Pages that live rows write.
    pub fn written_pages(&self) -> Vec<u32> {
        let slots = self.words("write_slots");
        slots[..self.live().tokens.min(slots.len())].iter().map(|s| s / PAGE_TOKENS).collect()
    }

    /// Reads bytes of a state.
    pub fn state(&self, name: &str, offset: u64, len: u64) -> Vec<u8> {
        let mut out = vec![0; len as usize];
        let read = self.lab.device().read_state(name, offset, &mut out);
        read.expect("a state of the plan is bound");
        out
    }

    /// Writes bytes of a state.
    pub fn set_state(&mut self, name: &str, offset: u64, bytes: &[u8]) {
        let written = self.lab.device_mut().write_state(name, offset, bytes);
        written.expect("a state of the plan is bound");
    }
}
