//! Speed of the matrix multiplies beside what the machine can do at most.
//!
//! ```text
//! cargo run --release -p lockstep-device --example gemm_bench [-- FILTER [ROWS [THREADS]]]
//! ```
//!
//! First the limits, measured here and now: read bandwidth of a buffer of the size of the model
//! and the int8 dot-product peak. Then, for each SmolLM2-135M matrix, as many copies as make 96 MB
//! are multiplied one after another, so that weights come from where they come from in a decode.
//! Each figure is the best of several walks: the machine's other work can only slow one down.
//! `FILTER` keeps the rows of the table whose first column contains it; `ROWS` and `THREADS` are
//! lists like `1,16`.

use std::hint::black_box;
use std::time::Instant;

use lockstep_device::cpu::gemm::{Activations, Epilogue, Gemm, GemmArgs, SwiGluOut};
use lockstep_device::cpu::isa::Isa;
use lockstep_device::cpu::pool::{Pool, Program};
use lockstep_device::cpu::quant::{QBlock, row_bytes};
use lockstep_device::cpu::tile::{PackedMatrix, repack};
use lockstep_plan::format::Format;

const STREAM_BYTES: usize = 96 << 20;
const HUGE_PAGE: usize = 2 << 20;

/// Memory on huge pages, zeroed; lives until the process ends.
fn huge(bytes: usize) -> &'static mut [u8] {
    let len = bytes.next_multiple_of(HUGE_PAGE) + HUGE_PAGE;
    // SAFETY: a fresh private mapping, from whose first huge-page boundary `bytes` are taken.
    unsafe {
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
        let start = libc::mmap(core::ptr::null_mut(), len, prot, flags, -1, 0);
        assert_ne!(start, libc::MAP_FAILED, "mmap of {len} bytes");
        let start = start.byte_add(start.addr().next_multiple_of(HUGE_PAGE) - start.addr());
        libc::madvise(start, len - HUGE_PAGE, libc::MADV_HUGEPAGE);
        std::slice::from_raw_parts_mut(start.cast(), bytes)
    }
}

/// Seconds that this thread has had the CPU.
fn cpu_s() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on Linux, and `t` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

/// Seconds of the best of `reps` runs, after one that does not count: wall time, or with one
/// thread CPU time, which another process on the same core does not add to.
fn best_s(threads: u32, reps: usize, mut f: impl FnMut()) -> f64 {
    f();
    let mut best = f64::INFINITY;
    for _ in 0..reps {
        let (start, cpu) = (Instant::now(), cpu_s());
        f();
        let s = if threads == 1 { cpu_s() - cpu } else { start.elapsed().as_secs_f64() };
        best = best.min(s);
    }
    best
}

/// Multiplies, one after another.
struct Walk(Vec<Gemm>, u32);

impl Program for Walk {
    fn ops(&self) -> u32 {
        self.0.len() as u32
    }

    fn tasks(&self, op: u32) -> u32 {
        self.0[op as usize].tasks()
    }

    unsafe fn run(&self, op: u32, task: u32, _thread: u32) {
        // SAFETY: buffers live as long as the process, and ops run one after another.
        unsafe { self.0[op as usize].run(task..task + 1, self.1) }
    }
}

