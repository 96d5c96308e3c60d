//! How each strike hits: what the host gets wrong, what a replay sees, what is wrong afterwards.

use crate::rng::Rng;
use crate::step::{Step, pods};
use crate::strike::Strike;
use lockstep_device::ExecId;
use lockstep_device::sample::SampleResult;
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_plan::{BufferId, BufferKind, LIVE_COUNTS};
use std::collections::HashMap;

/// Inputs that another step's values may stand in for: all of them stay inside their tables.
const STEP_INPUTS: [&str; 3] = ["token_source", "positions", "write_slots"];

/// What the device remembers of steps gone by.
#[derive(Default)]
pub struct Memory {
    /// The host has written a step's inputs and nothing has looked at them yet.
    pub host_is_due: bool,
    /// Inputs of the last step of an executable, and its live tokens.
    inputs: HashMap<ExecId, (usize, Vec<Vec<u32>>)>,
    /// Results of the last steps of an executable: the one before, and the last.
    results: HashMap<ExecId, [Vec<u8>; 2]>,
    /// A slot's row of the block table, as the host's stale copy has it.
    tables: HashMap<u32, Vec<u32>>,
}

impl Memory {
    /// Keeps what later steps may be given.
    pub fn keep(&mut self, step: &Step) {
        let inputs = STEP_INPUTS.map(|name| step.words(name)).to_vec();
        self.inputs.insert(step.exec, (step.live().tokens, inputs));
        let last = step.bytes("results");
        let kept = self.results.entry(step.exec).or_default();
        kept.swap(0, 1);
        kept[1] = last;
    }

    /// What the host reads where the results are those of the step before.
    pub fn results(&self, exec: ExecId, step: &Step) -> Option<(BufferId, Vec<u8>)> {
        let before = self.results.get(&exec).map(|r| r[1].clone())?;
        let id = step.id("results")?;
        (!before.is_empty() && before != step.bytes("results")).then_some((id, before))
    }
}

/// Inputs and state as they were, to be put back.
#[derive(Default)]
pub struct Undo {
    inputs: Vec<(String, Vec<u8>)>,
    states: Vec<(String, u64, Vec<u8>)>,
}

impl Undo {
    pub fn is_nothing(&self) -> bool {
        self.inputs.is_empty() && self.states.is_empty()
    }

    pub fn apply(self, step: &mut Step) {
        for (name, bytes) in self.inputs {
            step.set_bytes(&name, &bytes);
        }
        for (name, offset, bytes) in self.states {
            step.set_state(&name, offset, &bytes);
        }
    }

    fn change(&mut self, step: &mut Step, name: &str, words: &[u32]) {
        let before = step.bytes(name);
        if before != bytemuck::cast_slice::<u32, u8>(words) {
            step.set_words(name, words);
            self.inputs.push((name.into(), before));
        }
    }
}

/// What the host gets wrong, after the lease was signed. True where it hit.
pub fn host(step: &mut Step, strike: &Strike, memory: &mut Memory, rng: &mut Rng) -> bool {
    match strike {
        Strike::StaleBlockTable => stale_table(step, memory),
        Strike::LiveStride => {
            let table = step.words("block_table");
            let packed = live_stride(step, &table);
            step.set_words("block_table", &packed);
            packed != table
        }
        Strike::PageGivenTwice => given_twice(step, rng),
        Strike::PaddedRowsWrite => padded_slots(step),
        _ => false,
    }
}

/// What happens to memory between two steps. True where it hit.
pub fn between(step: &mut Step, strike: &Strike, rng: &mut Rng) -> bool {
    match strike {
        Strike::PageBit => closed_page(step, rng, |bytes, rng| {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << rng.below(8);
        }),
        Strike::WeightBit => weight(step, rng, |bytes, rng| {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << rng.below(8);
        }),
        Strike::WeightRepacked => weight(step, rng, |bytes, _| {
            let by = 64.min(bytes.len());
            bytes.rotate_left(by);
        }),
        Strike::StateBit { name, byte, bit } => {
            let mut b = step.state(name, *byte, 1);
            b[0] ^= 1 << (bit & 7);
            step.set_state(name, *byte, &b);
            true
        }
        _ => false,
    }
}

