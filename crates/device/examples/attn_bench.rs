//! Times attention, sampling and the pool at the shapes of SmolLM2-135M.
//!
//! `cargo run --release -p lockstep-device --example attn_bench [threads]`

use lockstep_device::cpu::attention::{Attention, Layout, scratch_bytes};
use lockstep_device::cpu::isa::Isa;
use lockstep_device::cpu::pool::{Pool, Program};
use lockstep_flow::BucketKey;
use lockstep_plan::{AttnShape, KvDtype};
use std::time::Instant;

const PAGE: usize = 32;
const LAYERS: usize = 30;

/// One attention of every layer, as the ops of a step.
struct Layers(Vec<Attention>);

impl Program for Layers {
    fn ops(&self) -> u32 {
        2 * self.0.len() as u32
    }

    fn tasks(&self, op: u32) -> u32 {
        let a = &self.0[op as usize / 2];
        if op.is_multiple_of(2) { a.partial_tasks() } else { a.combine_tasks() }
    }

    unsafe fn run(&self, op: u32, task: u32, _: u32) {
        let a = &self.0[op as usize / 2];
        // SAFETY: `attention` below gives every pointer its room.
        unsafe {
            if op.is_multiple_of(2) {
                a.run_partial(task, a.rows)
            } else {
                a.run_combine(task, a.rows)
            }
        }
    }
}

/// Milliseconds of all layers: `seqs` sequences of `context` tokens, the last `rows` rows of each.
fn attention(pool: &mut Pool, shape: AttnShape, seqs: usize, context: usize, rows: usize) -> f64 {
    let isa = Isa::detect();
    let pages = context.div_ceil(PAGE);
    let elems = (seqs * pages + 1) * PAGE * (shape.kv_heads * shape.head_dim) as usize;
    let width = (shape.heads * shape.head_dim) as usize;
    let tokens = seqs * rows;
    let bucket = BucketKey { tokens: tokens as u32, seqs: seqs as u32, logit_rows: seqs as u32 };
    let scratch_len = scratch_bytes(&shape, bucket, 8192) as usize / 4;
    let kv: Vec<Vec<u8>> =
        (0..2 * LAYERS).map(|_| vec![0x11; elems * shape.kv_dtype.bytes() as usize]).collect();
    let q = vec![0.01f32; tokens * width];
    let positions: Vec<u32> =
        (0..seqs).flat_map(|_| (context - rows..context).map(|p| p as u32)).collect();
    let token_seq: Vec<u32> = (0..seqs).flat_map(|s| vec![s as u32; rows]).collect();
    let table: Vec<u32> = (1..=(seqs * pages) as u32).collect();
    let mut scratch = vec![0f32; scratch_len];
    let mut out = vec![0f32; tokens * width];
    let layers = (0..LAYERS).map(|layer| Attention {
        isa,
        rows: tokens as u32,
        shape,
        layout: Layout::of(&shape, tokens as u32, 8192),
        q: q.as_ptr(),
        q_stride: width,
        positions: positions.as_ptr(),
        token_seq: token_seq.as_ptr(),
        block_table: table.as_ptr(),
        table_stride: pages,
        k_pages: kv[2 * layer].as_ptr(),
        v_pages: kv[2 * layer + 1].as_ptr(),
        scratch: scratch.as_mut_ptr(),
        out: out.as_mut_ptr(),
        out_stride: width,
    });
    let program = Layers(layers.collect());
    best(20, || pool.execute(&program).expect("no task panics"))
}

/// The best of `n` runs in milliseconds, after one to warm up.
fn best(n: u32, mut f: impl FnMut()) -> f64 {
    f();
    (0..n)
        .map(|_| {
            let start = Instant::now();
            f();
            start.elapsed().as_secs_f64() * 1e3
        })
        .fold(f64::INFINITY, f64::min)
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(2);
    let mut pool = Pool::new(threads, true).expect("threads");
    pool.pin_caller();
    println!("{threads} threads, {:?}, {LAYERS} layers, 9 heads over 3 of 64", Isa::detect());
    for kv_dtype in [KvDtype::F32, KvDtype::F16] {
        let shape = AttnShape { heads: 9, kv_heads: 3, head_dim: 64, kv_dtype, window: 0 };
        let token_bytes = LAYERS * 2 * 3 * 64 * kv_dtype.bytes() as usize;
        for (seqs, context, rows) in
            [(1, 512, 512), (1, 2048, 512), (1, 128, 1), (1, 512, 1), (1, 8192, 1), (16, 512, 1)]
        {
            let ms = attention(&mut pool, shape, seqs, context, rows);
            let gb = (seqs * context * token_bytes) as f64 / 1e9;
            // A causal chunk sees the context before it and half of itself.
            let seen = (seqs * rows) as f64 * (context as f64 - rows as f64 / 2.0);
            let gflop = seen * (9 * 64 * 4 * LAYERS) as f64 / 1e9;
            println!(
                "{kv_dtype:?} {seqs:>2} x {rows:>3} rows at {context:>4}: {ms:8.3} ms, \
                 KV {:6.1} GB/s, {:6.1} GFLOP/s",
                gb / ms * 1e3,
                gflop / ms * 1e3,
            );
        }
    }
}
