//! What the machine can do at most: the marks beside which kernels are measured.

use core::fmt;
use core::hint::black_box;
use std::time::Instant;

use super::isa::Isa;
use super::lanes::{LANES, Lanes, per_isa};
use super::pool::{Pool, Program};
use super::slab::Slab;
use crate::DeviceError;

/// Bytes that are read: a small model, far beyond the caches of a core.
const READ_BYTES: usize = 96 << 20;
/// Parts that threads share.
const READ_TASKS: u32 = 64;
const READS: usize = 30;
/// How far ahead lines are asked for.
const PREFETCH_FLOATS: usize = 1024;
/// Rounds of multiply-adds of a task, and tasks a thread.
const ROUNDS: u32 = 2_000;
const TASKS_PER_THREAD: u32 = 16;
const PEAKS: usize = 10;
/// Ops of a walk that does nothing.
const EMPTY_OPS: u32 = 1000;

/// Marks of some threads of this machine, now: the best of several walks each, since other work
/// can only slow one down.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limits {
    /// Bytes a second that are read of a buffer that was written before.
    pub read_bytes_s: f64,
    /// Multiply-adds of f32 a second, all operands in registers.
    pub f32_macs_s: f64,
    /// Divisions of f32 a second, likewise.
    pub f32_divs_s: f64,
    /// Seconds of an op of one task that does nothing, among others.
    pub empty_op_s: f64,
    /// Seconds of a walk of one such op.
    pub empty_walk_s: f64,
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (gb, gmac) = (self.read_bytes_s / 1e9, self.f32_macs_s / 1e9);
        let gdiv = self.f32_divs_s / 1e9;
        let [op, walk] = [self.empty_op_s, self.empty_walk_s].map(|s| 1e6 * s);
        write!(
            f,
            "reads {gb:.1} GB/s, f32 multiply-adds {gmac:.1} GMAC/s, divisions {gdiv:.1} G/s, "
        )?;
        write!(f, "an op of nothing {op:.2} us, and {walk:.2} us alone")
    }
}

impl Limits {
    /// Measures them, in about a second, with the plain kernels where the CPU lacks `isa`.
    ///
    /// # Errors
    /// There are no threads, or no memory.
    pub fn measure(threads: u32, isa: Isa) -> Result<Limits, DeviceError> {
        let isa = if isa.is_available() { isa } else { Isa::Portable };
        // On a thread of its own, which stays on a CPU: the caller's threads may go anywhere.
        std::thread::scope(|scope| {
            let measured = scope.spawn(|| Limits::measure_here(threads, isa)).join();
            measured.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// The marks half-way between two measurements.
    #[must_use]
    pub fn between(&self, other: &Limits) -> Limits {
        let half = |of: fn(&Limits) -> f64| f64::midpoint(of(self), of(other));
        Limits {
            read_bytes_s: half(|l| l.read_bytes_s),
            f32_macs_s: half(|l| l.f32_macs_s),
            f32_divs_s: half(|l| l.f32_divs_s),
            empty_op_s: half(|l| l.empty_op_s),
            empty_walk_s: half(|l| l.empty_walk_s),
        }
    }

    fn measure_here(threads: u32, isa: Isa) -> Result<Limits, DeviceError> {
        let mut pool = Pool::new(threads, true).map_err(DeviceError::Threads)?;
        pool.pin_caller();
        let mut slab = Slab::new(READ_BYTES, "the bandwidth of reads")?;
        slab.fill(READ_BYTES, 1);
        let read = best_s(&mut pool, &Read { isa, slab: &slab }, READS)?;
        let tasks = TASKS_PER_THREAD * threads;
        let peak = best_s(&mut pool, &Peak { isa, tasks, of: multiply }, PEAKS)?;
        let divs = best_s(&mut pool, &Peak { isa, tasks, of: divide }, PEAKS)?;
        let ops = best_s(&mut pool, &Empty { ops: EMPTY_OPS }, PEAKS)?;
        let walk = best_s(&mut pool, &Empty { ops: 1 }, PEAKS)?;
        let all = f64::from(tasks) * f64::from(ROUNDS) * (chains(isa) * LANES) as f64;
        Ok(Limits {
            read_bytes_s: READ_BYTES as f64 / read,
            f32_macs_s: all / peak,
            f32_divs_s: all / divs,
            empty_op_s: ops / f64::from(EMPTY_OPS),
            empty_walk_s: walk,
        })
    }
}

/// Seconds of the best of some walks, after one that does not count.
fn best_s(pool: &mut Pool, program: &dyn Program, walks: usize) -> Result<f64, DeviceError> {
    let mut best = f64::INFINITY;
    for walk in 0..=walks {
        let began = Instant::now();
        pool.execute(program).map_err(DeviceError::Threads)?;
        if walk > 0 {
            best = best.min(began.elapsed().as_secs_f64());
        }
    }
    Ok(best)
}

/// Reads a buffer, a part a task.
struct Read<'a> {
    isa: Isa,
    slab: &'a Slab,
}

impl Program for Read<'_> {
    fn ops(&self) -> u32 {
        1
    }

    fn tasks(&self, _: u32) -> u32 {
        READ_TASKS
    }

    unsafe fn run(&self, _: u32, task: u32, _: u32) {
        let part = READ_BYTES / READ_TASKS as usize;
        // SAFETY: the instruction set is there; the part lies in the slab, which nobody writes.
        unsafe {
            let from = self.slab.base().add(task as usize * part).cast::<f32>();
            black_box(total(self.isa, from.cast_const(), part / size_of::<f32>()));
        }
    }
}

/// Ops of one task that does nothing.
struct Empty {
    ops: u32,
}

impl Program for Empty {
    fn ops(&self) -> u32 {
        self.ops
    }

