//! RoPE and the KV write: the scalar definition on every path, the documented page layout, and
//! nothing written outside a row's own slot.

mod support;

use half::f16;
use lockstep_device::cpu::isa::Isa;
use lockstep_device::cpu::rope::RopeKvWrite;
use lockstep_plan::{AttnShape, KvDtype, RopePairing};
use proptest::prelude::*;
use support::{PAGE, Rng};

struct Step {
    shape: AttnShape,
    rotary_dim: usize,
    pairing: RopePairing,
    positions: Vec<u32>,
    slots: Vec<u32>,
    qkv: Vec<f32>,
    table: Vec<f32>,
    norms: Option<(Vec<f32>, Vec<f32>)>,
}

const POISON: u8 = 0xee;

impl Step {
    fn random(shape: AttnShape, rotary_dim: usize, pairing: RopePairing, qk_norm: bool) -> Step {
        let mut rng = Rng(99);
        let rows = 11;
        let dim = shape.head_dim as usize;
        let width = (shape.heads + 2 * shape.kv_heads) as usize * dim;
        Step {
            shape,
            rotary_dim,
            pairing,
            positions: (0..rows).map(|r| (r * 5 % 13) as u32).collect(),
            slots: (0..rows).map(|r| (PAGE + r * 17 % (3 * PAGE)) as u32).collect(),
            qkv: rng.floats(rows * width),
            table: rng.floats(13 * rotary_dim),
            norms: qk_norm.then(|| (rng.floats(dim), rng.floats(dim))),
        }
    }

    /// q rows after the step, and the K and V pages.
    fn run(&self, isa: Isa, live: u32) -> (Vec<f32>, Vec<u8>, Vec<u8>) {
        let rows = self.positions.len();
        let mut qkv = self.qkv.clone();
        let page = self.shape.kv_heads as usize
            * self.shape.head_dim as usize
            * PAGE
            * self.shape.kv_dtype.bytes() as usize;
        let (mut k, mut v) = (vec![POISON; 4 * page], vec![POISON; 4 * page]);
        let null = core::ptr::null();
        let op = RopeKvWrite {
            isa,
            rows: rows as u32,
            shape: self.shape,
            rotary_dim: self.rotary_dim as u32,
            pairing: self.pairing,
            qkv: qkv.as_mut_ptr(),
            qkv_stride: self.qkv.len() / rows,
            table: self.table.as_ptr(),
            positions: self.positions.as_ptr(),
            write_slots: self.slots.as_ptr(),
            q_norm: self.norms.as_ref().map_or(null, |n| n.0.as_ptr()),
            k_norm: self.norms.as_ref().map_or(null, |n| n.1.as_ptr()),
            eps: 1e-6,
            k_pages: k.as_mut_ptr(),
            v_pages: v.as_mut_ptr(),
        };
        for task in 0..op.tasks() {
            // SAFETY: all rows are there and the slots lie in four pages.
            unsafe { op.run(task, live) };
        }
        (qkv, k, v)
    }

    /// The definition of one head.
    fn head(&self, x: &[f32], row: usize, weight: Option<&Vec<f32>>) -> Vec<f32> {
        let mut x = x.to_vec();
        if let Some(w) = weight {
            let mut lanes = [0f32; 16];
            for (i, v) in x.iter().enumerate() {
                lanes[i % 16] = v.mul_add(*v, lanes[i % 16]);
            }
            for half in [8, 4, 2, 1] {
                for l in 0..half {
                    lanes[l] += lanes[l + half];
                }
            }
            let r = 1.0 / (lanes[0] / x.len() as f32 + 1e-6).sqrt();
            x.iter_mut().zip(w).for_each(|(x, w)| *x = *x * r * w);
        }
        let half = self.rotary_dim / 2;
        let table = &self.table[self.positions[row] as usize * self.rotary_dim..];
        for i in 0..half {
            let (c, s) = (table[2 * i], table[2 * i + 1]);
            let (low, high) = match self.pairing {
                RopePairing::Half => (i, i + half),
                RopePairing::Adjacent => (2 * i, 2 * i + 1),
            };
            let (a, b) = (x[low], x[high]);
            x[low] = a.mul_add(c, -(b * s));
            x[high] = b.mul_add(c, a * s);
        }
        x
    }

