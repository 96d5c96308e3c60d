//! A captured op: a kernel with every address resolved.

use super::attention::Attention;
use super::embed::{Embed, GatherTokens};
use super::gemm::Gemm;
use super::mix::Mix;
use super::norm::RmsNorm;
use super::rope::RopeKvWrite;
use super::rows::{QuantizeRows, SiluMul};
use super::sample::Sample;
use super::v4::V4Call;

/// Live rows of a step, by axis; rows from there on are padding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Live {
    /// Token rows.
    pub t: u32,
    /// Sequence rows.
    pub s: u32,
    /// Logit rows.
    pub r: u32,
}

impl Live {
    /// Live rows of an axis.
    pub const fn of(&self, axis: lockstep_plan::Axis) -> u32 {
        match axis {
            lockstep_plan::Axis::T => self.t,
            lockstep_plan::Axis::S => self.s,
            lockstep_plan::Axis::R => self.r,
        }
    }
}

/// Matrices of one GEMM op, at most.
pub const PARTS_MAX: usize = 3;

/// A GEMM op: its parts' tasks run one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct GemmCall {
    /// The parts, in order.
    pub parts: [Option<Gemm>; PARTS_MAX],
    /// Whose rows they multiply.
    pub axis: lockstep_plan::Axis,
}

/// A kernel and its arguments. The sizes of the variants differ, and that is of no consequence: a
/// capture holds a few hundred of them in one vector.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub enum Call {
    /// See [`GatherTokens`].
    GatherTokens(GatherTokens),
    /// See [`Embed`].
    Embed(Embed, lockstep_plan::Axis),
    /// See [`RmsNorm`].
    RmsNorm(RmsNorm, lockstep_plan::Axis),
    /// See [`QuantizeRows`].
    QuantizeRows(QuantizeRows, lockstep_plan::Axis),
    /// See [`GemmCall`].
    Gemm(GemmCall),
    /// See [`RopeKvWrite`].
    RopeKvWrite(RopeKvWrite),
    /// First half of attention.
    AttentionPartial(Attention),
    /// Second half of attention.
    AttentionCombine(Attention),
    /// See [`SiluMul`].
    SiluMul(SiluMul),
    /// See [`Sample`].
    Sample(Sample),
    /// See [`Mix`].
    Mix(Box<Mix>),
    /// See [`V4Call`].
    V4(V4Call, lockstep_plan::Axis),
}

impl Call {
    /// Tasks to share among threads.
    pub fn tasks(&self) -> u32 {
        match self {
            Call::GatherTokens(c) => c.tasks(),
            Call::Embed(c, _) => c.tasks(),
            Call::RmsNorm(c, _) => c.tasks(),
            Call::QuantizeRows(c, _) => c.tasks(),
            Call::Gemm(c) => c.parts.iter().flatten().map(|p| p.tasks()).sum(),
            Call::RopeKvWrite(c) => c.tasks(),
            Call::AttentionPartial(c) => c.partial_tasks(),
            Call::AttentionCombine(c) => c.combine_tasks(),
            Call::SiluMul(c) => c.tasks(),
            Call::Sample(c) => c.tasks(),
            Call::Mix(c) => c.tasks(),
            Call::V4(c, _) => c.tasks(),
        }
    }

    /// Runs one task.
    ///
    /// # Safety
    /// Every address resolves to live memory of the plan's shapes; the plan is proven, so nothing
    /// that this task touches is touched meanwhile by anything else; table entries of live rows
    /// are in range, as the step's lease says; `thread` runs one task at a time.
    pub unsafe fn run(&self, task: u32, _thread: u32, live: &Live) {
        // SAFETY: each kernel's contract is this one for its own addresses.
        unsafe {
            match self {
                Call::GatherTokens(c) => c.run(task, live.t),
                Call::Embed(c, axis) => c.run(task, live.of(*axis)),
                Call::RmsNorm(c, axis) => c.run(task, live.of(*axis)),
                Call::QuantizeRows(c, axis) => c.run(task, live.of(*axis)),
                Call::Gemm(c) => c.run(task, live.of(c.axis)),
                Call::RopeKvWrite(c) => c.run(task, live.t),
                Call::AttentionPartial(c) => c.run_partial(task, live.t),
                Call::AttentionCombine(c) => c.run_combine(task, live.t),
                Call::SiluMul(c) => c.run(task, live.t),
                Call::Sample(c) => c.run(task, live.r),
                Call::Mix(c) => c.run(),
                Call::V4(c, axis) => c.run(task, live.of(*axis)),
            }
        }
    }
}

impl GemmCall {
    /// # Safety
    /// As [`Call::run`].
    unsafe fn run(&self, mut task: u32, live_rows: u32) {
        for part in self.parts.iter().flatten() {
            let tasks = part.tasks();
            if task < tasks {
                // SAFETY: the caller's contract.
                unsafe { part.run(task..task + 1, live_rows) };
                return;
            }
            task -= tasks;
        }
    }
}