/// What only the replay sees, with how to undo it.
pub fn before(step: &mut Step, strike: &Strike, memory: &mut Memory, rng: &mut Rng) -> Undo {
    let mut undo = Undo::default();
    match strike {
        Strike::LiveStrideInReplay => {
            let packed = live_stride(step, &step.words("block_table"));
            undo.change(step, "block_table", &packed);
        }
        Strike::InputsOfAnotherStep => {
            let same = |(tokens, _): &&(usize, Vec<Vec<u32>>)| *tokens == step.live().tokens;
            if let Some((_, kept)) = memory.inputs.get(&step.exec).filter(same).cloned() {
                for (name, words) in STEP_INPUTS.iter().zip(&kept) {
                    undo.change(step, name, words);
                }
            }
        }
        Strike::FrozenShortcut => {
            let (mut table, stride) = (step.words("block_table"), step.stride());
            for row in table.chunks_exact_mut(stride) {
                row[1..].fill(0);
            }
            undo.change(step, "block_table", &table);
        }
        Strike::SamplesAnotherRow => {
            let (mut rows, live) = (step.words("logit_rows"), step.live().logits);
            if live > 1 {
                let a = rng.below(live as u64) as usize;
                rows.swap(a, (a + 1) % live);
                undo.change(step, "logit_rows", &rows);
            }
        }
        Strike::PaddedRowsWrite => {
            let mut counts = step.words(LIVE_COUNTS);
            let tokens = step.lab.plan(step.exec).bucket.tokens;
            if let Some(count) = counts.first_mut().filter(|c| **c < tokens) {
                *count = tokens;
                undo.change(step, LIVE_COUNTS, &counts);
            }
        }
        Strike::RowNotWritten | Strike::RowNotWrittenByKernel => {
            let page = step.written_pages().first().copied();
            // Index keys where the model has any; else the keys of attention.
            let buffers = step.page_buffers();
            let of = |kind: &str| buffers.iter().find(|(n, _)| n.ends_with(kind)).cloned();
            let keys = of(".index_pages").or_else(|| of("k_pages"));
            if let (Some(page), Some((name, page_bytes))) = (page, keys) {
                let offset = u64::from(page) * page_bytes;
                undo.states.push((name.clone(), offset, step.state(&name, offset, page_bytes)));
            }
        }
        _ => {}
    }
    undo
}

/// What is wrong once the replay has run. True where it hit.
pub fn after(step: &mut Step, strike: &Strike, rng: &mut Rng) -> bool {
    match strike {
        Strike::TiesByArrival => ties(step, rng),
        Strike::StrayWrite => closed_page(step, rng, |bytes, rng| {
            let at = rng.below(bytes.len() as u64 / 16) as usize * 16;
            bytes[at..at + 16].iter_mut().for_each(|b| *b = rng.bits() as u8);
        }),
        _ => false,
    }
}

/// The host's copy of a row does not get the page that the row has grown.
fn stale_table(step: &mut Step, memory: &mut Memory) -> bool {
    let (live, stride) = (step.live(), step.stride());
    let (slots, mut table) = (step.words("seq_slots"), step.words("block_table"));
    let mut hit = false;
    for row in 0..live.seqs {
        let now = &mut table[row * stride..(row + 1) * stride];
        let kept = memory.tables.entry(slots[row]).or_insert_with(|| now.to_vec());
        if kept[0] != now[0] {
            // Another sequence has the slot.
            kept.copy_from_slice(now);
        }
        hit |= kept != now;
        now.copy_from_slice(kept);
    }
    step.set_words("block_table", &table);
    hit
}

/// Rows packed as wide as the widest live one.
fn live_stride(step: &Step, table: &[u32]) -> Vec<u32> {
    let (live, stride) = (step.live(), step.stride());
    let rows = || table.chunks_exact(stride).take(live.seqs);
    let used = |row: &[u32]| row.iter().rposition(|p| *p != 0).map_or(0, |i| i + 1);
    let width = rows().map(used).max().unwrap_or(0).max(1);
    let mut packed: Vec<u32> = rows().flat_map(|row| row[..width].iter().copied()).collect();
    packed.resize(table.len(), 0);
    packed
}