    fn element(&self, bytes: &[u8], at: usize) -> (u32, usize) {
        match self.shape.kv_dtype {
            KvDtype::F32 => (u32::from_le_bytes(bytes[at * 4..][..4].try_into().unwrap()), 4),
            KvDtype::F16 => {
                (u32::from(u16::from_le_bytes(bytes[at * 2..][..2].try_into().unwrap())), 2)
            }
            KvDtype::Bf16 | KvDtype::Fp8 => unreachable!("DeepSeek-V4's alone"),
        }
    }

    fn stored(&self, x: f32) -> u32 {
        match self.shape.kv_dtype {
            KvDtype::F32 => x.to_bits(),
            KvDtype::F16 => u32::from(f16::from_f32(x).to_bits()),
            KvDtype::Bf16 | KvDtype::Fp8 => unreachable!("DeepSeek-V4's alone"),
        }
    }

    fn check(&self, live: usize, (qkv, k, v): &(Vec<f32>, Vec<u8>, Vec<u8>)) {
        let dim = self.shape.head_dim as usize;
        let (heads, kv_heads) = (self.shape.heads as usize, self.shape.kv_heads as usize);
        let width = (heads + 2 * kv_heads) * dim;
        let (mut k_left, mut v_left) = (k.clone(), v.clone());
        for row in 0..self.positions.len() {
            let input = &self.qkv[row * width..][..width];
            let output = &qkv[row * width..][..width];
            assert_eq!(output[heads * dim..], input[heads * dim..], "k and v are only read");
            if row >= live {
                assert_eq!(output, input, "row {row} is padding");
                continue;
            }
            for h in 0..heads {
                let want =
                    self.head(&input[h * dim..][..dim], row, self.norms.as_ref().map(|n| &n.0));
                assert_eq!(output[h * dim..][..dim], want[..]);
            }
            let slot = self.slots[row] as usize;
            for h in 0..kv_heads {
                let part = (slot / PAGE * kv_heads + h) * dim * PAGE;
                let key = &input[(heads + h) * dim..][..dim];
                let key = self.head(key, row, self.norms.as_ref().map(|n| &n.1));
                let value = &input[(heads + kv_heads + h) * dim..][..dim];
                for d in 0..dim {
                    let at = part + d * PAGE + slot % PAGE;
                    let (got, size) = self.element(k, at);
                    assert_eq!(got, self.stored(key[d]));
                    k_left[at * size..][..size].fill(POISON);
                    let at = part + slot % PAGE * dim + d;
                    assert_eq!(self.element(v, at).0, self.stored(value[d]));
                    v_left[at * size..][..size].fill(POISON);
                }
            }
        }
        assert!(k_left.iter().chain(&v_left).all(|&b| b == POISON), "a byte outside the slots");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_path_follows_the_definition_and_stays_in_its_slot(
        kv_heads in 1u32..3,
        group in 1u32..4,
        dim in 1u32..=8,
        rotary in 0usize..=64,
        half in any::<bool>(),
        f32_pages in any::<bool>(),
        qk_norm in any::<bool>(),
        live in 0u32..=11,
    ) {
        let kv_dtype = if f32_pages { KvDtype::F32 } else { KvDtype::F16 };
        let shape =
            AttnShape { heads: kv_heads * group, kv_heads, head_dim: dim * 16, kv_dtype, window: 0 };
        let rotary_dim = (2 * rotary).min(dim as usize * 16);
        let pairing = if half { RopePairing::Half } else { RopePairing::Adjacent };
        let step = Step::random(shape, rotary_dim, pairing, qk_norm);
        for isa in Isa::available() {
            step.check(live as usize, &step.run(isa, live));
        }
    }
}
