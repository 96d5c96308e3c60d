//! Kernels of DeepSeek-V4. Each file's first comment is its kernels' definition.
//!
//! Every kernel takes token rows one by one: nothing that a row computes depends on which other
//! rows share the step, the task or the thread.

mod attention;
mod code;
mod compress;
mod experts;
mod hyper;
mod index;
mod mtp;
mod paged;
mod rope;
mod route;
mod sinkhorn;

pub use attention::{Compressed, SinkAttention};
pub use code::RowCodec;
pub use compress::{CompressRows, StateStore};
pub use experts::{ExpertDown, ExpertSum, ExpertUp, GroupedGemm, LimitedSiluMul, Product};
pub use hyper::{HyperIn, HyperOut, HyperStart};
pub use index::{IndexScores, IndexTopK};
pub use mtp::{DraftPick, DraftStart, ShiftPositions, StreamNorm, StreamSource};
pub use paged::{PagedRows, Tables};
pub use rope::{HeadRope, TailRope, WindowStore};
pub use route::Route;

use super::backend::NAME;
use super::lanes::LANES;
use core::ops::Range;
use lockstep_plan::Unsupported;
use lockstep_plan::v4::V4Shape;

/// Rows of a bucket, some of them a task: a quarter of the bucket, so that a few threads share even
/// a small one, and no more than a kernel takes at once. Shapes speed, not bits.
#[derive(Clone, Copy)]
struct SharedRows {
    /// Rows, live and padded.
    rows: u32,
    /// Rows of a task, at most.
    most: u32,
}

impl SharedRows {
    fn of_task(self) -> u32 {
        (self.rows / 4).clamp(1, self.most)
    }

    fn tasks(self) -> u32 {
        self.rows.div_ceil(self.of_task())
    }

    /// The rows of a task, but for those from `live` on.
    fn of(self, task: u32, live: u32) -> Range<usize> {
        let first = task * self.of_task();
        let end = (first + self.of_task()).min(self.rows).min(live);
        first as usize..end as usize
    }
}

/// A captured op of DeepSeek-V4.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Copy, Debug)]
pub enum V4Call {
    /// See [`HyperStart`].
    HyperStart(HyperStart),
    /// See [`HyperIn`].
    HyperIn(HyperIn),
    /// See [`HyperOut`].
    HyperOut(HyperOut),
    /// See [`HeadRope`].
    HeadRope(HeadRope),
    /// See [`WindowStore`].
    WindowStore(WindowStore),
    /// See [`StateStore`].
    StateStore(StateStore),
    /// See [`CompressRows`].
    CompressRows(CompressRows),
    /// See [`IndexScores`].
    IndexScores(IndexScores),
    /// See [`IndexTopK`].
    IndexTopK(IndexTopK),
    /// See [`SinkAttention`].
    SinkAttention(SinkAttention),
    /// See [`GroupedGemm`].
    GroupedGemm(GroupedGemm),
    /// See [`Route`].
    Route(Route),
    /// See [`ExpertUp`].
    ExpertUp(ExpertUp),
    /// See [`ExpertDown`].
    ExpertDown(ExpertDown),
    /// See [`LimitedSiluMul`].
    LimitedSiluMul(LimitedSiluMul),
    /// See [`ExpertSum`].
    ExpertSum(ExpertSum),
    /// See [`StreamNorm`].
    StreamNorm(StreamNorm),
    /// See [`ShiftPositions`].
    ShiftPositions(ShiftPositions),
    /// See [`DraftStart`].
    DraftStart(DraftStart),
    /// See [`DraftPick`].
    DraftPick(DraftPick),
}

impl V4Call {
    /// Tasks to share among threads.
    pub fn tasks(&self) -> u32 {
        match self {
            V4Call::HyperStart(c) => c.rows,
            V4Call::HyperIn(c) => c.tasks(),
            V4Call::HyperOut(c) => c.rows,
            V4Call::HeadRope(c) => c.rows,
            V4Call::WindowStore(c) => c.rows,
            V4Call::StateStore(c) => c.rows,
            V4Call::CompressRows(c) => c.rows,
            V4Call::IndexScores(c) => c.tasks(),
            V4Call::IndexTopK(c) => c.rows,
            V4Call::SinkAttention(c) => c.tasks(),
            V4Call::GroupedGemm(c) => c.tasks(),
            V4Call::Route(c) => c.tasks(),
            V4Call::ExpertUp(c) => c.tasks(),
            V4Call::ExpertDown(c) => c.tasks(),
            V4Call::LimitedSiluMul(c) => c.rows,
            V4Call::ExpertSum(c) => c.rows,
            V4Call::StreamNorm(c) => c.rows,
            V4Call::ShiftPositions(c) => c.rows,
            V4Call::DraftStart(c) => c.rows,
            V4Call::DraftPick(c) => c.rows,
        }
    }

