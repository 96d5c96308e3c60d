//! Times attention, sampling and the pool at the shapes of SmolLM2-135M.
//!
//! `cargo run --release -p lockstep-device --example attn_bench [threads]`

use lockstep_device::cpu::attention::{self, Attention, scratch_bytes};
use lockstep_device::cpu::isa::Isa;
use lockstep_device::cpu::pool::{Pool, Program};
use lockstep_device::cpu::sample::{
    Sample, SampleParams, SampleResult, scratch_bytes as scratch_bytes_of_row,
};
use lockstep_flow::{BucketKey, SamplingParams};
use lockstep_plan::{AttnShape, KvDtype};
use std::alloc::Layout;
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
    let page_bytes = elems * shape.kv_dtype.bytes() as usize;
    let kv: Vec<Huge> = (0..2 * LAYERS).map(|_| Huge::new(page_bytes)).collect();
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
        layout: attention::Layout::of(&shape, tokens as u32, 8192),
        q: q.as_ptr(),
        q_stride: width,
        positions: positions.as_ptr(),
        token_seq: token_seq.as_ptr(),
        block_table: table.as_ptr(),
        table_stride: pages,
        k_pages: kv[2 * layer].0,
        v_pages: kv[2 * layer + 1].0,
        scratch: scratch.as_mut_ptr(),
        out: out.as_mut_ptr(),
        out_stride: width,
    });
    let program = Layers(layers.collect());
    best(|| pool.execute(&program).expect("no task panics"))
}

/// Memory on huge pages where the system gives them, as the device's pools are.
struct Huge(*mut u8, Layout);

impl Huge {
    fn new(bytes: usize) -> Huge {
        let layout = Layout::from_size_align(bytes, 2 << 20).expect("a size");
        // SAFETY: the size is not 0; advice changes no contents; the range is ours.
        unsafe {
            let p = std::alloc::alloc(layout);
            assert!(!p.is_null(), "{bytes} bytes");
            libc::madvise(p.cast(), bytes, libc::MADV_HUGEPAGE);
            p.write_bytes(0x11, bytes);
            Huge(p, layout)
        }
    }
}

impl Drop for Huge {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { std::alloc::dealloc(self.0, self.1) }
    }
}

/// Reads 8 MiB a task.
struct ReadAll(Huge, usize);

// SAFETY: the memory is only read.
unsafe impl Sync for ReadAll {}

impl Program for ReadAll {
    fn ops(&self) -> u32 {
        1
    }

    fn tasks(&self, _: u32) -> u32 {
        (self.1 / (8 << 20)) as u32
    }

    unsafe fn run(&self, _: u32, task: u32, _: u32) {
        // SAFETY: the task's part lies inside the memory.
        let part = unsafe {
            let at = self.0.0.add(task as usize * (8 << 20)).cast::<u64>();
            std::slice::from_raw_parts(at, (8 << 20) / 8)
        };
        // SAFETY: the CPU was asked.
        std::hint::black_box(unsafe {
            if Isa::Avx2.is_available() { sum_avx2(part) } else { sum(part) }
        });
    }
}

#[target_feature(enable = "avx2")]
unsafe fn sum_avx2(part: &[u64]) -> u64 {
    sum(part)
}

#[inline(always)]
fn sum(part: &[u64]) -> u64 {
    let mut sums = [0u64; 32];
    for chunk in part.chunks_exact(32) {
        sums.iter_mut().zip(chunk).for_each(|(s, v)| *s = s.wrapping_add(*v));
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}

/// Milliseconds of one sampling op.
fn sampling(pool: &mut Pool, rows: usize, vocab: usize, params: &SamplingParams) -> f64 {
    let logits: Vec<f32> = (0..rows * vocab)
        .map(|i| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1 << 20) as f32)
        .collect();
    let params = vec![SampleParams::of(params, 0, 1, false); rows];
    let zeros = vec![0u32; rows * vocab];
    let mut scratch = vec![0u32; rows * scratch_bytes_of_row(vocab as u32) as usize / 4];
    let mut last = vec![0u32; rows + 1];
    let mut results = Vec::<SampleResult>::with_capacity(rows);
    let op = Sample {
        isa: Isa::detect(),
        rows: rows as u32,
        vocab: vocab as u32,
        logits: logits.as_ptr(),
        logits_stride: vocab,
        params: params.as_ptr(),
        logit_rows: zeros.as_ptr(),
        logit_slots: zeros.as_ptr(),
        token_seq: zeros.as_ptr(),
        masks: zeros.as_ptr(),
        mask_stride: 0,
        bias: std::ptr::null(),
        block_table: zeros.as_ptr(),
        table_stride: 0,
        token_pages: zeros.as_ptr(),
        last_token: last.as_mut_ptr(),
        scratch: scratch.as_mut_ptr(),
        results: results.as_mut_ptr(),
    };
    best(|| pool.execute(&Sampling(op)).expect("no task panics"))
}

struct Sampling(Sample);

impl Program for Sampling {
    fn ops(&self) -> u32 {
        1
    }

    fn tasks(&self, _: u32) -> u32 {
        self.0.tasks()
    }

    unsafe fn run(&self, _: u32, task: u32, _: u32) {
        // SAFETY: `sampling` above gives every pointer its room.
        unsafe { self.0.run(task, self.0.rows) }
    }
}

/// Milliseconds of the best run in about half a second: others may be using the machine.
fn best(mut f: impl FnMut()) -> f64 {
    f();
    let start = Instant::now();
    let mut best = f64::INFINITY;
    while start.elapsed().as_secs_f64() < 0.5 {
        let run = Instant::now();
        f();
        best = best.min(run.elapsed().as_secs_f64() * 1e3);
    }
    best
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(2);
    let mut pool = Pool::new(threads, true).expect("threads");
    pool.pin_caller();
    let bytes = 512 << 20;
    let read = ReadAll(Huge::new(bytes), bytes);
    let ms = best(|| pool.execute(&read).expect("no task panics"));
    println!("memory reads at {:.1} GB/s", bytes as f64 / ms / 1e6);
    drop(read);
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
    let base = SamplingParams::default();
    for (name, params) in [
        ("greedy", SamplingParams { temperature: 0.0, ..base.clone() }),
        (
            "greedy, 20 logprobs",
            SamplingParams { temperature: 0.0, logprobs: Some(20), ..base.clone() },
        ),
        ("temperature", base.clone()),
        ("top-k 40", SamplingParams { top_k: 40, ..base.clone() }),
        ("top-p 0.9", SamplingParams { top_p: 0.9, ..base.clone() }),
        (
            "top-p 0.9, nearly flat",
            SamplingParams { top_p: 0.9, temperature: 50.0, ..base.clone() },
        ),
        ("min-p 0.05", SamplingParams { min_p: 0.05, ..base.clone() }),
    ] {
        for rows in [1, 16] {
            let ms = sampling(&mut pool, rows, 49152, &params);
            println!("{rows:>2} rows of 49152, {name}: {:.1} us", ms * 1e3);
        }
    }
}
