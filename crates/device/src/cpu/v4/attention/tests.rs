//! The kernel beside its definition.

use super::super::super::lanes::isas;
use super::super::super::math::exp;
use super::super::code::RowCodec;
use super::super::tests::noise;
use super::*;
use lockstep_plan::RowCode;

const ROTARY: usize = 16;

/// What attention is given: a window of one sequence on a page a block, and compressed rows.
struct Case {
    heads: usize,
    dim: usize,
    position: usize,
    window: usize,
    selection: Vec<u32>,
    q: Vec<f32>,
    sinks: Vec<f32>,
    pages: Vec<f32>,
    closed: Vec<f32>,
    turns: Vec<f32>,
}

impl Case {
    fn new(heads: usize, dim: usize, position: usize, seed: u32) -> Case {
        let tokens = (position + 1).next_multiple_of(32);
        let all = (position + 1) / 4;
        let some = |i: &u32| !(i * 7 + seed).is_multiple_of(3);
        let mut selection: Vec<u32> = (0..all as u32).filter(some).collect();
        selection.push(u32::MAX);
        Case {
            heads,
            dim,
            position,
            window: 50,
            selection,
            q: noise(heads * dim, seed + 1).iter().map(|v| 3.0 * v).collect(),
            sinks: noise(heads, seed + 2),
            pages: noise(tokens * dim, seed + 3),
            closed: noise(tokens / 4 * dim, seed + 4),
            turns: noise(tokens * ROTARY, seed + 5),
        }
    }

    /// The definition, in scalar code that shares nothing with the kernel but `exp`.
    fn defined(&self, head: usize) -> Vec<f32> {
        let dim = self.dim;
        let first = (self.position + 1).saturating_sub(self.window);
        let window = (first..=self.position).map(|i| &self.pages[i * dim..][..dim]);
        let chosen = self.selection.iter().take_while(|i| **i != u32::MAX);
        let chosen = chosen.map(|i| &self.closed[*i as usize * dim..][..dim]);
        let rows: Vec<&[f32]> = window.chain(chosen).collect();
        let q = &self.q[head * dim..][..dim];
        let (mut m, mut l, mut o) = (self.sinks[head], 1f32, vec![0f32; dim]);
        for block in rows.chunks(32) {
            let score = |row: &&[f32]| {
                let mut lanes = [0f32; 16];
                for (c, (q, k)) in q.iter().zip(*row).enumerate() {
                    lanes[c % 16] = q.mul_add(*k, lanes[c % 16]);
                }
                for half in [8, 4, 2, 1] {
                    for lane in 0..half {
                        lanes[lane] += lanes[lane + half];
                    }
                }
                lanes[0] * (1.0 / (dim as f64).sqrt()) as f32
            };
            let s: Vec<f32> = block.iter().map(score).collect();
            let most = s.iter().fold(m, |a, b| a.max(*b));
            let keep = exp(m - most);
            l *= keep;
            o.iter_mut().for_each(|o| *o *= keep);
            for (s, row) in s.iter().zip(block) {
                let p = exp(s - most);
                l += p;
                o.iter_mut().zip(*row).for_each(|(o, v)| *o = p.mul_add(*v, *o));
            }
            m = most;
        }
        let inverse = 1.0 / l;
        o.iter_mut().for_each(|o| *o *= inverse);
        let turns = &self.turns[self.position * ROTARY..][..ROTARY];
        for (x, turn) in o[dim - ROTARY..].chunks_mut(2).zip(turns.chunks(2)) {
            let (c, s) = (turn[0], -turn[1]);
            let (x0, x1) = (x[0], x[1]);
            x[0] = x0.mul_add(c, x1 * -s);
            x[1] = x1.mul_add(c, x0 * s);
        }
        o
    }

    /// The kernel's, of a bucket of `rows` rows of which one is live.
    fn computed(&self, isa: Isa, rows: u32) -> Vec<f32> {
        let table: Vec<u32> = (0..self.pages.len() as u32 / 32).collect();
        let (position, seq) = ([self.position as u32], [0u32]);
        let paged = |pages: &[f32], ratio| PagedRows {
            pages: pages.as_ptr().cast_mut().cast(),
            codec: RowCodec { code: RowCode::F32, dim: self.dim },
            ratio,
        };
        let mut out = vec![f32::NAN; self.heads * self.dim];
        let op = SinkAttention {
            isa,
            rows,
            heads: self.heads,
            dim: self.dim,
            q: self.q.as_ptr(),
            sinks: self.sinks.as_ptr(),
            window_rows: paged(&self.pages, 1),
            window: self.window,
            compressed: Some(Compressed {
                rows: paged(&self.closed, 4),
                selection: self.selection.as_ptr(),
                topk: self.selection.len(),
            }),
            tail: [core::ptr::null_mut(); TAIL_MAX],
            tail_rows: 0,
            rope: TailRope { table: self.turns.as_ptr(), rotary: ROTARY },
            tables: Tables {
                positions: position.as_ptr(),
                token_seq: seq.as_ptr(),
                block_table: table.as_ptr(),
                stride: table.len(),
            },
            out: out.as_mut_ptr(),
        };
        for task in 0..op.tasks() {
            // SAFETY: the vectors have the one live row that the fields name.
            unsafe { op.run(task, 1) };
        }
        out
    }
}

#[test]
fn every_instruction_set_and_bucket_follows_the_definition() {
    // Heads that fill no group, channels that fill no step, blocks that are not full.
    let shapes = [(8, 64), (1, 16), (3, 48), (9, 32), (12, 80), (16, 512)];
    for (n, (heads, dim)) in shapes.into_iter().enumerate() {
        for position in [0, 3, 31, 60, 191] {
            let case = Case::new(heads, dim, position, 10 * n as u32 + position as u32);
            let want: Vec<f32> = (0..heads).flat_map(|h| case.defined(h)).collect();
            for isa in isas() {
                for rows in [1, 2, 5, 64] {
                    let got = case.computed(isa, rows);
                    let same = want.iter().zip(&got).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{isa}, {heads} heads of {dim}, at {position}, {rows} rows");
                }
            }
        }
    }
}