    /// Runs one task; `live_rows` are those of the op's own axis.
    ///
    /// # Safety
    /// As [`super::call::Call::run`].
    pub unsafe fn run(&self, task: u32, live_rows: u32) {
        // SAFETY: each kernel's contract is the caller's for its own addresses.
        unsafe {
            match self {
                V4Call::HyperIn(c) => return c.run(task, live_rows),
                V4Call::IndexScores(c) => return c.run(task, live_rows),
                V4Call::SinkAttention(c) => return c.run(task, live_rows),
                V4Call::GroupedGemm(c) => return c.run(task, live_rows),
                V4Call::Route(c) => return c.run(task, live_rows),
                V4Call::ExpertUp(c) => return c.run(task, live_rows),
                V4Call::ExpertDown(c) => return c.run(task, live_rows),
                _ => {}
            }
            // Kernels of one row a task: a padded row has nothing to do.
            if task >= live_rows {
                return;
            }
            let row = task as usize;
            match self {
                V4Call::HyperStart(c) => c.run(row),
                V4Call::HyperOut(c) => c.run(row),
                V4Call::HeadRope(c) => c.run(row),
                V4Call::WindowStore(c) => c.run(row),
                V4Call::StateStore(c) => c.run(row),
                V4Call::CompressRows(c) => c.run(row),
                V4Call::IndexTopK(c) => c.run(row),
                V4Call::LimitedSiluMul(c) => c.run(row),
                V4Call::ExpertSum(c) => c.run(row),
                V4Call::StreamNorm(c) => c.run(row),
                V4Call::ShiftPositions(c) => c.run(row),
                V4Call::DraftStart(c) => c.run(row),
                V4Call::DraftPick(c) => c.run(row),
                _ => unreachable!("matched above"),
            }
        }
    }
}

/// Checks that the kernels take a model of this shape.
///
/// # Errors
/// Names the size that they do not take.
pub fn check_shape(s: &V4Shape) -> Result<(), Unsupported> {
    let lanes = LANES as u32;
    // The kernel takes heads a vector at a time.
    let index_lanes = u64::from(s.index_heads).next_multiple_of(LANES as u64);
    let index_width = index_lanes * u64::from(s.index_head_dim);
    let checks = [
        (s.streams <= 4 && s.streams > 0, "hc_mult", s.streams, "1 to 4 residual streams"),
        (s.hidden.is_multiple_of(lanes), "hidden_size", s.hidden, "multiples of 16"),
        (s.head_dim.is_multiple_of(lanes), "head_dim", s.head_dim, "multiples of 16"),
        (
            s.head_dim as usize <= rope::HEAD_DIM_MAX,
            "head_dim",
            s.head_dim,
            "heads of up to 1,024 channels",
        ),
        (
            s.rotary_dim as usize <= rope::ROTARY_MAX && s.rotary_dim.is_multiple_of(2),
            "qk_rope_head_dim",
            s.rotary_dim,
            "an even number of up to 128 rotary channels",
        ),
        (
            s.index_head_dim.is_multiple_of(lanes),
            "index_head_dim",
            s.index_head_dim,
            "multiples of 16",
        ),
        (
            s.index_head_dim as usize <= code::CHANNELS_MAX,
            "index_head_dim",
            s.index_head_dim,
            "index heads of up to 1,024 channels",
        ),
        (
            s.index_heads as usize <= index::HEADS_MAX && index_width <= index::WIDTH_MAX as u64,
            "index_n_heads",
            s.index_heads,
            "up to 64 index heads of 8,192 channels together, counted in sixteens of heads",
        ),
        (s.o_lora.is_multiple_of(lanes), "o_lora_rank", s.o_lora, "multiples of 16"),
        (s.ffn.is_multiple_of(lanes), "moe_intermediate_size", s.ffn, "multiples of 16"),
        (
            (1..=route::EXPERTS_MAX).contains(&(s.experts as usize)),
            "n_routed_experts",
            s.experts,
            "1 to 1,024 experts",
        ),
        (
            (1..=s.experts.min(route::PER_TOKEN_MAX as u32)).contains(&s.experts_per_token),
            "num_experts_per_tok",
            s.experts_per_token,
            "1 to 32 experts a token, and no more than there are",
        ),
    ];
    for (good, what, found, supported) in checks {
        if !good {
            let asked = format!("a DeepSeek-V4 model with {what} {found}");
            return Err(Unsupported { device: NAME, asked, supported: supported.into() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers from -1 on and below 1, that follow from `seed`.
    pub fn noise(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..n).map(|_| next()).collect()
    }

    /// Eight index heads of 1,024 channels once passed for 8,192 channels: the kernel takes sixteen
    /// heads at a time, and wrote past the room for them.
    #[test]
    fn index_heads_count_as_whole_vectors() {
        let shape = |index_heads, index_head_dim| V4Shape {
            streams: 4,
            hidden: 64,
            head_dim: 64,
            rotary_dim: 16,
            index_heads,
            index_head_dim,
            o_lora: 16,
            experts: 4,
            ffn: 64,
            experts_per_token: 2,
        };
        for (heads, dim) in [(64, 128), (16, 512), (1, 512), (17, 256), (32, 256)] {
            assert_eq!(check_shape(&shape(heads, dim)), Ok(()), "{heads} of {dim}");
        }
        for (heads, dim) in [(8, 1024), (1, 1024), (20, 400), (17, 272), (65, 16)] {
            let refused = check_shape(&shape(heads, dim)).unwrap_err();
            assert!(refused.asked.contains("index_n_heads"), "{heads} of {dim}: {refused:?}");
        }
    }
}
