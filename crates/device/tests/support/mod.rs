//! Paged KV of several sequences, filled by the layout that `kv.rs` documents.
#![allow(dead_code)]

use half::f16;
use lockstep_device::cpu::attention::{Attention, Layout};
use lockstep_device::cpu::isa::Isa;
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_plan::{AttnShape, KvDtype};

pub const PAGE: usize = PAGE_TOKENS as usize;

/// xorshift64*: enough for test data, and the same on every run.
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: u32) -> u32 {
        (((self.next() >> 32) * u64::from(n)) >> 32) as u32
    }

    /// In -1..1.
    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

/// Sequences with their K and V, both in pages and as plain rows.
pub struct Cache {
    pub shape: AttnShape,
    pub lens: Vec<usize>,
    pub table_stride: usize,
    pub table: Vec<u32>,
    pub k_pages: Vec<u8>,
    pub v_pages: Vec<u8>,
    /// `[seq][position][kv_head][dim]`, as stored.
    pub k: Vec<Vec<f32>>,
    pub v: Vec<Vec<f32>>,
}

fn put(bytes: &mut [u8], index: usize, value: f32, dtype: KvDtype) -> f32 {
    match dtype {
        KvDtype::F32 => {
            bytes[index * 4..][..4].copy_from_slice(&value.to_le_bytes());
            value
        }
        KvDtype::F16 => {
            let h = f16::from_f32(value);
            bytes[index * 2..][..2].copy_from_slice(&h.to_le_bytes());
            h.to_f32()
        }
        KvDtype::Bf16 | KvDtype::Fp8 => unreachable!("DeepSeek-V4's alone"),
    }
}

impl Cache {
    /// Random K and V; pages are dealt in a shuffled order, and everything that no sequence wrote
    /// is NaN.
    pub fn random(shape: AttnShape, lens: &[usize], seed: u64) -> Cache {
        let mut rng = Rng(seed * 2 + 1);
        let (heads, dim) = (shape.kv_heads as usize, shape.head_dim as usize);
        let per_seq = lens.iter().max().unwrap().div_ceil(PAGE) + 3;
        let mut free: Vec<u32> = (1..=(per_seq * lens.len()) as u32).collect();
        for i in (1..free.len()).rev() {
            free.swap(i, rng.below(i as u32 + 1) as usize);
        }
        let elems = (free.len() + 1) * heads * dim * PAGE;
        let fill = |_| vec![0xffu8; elems * shape.kv_dtype.bytes() as usize];
        let [k_pages, v_pages] = [0, 1].map(fill);
        let mut cache = Cache {
            shape,
            lens: lens.to_vec(),
            table_stride: per_seq,
            table: vec![0; per_seq * lens.len()],
            k_pages,
            v_pages,
            k: Vec::new(),
            v: Vec::new(),
        };
        for (seq, &len) in lens.iter().enumerate() {
            // A sequence's values depend on its number alone, not on how many pages were dealt.
            let mut rng = Rng((seed * 64 + seq as u64) * 2 + 1);
            let row = &mut cache.table[seq * per_seq..][..per_seq];
            row[..len.div_ceil(PAGE)].fill_with(|| free.pop().unwrap());
            let row = row.to_vec();
            let (mut ks, mut vs) = (Vec::new(), Vec::new());
            for position in 0..len {
                let (page, offset) = (row[position / PAGE] as usize, position % PAGE);
                for head in 0..heads {
                    let part = (page * heads + head) * dim * PAGE;
                    for d in 0..dim {
                        let at = part + d * PAGE + offset;
                        ks.push(put(&mut cache.k_pages, at, rng.float() * 2.0, shape.kv_dtype));
                        let at = part + offset * dim + d;
                        vs.push(put(&mut cache.v_pages, at, rng.float(), shape.kv_dtype));
                    }
                }
            }
            cache.k.push(ks);
            cache.v.push(vs);
        }
        cache
    }

    /// Attention of rows (sequence, position) with their q rows; `live` of them.
    pub fn attend(&self, isa: Isa, rows: &[(u32, u32)], q: &[f32], layout: Layout) -> Vec<f32> {
        let width = (self.shape.heads * self.shape.head_dim) as usize;
        assert_eq!(q.len(), rows.len() * width);
        let seqs: Vec<u32> = rows.iter().map(|r| r.0).collect();
        let positions: Vec<u32> = rows.iter().map(|r| r.1).collect();
        let part = self.shape.head_dim as usize + 16;
        let heads = self.shape.heads as usize;
        let mut scratch = vec![f32::NAN; rows.len() * heads * layout.parts as usize * part];
        let mut out = vec![f32::NAN; rows.len() * width];
        let op = Attention {
            isa,
            rows: rows.len() as u32,
            shape: self.shape,
            layout,
            q: q.as_ptr(),
            q_stride: width,
            positions: positions.as_ptr(),
            token_seq: seqs.as_ptr(),
            block_table: self.table.as_ptr(),
            table_stride: self.table_stride,
            k_pages: self.k_pages.as_ptr(),
            v_pages: self.v_pages.as_ptr(),
            scratch: scratch.as_mut_ptr(),
            out: out.as_mut_ptr(),
            out_stride: width,
        };
        op.check().unwrap();
        for task in 0..op.partial_tasks() {
            // SAFETY: the cache holds every position of the rows, and the vectors all rows.
            unsafe { op.run_partial(task, rows.len() as u32) };
        }
        for task in 0..op.combine_tasks() {
            // SAFETY: as above.
            unsafe { op.run_combine(task, rows.len() as u32) };
        }
        out
    }

    /// The textbook formula in f64.
    pub fn reference(&self, rows: &[(u32, u32)], q: &[f32]) -> Vec<f64> {
        let AttnShape { heads, kv_heads, head_dim, window, .. } = self.shape;
        let (heads, kv_heads, dim) = (heads as usize, kv_heads as usize, head_dim as usize);
        let mut out = Vec::new();
        for (r, &(seq, position)) in rows.iter().enumerate() {
            let position = position as usize;
            let low = if window == 0 { 0 } else { (position + 1).saturating_sub(window as usize) };
            for h in 0..heads {
                let q = &q[(r * heads + h) * dim..][..dim];
                let kv = h / (heads / kv_heads);
                let at = |rows: &[Vec<f32>], p: usize, d: usize| {
                    f64::from(rows[seq as usize][(p * kv_heads + kv) * dim + d])
                };
                let dot = |p| (0..dim).map(|d| f64::from(q[d]) * at(&self.k, p, d)).sum::<f64>();
                let scores: Vec<f64> =
                    (low..=position).map(|p| dot(p) / (dim as f64).sqrt()).collect();
                let m = scores.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
                let p: Vec<f64> = scores.iter().map(|s| (s - m).exp()).collect();
                let l: f64 = p.iter().sum();
                for d in 0..dim {
                    let o: f64 = p.iter().zip(low..).map(|(p, j)| p * at(&self.v, j, d)).sum();
                    out.push(o / l);
                }
            }
        }
        out
    }
}