    fn tasks(&self, _: u32) -> u32 {
        1
    }

    unsafe fn run(&self, op: u32, _: u32, _: u32) {
        black_box(op);
    }
}

/// Nothing but multiply-adds, or divisions, of registers.
struct Peak {
    isa: Isa,
    tasks: u32,
    of: unsafe fn(Isa, f32) -> f32,
}

impl Program for Peak {
    fn ops(&self) -> u32 {
        1
    }

    fn tasks(&self, _: u32) -> u32 {
        self.tasks
    }

    unsafe fn run(&self, _: u32, _: u32, _: u32) {
        // SAFETY: the instruction set is there.
        black_box(unsafe { (self.of)(self.isa, black_box(0.5)) });
    }
}

/// Chains at once: enough to hide latency, and no more than there are registers for.
const fn chains(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 => 16,
        Isa::Avx2 | Isa::Portable => 5,
    }
}

per_isa! {
    unsafe fn total(from: *const f32, n: usize) -> f32 = total_body;
}
per_isa! {
    unsafe fn multiply(by: f32) -> f32 = multiply_body;
}

per_isa! {
    unsafe fn divide(by: f32) -> f32 = divide_body;
}

#[inline(always)]
unsafe fn total_body<V: Lanes>(from: *const f32, n: usize) -> f32 {
    // SAFETY: the caller's contract; parts are whole steps.
    unsafe {
        let mut sums = [V::splat(0.0); 4];
        for i in (0..n).step_by(4 * LANES) {
            for (l, sum) in sums.iter_mut().enumerate() {
                let line = from.add(i + l * LANES);
                V::prefetch(line.wrapping_add(PREFETCH_FLOATS));
                *sum = sum.max(V::load(line));
            }
        }
        sums[0].max(sums[1]).max(sums[2].max(sums[3])).sum()
    }
}

#[inline(always)]
unsafe fn multiply_body<V: Lanes>(by: f32) -> f32 {
    // SAFETY: the caller's contract.
    unsafe { chained::<V>(by, |acc, by, one| acc.fma(by, one)) }
}

#[inline(always)]
unsafe fn divide_body<V: Lanes>(by: f32) -> f32 {
    // SAFETY: the caller's contract. From 1 on, by / (by / ..) stays 1 or `by`.
    unsafe { chained::<V>(by, |acc, by, _| by.div(acc)) }
}

#[inline(always)]
unsafe fn chained<V: Lanes>(by: f32, step: impl Fn(V, V, V) -> V) -> f32 {
    // SAFETY: the caller's contract.
    unsafe {
        match V::ISA {
            Isa::Avx512 => chains_of::<V, { chains(Isa::Avx512) }>(by, step),
            _ => chains_of::<V, { chains(Isa::Portable) }>(by, step),
        }
    }
}

#[inline(always)]
unsafe fn chains_of<V: Lanes, const N: usize>(by: f32, step: impl Fn(V, V, V) -> V) -> f32 {
    // SAFETY: the caller's contract.
    unsafe {
        let (by, one) = (V::splat(by), V::splat(1.0));
        let mut acc = [one; N];
        for _ in 0..ROUNDS {
            for acc in &mut acc {
                *acc = step(*acc, by, one);
            }
        }
        let mut sum = V::splat(0.0);
        for acc in acc {
            sum = sum.add(acc);
        }
        sum.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::lanes::isas;

    #[test]
    fn marks_are_numbers_of_every_instruction_set() {
        for isa in isas() {
            let limits = Limits::measure(1, isa).unwrap();
            assert!(limits.read_bytes_s.is_normal() && limits.read_bytes_s > 0.0, "{limits}");
            assert!(limits.f32_macs_s.is_normal() && limits.f32_macs_s > 0.0, "{limits}");
            assert!(limits.f32_divs_s.is_normal() && limits.f32_divs_s > 0.0, "{limits}");
            assert!(limits.empty_op_s > 0.0 && limits.empty_walk_s > 0.0, "{limits}");
            // The chains converge to 2, and every one of them counts.
            // SAFETY: the instruction set is there.
            let sum = unsafe { multiply(isa, 0.5) };
            assert_eq!(sum, 2.0 * (chains(isa) * LANES) as f32, "{isa}");
        }
        assert!(Limits::measure(0, Isa::Portable).is_err());
    }
}