/// Reads a buffer, a part a task.
struct Read(&'static [u8], u32);

impl Program for Read {
    fn ops(&self) -> u32 {
        1
    }

    fn tasks(&self, _op: u32) -> u32 {
        self.1
    }

    unsafe fn run(&self, _op: u32, task: u32, _thread: u32) {
        let part = self.0.len() / self.1 as usize;
        // SAFETY: the caller checked for AVX-512.
        black_box(unsafe { sum(&self.0[task as usize * part..][..part]) });
    }
}

/// Nothing but dot products of registers.
struct Peak(u32, u32);

impl Program for Peak {
    fn ops(&self) -> u32 {
        1
    }

    fn tasks(&self, _op: u32) -> u32 {
        self.0
    }

    unsafe fn run(&self, _op: u32, _task: u32, _thread: u32) {
        // SAFETY: the caller checked for AVX-512 VNNI.
        black_box(unsafe { dots(self.1) });
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn sum(bytes: &[u8]) -> i64 {
    use core::arch::x86_64::*;
    let mut acc = [_mm512_setzero_si512(); 8];
    for line in bytes.chunks_exact(512) {
        for (i, acc) in acc.iter_mut().enumerate() {
            // SAFETY: 64 bytes inside the chunk of 512; a prefetch may be of any address.
            let v = unsafe {
                let line = line.as_ptr().add(64 * i);
                _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(4096).cast());
                _mm512_loadu_si512(line.cast())
            };
            *acc = _mm512_xor_si512(*acc, v);
        }
    }
    acc.into_iter().map(|a| _mm512_reduce_add_epi64(a)).sum()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn dots(rounds: u32) -> i32 {
    use core::arch::x86_64::*;
    let (a, b) = (_mm512_set1_epi8(3), _mm512_set1_epi8(5));
    let mut acc = [_mm512_setzero_si512(); 16];
    for _ in 0..rounds {
        for acc in &mut acc {
            *acc = _mm512_dpbusd_epi32(*acc, a, b);
        }
    }
    acc.into_iter().map(|a| _mm512_reduce_add_epi32(a)).fold(0, i32::wrapping_add)
}

struct Limits {
    read_gb_s: f64,
    peak_gop_s: f64,
}

fn limits(pool: &mut Pool) -> Limits {
    let buffer = huge(STREAM_BYTES);
    buffer.fill(1);
    let read = Read(buffer, 64);
    let read_s = best_s(pool.threads(), 40, || pool.execute(&read).unwrap());
    let (tasks, rounds) = (16 * pool.threads(), 2_000);
    let peak = Peak(tasks, rounds);
    let peak_s = best_s(pool.threads(), 10, || pool.execute(&peak).unwrap());
    let ops = f64::from(tasks) * f64::from(rounds) * 16.0 * 128.0;
    Limits { read_gb_s: STREAM_BYTES as f64 / read_s / 1e9, peak_gop_s: ops / peak_s / 1e9 }
}

struct Shape {
    name: &'static str,
    format: Format,
    n: usize,
    k: usize,
    swiglu: bool,
}

const fn shape(name: &'static str, format: Format, n: usize, k: usize, swiglu: bool) -> Shape {
    Shape { name, format, n, k, swiglu }
}

const SHAPES: [Shape; 12] = [
    shape("q,o 576x576", Format::Q4_1, 576, 576, false),
    shape("k,v 192x576", Format::Q4_1, 192, 576, false),
    shape("qkv 960x576", Format::Q4_1, 960, 576, false),
    shape("gate+up 1536x576", Format::Q4_1, 1536, 576, true),
    shape("down 576x1536", Format::Q4_1, 576, 1536, false),
    shape("head 49152x576", Format::Q8_0, 49152, 576, false),
    shape("4096x4096 Q4_1", Format::Q4_1, 4096, 4096, false),
    shape("4096x4096 Q4_0", Format::Q4_0, 4096, 4096, false),
    shape("4096x4096 Q4_K", Format::Q4_K, 4096, 4096, false),
    shape("4096x4096 Q6_K", Format::Q6_K, 4096, 4096, false),
    shape("1536x576 BF16", Format::BF16, 1536, 576, false),
    shape("1536x576 F32", Format::F32, 1536, 576, false),
];

const ROWS: [usize; 8] = [1, 2, 4, 8, 12, 16, 64, 512];

/// As many copies of the matrix as make up [`STREAM_BYTES`], all multiplied with the same rows.
fn walk(shape: &Shape, rows: usize, isa: Isa, weights: &'static [u8]) -> (Walk, usize) {
    let desc = PackedMatrix::plan(shape.format, shape.n, shape.k).unwrap();
    let matrices = if shape.swiglu { 2 } else { 1 };
    let bytes = desc.bytes() * matrices;
    let copies = weights.len() / bytes;
    let stride = row_bytes(shape.k);
    let x = if desc.takes_quantised() {
        let blocks = huge(rows * stride).as_ptr().cast();
        Activations::Quantised { blocks, row_stride_bytes: stride }
    } else {
        let values = huge(rows * shape.k * 4).as_ptr().cast();
        Activations::F32 { values, row_stride: shape.k }
    };
    let out = huge(rows * shape.n * 4).as_mut_ptr();
    let gemms = (0..copies).map(|i| {
        let weights = weights[i * bytes..].as_ptr();
        let epilogue = if shape.swiglu {
            let (blocks, row_stride_bytes) = (out.cast::<QBlock>(), row_bytes(shape.n));
            let out = SwiGluOut::Quantised { blocks, row_stride_bytes };
            Epilogue::SwiGlu { up: weights.wrapping_add(desc.bytes()), out }
        } else {
            Epilogue::Store { out: out.cast(), row_stride: shape.n }
        };
        let (rows, bias) = (rows as u32, core::ptr::null());
        GemmArgs { desc, weights, bias, x, rows, epilogue, isa }.capture().unwrap()
    });
    (Walk(gemms.collect(), rows as u32), copies * bytes)
}

/// Packed weights of random codes and ordinary scales.
fn packed(shape: &Shape) -> &'static [u8] {
    let desc = PackedMatrix::plan(shape.format, shape.n, shape.k).unwrap();
    let mut state = 1u64;
    let mut src = vec![0u8; shape.n * desc.source_row_bytes()];
    for b in src.chunks_exact_mut(8) {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        b.copy_from_slice(&((state >> 8) & 0x3f3f_3f3f_3f3f_3f3f).to_le_bytes());
    }
    let matrices = (STREAM_BYTES / desc.bytes()).max(1) & !1;
    let weights = huge(matrices * desc.bytes());
    for tiles in weights.chunks_exact_mut(desc.bytes()) {
        repack(&desc, &src, tiles).unwrap();
    }
    weights
}

fn main() {
    let arg = |i: usize| std::env::args().nth(i).unwrap_or_default();
    let list = |text: String, default: &[usize]| -> Vec<usize> {
        if text.is_empty() {
            return default.to_vec();
        }
        text.split(',').map(|v| v.parse().expect("a list of numbers")).collect()
    };
    let (filter, batches) = (arg(1), list(arg(2), &ROWS));
    let isa = Isa::detect();
    if isa != Isa::Avx512 {
        println!("this CPU has {isa} only; the limits are measured with AVX-512 VNNI");
        return;
    }
    for threads in list(arg(3), &[1, 2]) {
        let mut pool = Pool::new(threads as u32, true).unwrap();
        pool.pin_caller();
        let limits = limits(&mut pool);
        println!(
            "{threads} threads: read {:.1} GB/s, int8 dot products {:.0} GOP/s ({isa})",
            limits.read_gb_s, limits.peak_gop_s
        );
        println!(
            "{:<18} {:>5} {:>9} {:>7} {:>6} {:>8} {:>6}",
            "", "rows", "us", "GB/s", "%", "GOP/s", "%"
        );
        for shape in SHAPES.iter().filter(|s| s.name.contains(&filter)) {
            let weights = packed(shape);
            for &rows in &batches {
                // A long batch is bound by arithmetic: fewer copies say the same.
                let share = if rows >= 64 { weights.len() / 32 } else { weights.len() };
                let matrix = PackedMatrix::plan(shape.format, shape.n, shape.k).unwrap().bytes();
                let part = &weights[..share.max(2 * matrix).min(weights.len())];
                let (walk, bytes) = walk(shape, rows, isa, part);
                let reps = if rows >= 64 { 7 } else { 15 };
                let s = best_s(pool.threads(), reps, || pool.execute(&walk).unwrap());
                let gb_s = bytes as f64 / s / 1e9;
                let matrices = bytes / matrix;
                let ops = 2 * matrices * shape.n * shape.k * rows;
                let gop_s = ops as f64 / s / 1e9;
                println!(
                    "{:<18} {rows:>5} {:>9.1} {gb_s:>7.1} {:>6.0} {gop_s:>8.0} {:>6.0}",
                    shape.name,
                    s / matrices as f64 * 1e6,
                    gb_s / limits.read_gb_s * 100.0,
                    gop_s / limits.peak_gop_s * 100.0,
                );
            }
        }
    }
}
