//! Closed pages against the digests taken when they closed.

use super::evidence::{Finding, Seen};
use super::schedule::Allowance;
use lockstep_device::{Device, DeviceError, PageBuffer};
use lockstep_flow::{Micros, PageId, SlotId};
use lockstep_pool::Pool;
use lockstep_sched::Batch;

/// Of the pages that a step reads, how many are looked at and how many are compared, at most; the
/// next step goes on from there. Pages that come from the prefix cache are all looked at.
const LOOK_MAX: usize = 64;
const READ_MAX: usize = 4;
/// The sweep: bytes a second beside steps and while there are none, and pages looked at in a turn.
const BUSY_PER_S: u64 = 8 << 20;
const IDLE_PER_S: u64 = 64 << 20;
const SWEEP_LOOK_MAX: usize = 256;
/// Pages that go to the device together: as many as rows close at once where prompts are of one
/// length. A GPU takes little longer for them than for eight.
const BATCH: usize = 128;

/// Digests of closed pages, taken and compared.
#[derive(Debug)]
pub struct Pages {
    buffers: Vec<PageBuffer>,
    page_bytes: u64,
    /// A digest found true this long ago is compared again when its page is read, so that a page
    /// that serves is never much longer out of sight. Zero: every page, at every step.
    age: Micros,
    /// See [`crate::Knobs::audit_hit_bytes`].
    hit_bytes: u64,
    due: Vec<(u32, Seen)>,
    /// Rows that wait for the comparison of what they took from the prefix cache, and since when.
    waiting: Vec<(SlotId, Micros)>,
    /// Slots of the planned step's rows that are to wait for a later step.
    pub postponed: Vec<SlotId>,
    batch: Vec<u32>,
    out: Vec<u64>,
    /// Among the table entries of a step's rows, where looking goes on.
    look: usize,
    /// The page that the sweep looks at next.
    cursor: u32,
    swept: bool,
    allowance: Allowance,
    /// Page groups whose digest was taken.
    pub closed: u64,
    /// Their bytes.
    pub closed_bytes: u64,
    /// Times that the sweep has been over all pages.
    pub sweeps: u64,
    /// Times that a row was to wait.
    pub waits: u64,
}

/// Checks made, bytes hashed, and the pages that failed.
#[derive(Default, Debug)]
pub struct Checked {
    /// Page groups.
    pub audits: u64,
    /// Bytes.
    pub bytes: u64,
    /// What differs; empty and without memory where nothing does.
    pub failed: Vec<(PageId, Finding)>,
}

impl Pages {
    /// For `pages` pages of `buffers`, compared anew after `age`, and steps of at most `rows`
    /// sequences, before which `hit_bytes` are compared of what they take from the prefix cache.
    pub fn new(
        (age, hit_bytes): (Micros, u64),
        buffers: Vec<PageBuffer>,
        pages: usize,
        rows: usize,
    ) -> Pages {
        let words = buffers.len();
        let (pages, rows) = if words > 0 { (pages, rows) } else { (0, 0) };
        Pages {
            page_bytes: buffers.iter().map(|b| b.page_bytes).sum(),
            age,
            hit_bytes,
            due: Vec::with_capacity(2 * pages),
            waiting: Vec::with_capacity(rows),
            postponed: Vec::with_capacity(rows),
            batch: Vec::with_capacity(BATCH),
            out: vec![0; BATCH * words],
            look: 0,
            cursor: 0,
            swept: false,
            allowance: Allowance::default(),
            closed: 0,
            closed_bytes: 0,
            sweeps: 0,
            waits: 0,
            buffers,
        }
    }

    /// Counts on from where another generation's audit of the same pages ended.
    pub fn resume(&mut self, before: &Pages) {
        (self.look, self.cursor, self.swept) = (before.look, before.cursor, before.swept);
        (self.closed, self.closed_bytes) = (before.closed, before.closed_bytes);
        (self.sweeps, self.waits) = (before.sweeps, before.waits);
    }

    /// Words of a page's digest.
    pub fn words(&self) -> usize {
        self.buffers.len()
    }

    fn is_due(&self, pool: &Pool, page: u32, now: Micros) -> bool {
        let proven = pool.proven_at(PageId(page));
        proven.is_some_and(|at| now.since(at) >= self.age)
    }

    /// Notes which pages of those that a planned step is about to read are to be compared, and
    /// which of its rows are to wait.
    pub fn note_reads(&mut self, pool: &Pool, batch: &Batch, now: Micros) {
        self.due.clear();
        self.postponed.clear();
        if self.age == Micros(0) {
            self.note_all_reads(pool, batch, now);
        } else {
            self.waiting.retain(|(slot, _)| pool.is_fresh(*slot));
            let mut left = (self.hit_bytes / self.page_bytes.max(1)).max(1) as usize;
            for row in batch.rows.iter().filter(|r| pool.is_fresh(r.plan.slot)) {
                self.note_hits(pool, row.plan.slot, now, &mut left);
            }
            self.look_at_reads(pool, batch, now);
        }
        self.each_once();
    }