/// The last page of one row becomes the first page of another, which the row then writes.
fn given_twice(step: &mut Step, rng: &mut Rng) -> bool {
    let (live, stride) = (step.live(), step.stride());
    if live.seqs < 2 {
        return false;
    }
    let victim = rng.below(live.seqs as u64) as usize;
    let thief = (victim + 1) % live.seqs;
    let mut table = step.words("block_table");
    let page = table[victim * stride];
    let row = &mut table[thief * stride..(thief + 1) * stride];
    let Some(last) = row.iter_mut().rev().find(|p| **p != 0) else { return false };
    let own = core::mem::replace(last, page);
    if own == page {
        return false;
    }
    let (mut slots, seqs) = (step.words("write_slots"), step.words("token_seq"));
    for (slot, seq) in slots.iter_mut().zip(&seqs).take(live.tokens) {
        if *seq as usize == thief && *slot / PAGE_TOKENS == own {
            *slot = page * PAGE_TOKENS + *slot % PAGE_TOKENS;
        }
    }
    step.set_words("block_table", &table);
    step.set_words("write_slots", &slots);
    true
}

/// Padded tokens write where the first row's first page lies.
fn padded_slots(step: &mut Step) -> bool {
    let live = step.live();
    let mut slots = step.words("write_slots");
    let Some(&page) = step.words("block_table").first() else { return false };
    if live.tokens >= slots.len() || page == 0 {
        return false;
    }
    for (i, slot) in slots[live.tokens..].iter_mut().enumerate() {
        *slot = page * PAGE_TOKENS + i as u32 % PAGE_TOKENS;
    }
    step.set_words("write_slots", &slots);
    true
}

/// Where the sampled token's logit is another's too, the other one may have won.
fn ties(step: &mut Step, rng: &mut Rng) -> bool {
    let live = step.live();
    let bytes = step.bytes("results");
    let mut results: Vec<SampleResult> = pods(&bytes);
    let logits: Vec<f32> = pods(&step.bytes("logits"));
    let vocab = logits.len() / results.len().max(1);
    let slots = step.words("logit_slots");
    let mut hit = false;
    for row in 0..live.logits {
        let (token, other) = (results[row].token as usize, results[row].token as usize ^ 1);
        let at = |t: usize| logits.get(row * vocab + t).map(|l| l.to_bits());
        if other < vocab && at(token) == at(other) && rng.below(2) == 0 {
            results[row].token = other as u32;
            if slots[row] != 0 {
                step.set_state(
                    "last_token",
                    u64::from(slots[row]) * 4,
                    &(other as u32).to_le_bytes(),
                );
            }
            hit = true;
        }
    }
    if hit {
        step.set_bytes("results", bytemuck::cast_slice(&results));
    }
    hit
}

/// Changes bytes of a closed page that a live row reads.
fn closed_page(step: &mut Step, rng: &mut Rng, change: impl Fn(&mut [u8], &mut Rng)) -> bool {
    let Some(page) = rng.pick(&step.closed_pages()) else { return false };
    let buffers = step.page_buffers();
    let kv: Vec<&(String, u64)> = buffers.iter().filter(|(n, _)| n.ends_with("_pages")).collect();
    let Some((name, page_bytes)) = rng.pick(&kv).cloned() else { return false };
    let offset = u64::from(page) * page_bytes;
    let mut bytes = step.state(&name, offset, page_bytes);
    change(&mut bytes, rng);
    step.set_state(&name, offset, &bytes);
    true
}

/// Changes a weight that the step reads.
fn weight(step: &mut Step, rng: &mut Rng, change: impl Fn(&mut [u8], &mut Rng)) -> bool {
    let plan = step.lab.plan(step.exec);
    let weights: Vec<(String, u64)> = plan
        .buffers
        .iter()
        .filter(|b| b.kind == BufferKind::Weight && b.bytes > 0)
        .map(|b| (b.name.clone(), b.bytes))
        .collect();
    let Some((name, bytes)) = rng.pick(&weights.iter().collect::<Vec<_>>()).cloned() else {
        return false;
    };
    let mut data = vec![0; bytes as usize];
    let read = step.lab.read_weight(&name, 0, &mut data);
    read.expect("a weight of the plan is loaded");
    change(&mut data, rng);
    let written = step.lab.write_weight(&name, 0, &data);
    written.expect("a weight of the plan is loaded");
    true
}