    fn note_all_reads(&mut self, pool: &Pool, batch: &Batch, now: Micros) {
        for row in &batch.rows {
            let seen = if pool.is_fresh(row.plan.slot) { Seen::Hit } else { Seen::Read };
            for &page in pool.block_table(row.plan.slot) {
                if self.is_due(pool, page, now) {
                    self.note(page, seen);
                }
            }
        }
    }

    /// Notes pages of a row that has not run yet, as far as there are some `left` for this step. A
    /// row that has to wait does so for what was due when it began to: what it waits for ends.
    fn note_hits(&mut self, pool: &Pool, slot: SlotId, now: Micros, left: &mut usize) {
        let since = self.waiting.iter().find(|(s, _)| *s == slot).map(|(_, since)| *since);
        for &page in pool.block_table(slot) {
            if !self.is_due(pool, page, since.unwrap_or(now)) {
                continue;
            }
            if *left == 0 {
                if since.is_none() && self.waiting.len() < self.waiting.capacity() {
                    self.waiting.push((slot, now));
                }
                self.postponed.push(slot);
                self.waits += 1;
                return;
            }
            *left -= 1;
            self.note(page, Seen::Hit);
        }
    }

    /// Rows that share a prefix name its pages once each; the list has room for every page twice.
    fn note(&mut self, page: u32, seen: Seen) {
        if self.due.len() == self.due.capacity() {
            self.each_once();
        }
        self.due.push((page, seen));
    }

    fn each_once(&mut self) {
        self.due.sort_unstable_by_key(|(page, _)| *page);
        self.due.dedup_by_key(|(page, _)| *page);
    }

    /// Looks at some of the pages that rows read, and goes on from there with the next step.
    fn look_at_reads(&mut self, pool: &Pool, batch: &Batch, now: Micros) {
        let table = |row: &lockstep_sched::SeqRow| pool.block_table(row.plan.slot);
        let entries: usize = batch.rows.iter().map(|r| table(r).len()).sum();
        if entries == 0 {
            return;
        }
        let (first, mut left) = (self.look % entries, LOOK_MAX.min(entries));
        let mut due = READ_MAX;
        let all = batch.rows.iter().flat_map(table);
        let again = batch.rows.iter().flat_map(table);
        for &page in all.chain(again).skip(first) {
            if left == 0 || due == 0 {
                break;
            }
            (left, self.look) = (left - 1, self.look + 1);
            if self.is_due(pool, page, now) {
                self.note(page, Seen::Read);
                due -= 1;
            }
        }
        self.look %= entries;
    }

    /// Compares the digests of the pages that were noted.
    ///
    /// # Errors
    /// The device's.
    pub fn compare(
        &mut self,
        device: &mut dyn Device,
        pool: &mut Pool,
        now: Micros,
    ) -> Result<Checked, DeviceError> {
        let mut checked = Checked::default();
        let words = self.buffers.len();
        for due in self.due.chunks(BATCH) {
            self.batch.clear();
            self.batch.extend(due.iter().map(|(page, _)| *page));
            let out = &mut self.out[..due.len() * words];
            device.digest_pages(&self.buffers, &self.batch, out)?;
            checked.audits += due.len() as u64;
            checked.bytes += due.len() as u64 * self.page_bytes;
            for ((page, seen), found) in due.iter().zip(out.chunks(words)) {
                let id = PageId(*page);
                let kept = pool.digest(id).expect("a page that is due has a digest");
                if let Some(i) = (0..words).find(|&i| kept[i] != found[i]) {
                    let buffer = self.buffers[i].name.clone();
                    let (kept, found, seen) = (kept[i], found[i], *seen);
                    let finding = Finding::Page { page: id, buffer, kept, found, seen };
                    checked.failed.push((id, finding));
                } else {
                    pool.prove_page(id, now);
                }
            }
        }
        Ok(checked)
    }

    /// Takes the digests of the pages that have just closed, and compares those that were given
    /// up for others of the same tokens.
    ///
    /// # Errors
    /// The device's.
    pub fn take_closed(
        &mut self,
        device: &mut dyn Device,
        pool: &mut Pool,
        now: Micros,
    ) -> Result<Checked, DeviceError> {
        let words = self.buffers.len();
        while !pool.closed_pages().is_empty() {
            self.batch.clear();
            self.batch.extend(pool.closed_pages().iter().take(BATCH));
            let out = &mut self.out[..self.batch.len() * words];
            device.digest_pages(&self.buffers, &self.batch, out)?;
            for (&page, digest) in self.batch.iter().zip(out.chunks(words)) {
                pool.keep_digest(PageId(page), digest, now);
            }
            self.closed += self.batch.len() as u64;
            self.closed_bytes += self.batch.len() as u64 * self.page_bytes;
        }
        let mut checked = Checked::default();
        while let Some(merged) = pool.take_merged() {
            let out = &mut self.out[..words];
            device.digest_pages(&self.buffers, &[merged.own.0], out)?;
            // The page that took its place can have been given up as well, in the same step.
            let Some(kept) = pool.digest(merged.known) else { continue };
            checked.audits += 1;
            checked.bytes += self.page_bytes;
            if let Some(i) = (0..words).find(|&i| kept[i] != out[i]) {
                let (of_own, of_known) = (out[i], kept[i]);
                let buffer = self.buffers[i].name.clone();
                let (own, known) = (merged.own, merged.known);
                let finding = Finding::Merge { own, known, buffer, of_own, of_known };
                checked.failed.push((known, finding));
            }
        }
        Ok(checked)
    }

    /// Compares the next pages that there is time for, whoever reads them.
    ///
    /// # Errors
    /// The device's.
    pub fn sweep(
        &mut self,
        device: &mut dyn Device,
        pool: &mut Pool,
        idle: bool,
        now: Micros,
    ) -> Result<Checked, DeviceError> {
        self.due.clear();
        if self.buffers.is_empty() {
            return Ok(Checked::default());
        }
        let per_second = if idle { IDLE_PER_S } else { BUSY_PER_S };
        for _ in 0..SWEEP_LOOK_MAX {
            if self.is_due(pool, self.cursor, now) {
                if !self.allowance.take(self.page_bytes, per_second, now) {
                    break;
                }
                self.due.push((self.cursor, Seen::Sweep));
                self.swept = true;
            }
            self.cursor += 1;
            if self.cursor >= pool.config().pages {
                self.cursor = 0;
                // A pass over pages that were all looked at lately is not counted.
                self.sweeps += u64::from(core::mem::take(&mut self.swept));
                break;
            }
        }
        self.compare(device, pool, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_flow::{BucketKey, RequestId, Token};
    use lockstep_pool::{OwnTables, PoolConfig, RowPlan};

    const PAGES: u32 = 10;
    const AGE: Micros = Micros::from_millis(30_000);

    /// A pool with ten closed pages of a prefix, and a sequence that has just taken them.
    fn pool() -> (Pool, SlotId) {
        let (tokens, seqs) = (32 * PAGES, 2);
        let config = PoolConfig {
            id: 0,
            pages: 2 * PAGES,
            slots: seqs,
            pages_per_seq_max: 2 * PAGES - 1,
            rows_max: seqs,
            steps_in_flight_max: 1,
            sub_pools: vec![],
            slot_snapshots: false,
        };
        let stride = config.pages_per_seq_max;
        let mut pool = Pool::new(config).unwrap();
        pool.keep_digests(1);
        let text: Vec<Token> = (0..tokens).map(Token).collect();
        let request = RequestId(1);
        let slot = pool.begin(request, 0, &[]).unwrap().slot;
        pool.extend(slot, request, tokens).unwrap();
        let plan = RowPlan::drawing(request, slot, 0, tokens);
        let bucket = BucketKey { tokens, seqs: 1, logit_rows: 1 };
        let mut tables = OwnTables::new(bucket, stride);
        let lease = pool.lease([plan].into_iter(), bucket, &mut tables.view()).unwrap();
        pool.complete(lease).unwrap();
        for page in pool.closed_pages().to_vec() {
            pool.keep_digest(PageId(page), &[7], Micros(1));
        }
        pool.publish(slot, request, &text, None).unwrap();
        pool.release(slot, request).unwrap();
        let begun = pool.begin(RequestId(2), 0, &text).unwrap();
        assert_eq!(begun.cached_tokens, tokens);
        (pool, begun.slot)
    }

    /// What was due for a row when it began to wait is compared three pages a step, however long
    /// the steps take, and then the row runs.
    #[test]
    fn a_long_prefix_is_compared_in_slices_that_end() {
        for step in [Micros::from_millis(5), Micros(2 * AGE.0)] {
            let (mut pool, slot) = pool();
            let buffer = PageBuffer { name: "k_pages".into(), page_bytes: 5 << 20 };
            let mut pages = Pages::new((AGE, 16 << 20), vec![buffer], 2 * PAGES as usize, 2);
            let (mut now, mut slices) = (Micros(2 * AGE.0), Vec::new());
            while slices.is_empty() || !pages.postponed.is_empty() {
                assert!(slices.len() < 10, "{slices:?}");
                (pages.due, pages.postponed) = (Vec::with_capacity(20), Vec::new());
                pages.note_hits(&pool, slot, now, &mut (16 / 5));
                slices.push(pages.due.len());
                now = Micros(now.0 + step.0);
                for (page, seen) in &pages.due {
                    assert_eq!(*seen, Seen::Hit);
                    pool.prove_page(PageId(*page), now);
                }
            }
            assert_eq!((slices, pages.waits), (vec![3, 3, 3, 1], 3));
        }
    }
}
