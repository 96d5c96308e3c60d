//! Ops of a plan that one kernel does together in a captured graph.
//!
//! The kernel has the definitions of the ops, to the bit. Op by op, which is how the audit's twin
//! runs, each op has its own kernel, so the two are compared whenever a step is audited.

use crate::attention::on_tensor_cores;
use crate::driver::PageMap;
use crate::launch::{AttnArgs, DecodeArgs, Launch, OneTokenRows, WalkArgs};
use crate::resolve::Resolver;
use lockstep_device::DeviceError;
use lockstep_flow::limits::{KV_SPLIT_TOKENS, PAGE_TOKENS};
use lockstep_plan::{
    Attention, AttnShape, EdgeKind, LaneId, OpId, OpKind, RopeKvWrite, RopePairing,
};

/// Ops that follow each other in one lane, and the launch that does them.
#[derive(Clone, Debug)]
pub struct Step {
    /// The first op.
    pub first: OpId,
    /// The last op; the same where nothing is fused.
    pub last: OpId,
    /// The launch.
    pub launch: Launch,
    /// It is attention that turns the queries which it reads.
    pub turns_queries: bool,
}

impl Step {
    /// Ops `first` to `last` in one launch.
    pub fn new((first, last): (OpId, OpId), launch: Launch) -> Step {
        Step { first, last, launch, turns_queries: false }
    }
}

/// Query heads of a KV head that the fused kernel has room for.
const HEADS_MAX: u32 = 8;

/// Warps of a block, each of which brings a page.
const WARPS: u32 = 4;

/// Blocks of a cluster, at most.
const WAYS_MAX: u32 = 8;

/// Blocks of the fused kernel that have a multiprocessor each on an H200.
const BLOCKS_MOST: u32 = 132;

/// Groups of four pages that are on their way: two are slower, since the block then waits for the
/// shared memory of the kernel before it.
const DEPTH: u32 = 1;

/// Shared memory that a block may have.
const SHARED_BYTES_MAX: u32 = 226 << 10;

/// Rows times KV heads up to which a block for each of them is faster than warps that walk over many:
/// two a multiprocessor.
const WALK_UNITS: u32 = 2 * BLOCKS_MOST;

/// Bytes of pages that are on their way to a multiprocessor.
const RING_BYTES: u32 = 192 << 10;

/// Warps of a block that walk, at most.
const WALKERS_MAX: u32 = 6;

/// Pages of a warp that are on their way, at most.
const WALK_DEPTH_MAX: u32 = 16;

/// How blocks share the splits of a row: of no consequence for bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sharing {
    /// Blocks of a cluster, which take every `ways`th split each.
    ways: u32,
    /// Splits whose results a block keeps for the others.
    kept: u32,
    /// Shared memory of a block.
    bytes: u32,
}

impl Sharing {
    fn of(rows: u32, a: &Attention) -> Sharing {
        let splits = (a.pages_per_seq_max * PAGE_TOKENS).div_ceil(KV_SPLIT_TOKENS).max(1);
        let (units, d) = (rows * a.attn.kv_heads, a.attn.head_dim);
        let per_kv = a.attn.heads / a.attn.kv_heads;
        let with = |ways: u32| {
            let kept = if ways > 1 { splits.div_ceil(ways) } else { 0 };
            let pages = DEPTH * 2 * WARPS * PAGE_TOKENS * d * 2;
            let scores = WARPS * 1024 + WARPS * HEADS_MAX * 4;
            let heads = HEADS_MAX * (d * 2 + 16) + 2 * d * 2 + WARPS * d * 4;
            let bytes = pages + scores + heads + kept * per_kv * (d + 4) * 4;
            Sharing { ways, kept, bytes }
        };
        let mut ways = 1;
        while ways < WAYS_MAX
            && ways * 2 <= splits.next_power_of_two()
            && units * ways * 2 <= BLOCKS_MOST
        {
            ways *= 2;
        }
        let shared = with(ways);
        if shared.bytes <= SHARED_BYTES_MAX { shared } else { with(1) }
    }
}

/// How warps share rows and KV heads where there are many: of no consequence for bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Walk {
    /// Warps of a block, which has a multiprocessor to itself.
    warps: u32,
    /// Pages of a warp that are on their way.
    depth: u32,
    /// Shared memory of a block.
    bytes: u32,
}

impl Walk {
    fn of(rows: u32, a: &AttnShape) -> Option<Walk> {
        let (units, d) = (rows * a.kv_heads, a.head_dim);
        if units <= WALK_UNITS {
            return None;
        }
        let page = PAGE_TOKENS * d * 2;
        let warps = units.div_ceil(BLOCKS_MOST).min(WALKERS_MAX);
        let depth = (RING_BYTES / page / warps).min(WALK_DEPTH_MAX);
        let nook = HEADS_MAX * (d * 2 + 16) + 2 * d * 2 + d * 4;
        Some(Walk { warps, depth, bytes: warps * (depth * (page + 8) + nook) })
    }
}

impl Resolver<'_> {
    /// What op `first` and those after it come to in one kernel, where there is one for them.
    ///
    /// # Errors
    /// The driver refuses a map of the pages.
    pub fn fused(&self, first: OpId) -> Result<Option<Step>, DeviceError> {
        if let Some((w, a)) = self.one_kernel(first) {
            let last = OpId(first.0 + 2);
            return Ok(Some(Step::new((first, last), self.attention_decode(w, a)?)));
        }
        if let Some(w) = self.keys_alone(first) {
            let launch = self.rope_kv_write(w, w.attn.heads);
            return Ok(Some(Step::new((first, first), launch)));
        }
        Ok(self.whole_rows(first))
    }

    /// A rotation, and both halves of attention right after it, that meet no other lane.
    fn three_ops(&self, first: OpId) -> Option<(&RopeKvWrite, &Attention)> {
        let ops = self.plan.ops.get(first.index()..first.index() + 3)?;
        let [OpKind::RopeKvWrite(w), OpKind::AttentionPartial(a), OpKind::AttentionCombine(c)] =
            [&ops[0].kind, &ops[1].kind, &ops[2].kind]
        else {
            return None;
        };
        let last = OpId(first.0 + 2);
        let lane = ops[0].lane;
        let same = w.qkv == a.qkv && w.k_pages == a.k_pages && w.v_pages == a.v_pages;
        let same = same && w.positions == a.positions && w.attn == a.attn;
        let fits = same && on_tensor_cores(&a.attn) && a.out_quantised && a == c;
        if !fits || ops.iter().any(|o| o.lane != lane) || self.meets_others((first, last), lane) {
            return None;
        }
        Some((w, a))
    }

    fn one_kernel(&self, first: OpId) -> Option<(&RopeKvWrite, &Attention)> {
        let (w, a) = self.three_ops(first)?;
        let fits = a.attn.heads / a.attn.kv_heads <= HEADS_MAX;
        (self.plan.bucket.is_decode() && fits && self.kernels.clusters).then_some((w, a))
    }

    /// A rotation of keys alone: attention, which takes whole rows, turns the queries that it reads, where all
    /// of their channels turn.
    fn keys_alone(&self, first: OpId) -> Option<&RopeKvWrite> {
        let (w, a) = self.three_ops(first)?;
        let turns = !self.plan.bucket.is_decode() && w.rotary_dim == a.attn.head_dim;
        (turns && self.attention_args(a).parts == 1).then_some(w)
    }

    /// Both halves of attention, where sequences have many rows each: who has a row's only part writes it.
    fn whole_rows(&self, first: OpId) -> Option<Step> {
        let ops = self.plan.ops.get(first.index()..first.index() + 2)?;
        let [OpKind::AttentionPartial(a), OpKind::AttentionCombine(c)] =
            [&ops[0].kind, &ops[1].kind]
        else {
            return None;
        };
        let (last, lane) = (OpId(first.0 + 1), ops[0].lane);
        let fits = on_tensor_cores(&a.attn) && a.out_quantised && a == c && ops[1].lane == lane;
        let args = self.attention_args(a);
        if !fits || args.parts > 1 || self.meets_others((first, last), lane) {
            return None;
        }
        let args = AttnArgs { whole: 1, ..args };
        let before = first.0.checked_sub(1).and_then(|op| self.keys_alone(OpId(op)));
        let args = before.map_or(args, |w| AttnArgs {
            turn: self.at.at(w.table),
            q_norm: self.at.opt(w.qk_norm.map(|(q, _)| q)),
            adjacent: u32::from(w.pairing == RopePairing::Adjacent),
            eps: f32::from_bits(w.eps_bits),
            ..args
        });
        let turns_queries = args.turn != 0;
        Some(Step { turns_queries, ..Step::new((first, last), self.attention_mma(args)) })
    }

    /// Whether another device lane waits for something inside `first..=last`, or it for that lane.
    fn meets_others(&self, (first, last): (OpId, OpId), lane: LaneId) -> bool {
        let other = |op: OpId| {
            let of = self.plan.op(op).lane;
            of != lane && of != LaneId::HOST
        };
        let inside = |op: OpId| first <= op && op <= last;
        self.plan.edges.iter().filter(|e| e.kind != EdgeKind::NextStep).any(|e| {
            inside(e.from) && e.from != last && other(e.to)
                || inside(e.to) && e.to != first && other(e.from)
        })
    }

    fn attention_decode(&self, w: &RopeKvWrite, a: &Attention) -> Result<Launch, DeviceError> {
        let partial = self.attention_args(a);
        let walk = if self.kernels.wgmma { Walk::of(partial.rows, &a.attn) } else { None };
        if let Some(walk) = walk {
            return self.attention_walk(w, a, (partial, walk));
        }
        let sharing = Sharing::of(partial.rows, a);
        let args = DecodeArgs {
            of: self.one_token_rows(w, &partial),
            adjacent: u32::from(w.pairing == RopePairing::Adjacent),
            ways: sharing.ways,
            depth: DEPTH,
            kept: sharing.kept,
            scale: partial.scale,
            eps: f32::from_bits(w.eps_bits),
        };
        let kernel = format!("attention_decode_{}", a.attn.head_dim);
        let blocks = partial.rows * partial.kv_heads * sharing.ways;
        let shape = self.shape(&kernel, (blocks, 1), WARPS * 32, sharing.bytes);
        Ok(Launch::new(crate::driver::Shape { cluster: sharing.ways, ..shape }, args))
    }

    /// What both kernels take of the rows.
    fn one_token_rows(&self, w: &RopeKvWrite, partial: &AttnArgs) -> OneTokenRows {
        let (q_norm, k_norm) = w.qk_norm.unzip();
        OneTokenRows {
            live: partial.live,
            qkv: partial.qkv,
            table: self.at.at(w.table),
            positions: partial.positions,
            token_seq: partial.token_seq,
            block_table: partial.block_table,
            write_slots: self.at.at(w.write_slots),
            q_norm: self.at.opt(q_norm),
            k_norm: self.at.opt(k_norm),
            k_pages: partial.k_pages,
            v_pages: partial.v_pages,
            out: partial.out,
            rows: partial.rows,
            heads: partial.heads,
            kv_heads: partial.kv_heads,
            table_stride: partial.table_stride,
            window: partial.window,
            rotary_dim: w.rotary_dim,
        }
    }

    fn attention_walk(
        &self,
        w: &RopeKvWrite,
        a: &Attention,
        (partial, walk): (AttnArgs, Walk),
    ) -> Result<Launch, DeviceError> {
        let d = a.attn.head_dim;
        let map = |id| {
            let rows = self.plan.buffer(id).bytes / (u64::from(d) * 2);
            PageMap::new(self.at.at(id), rows, d, PAGE_TOKENS)
        };
        let args = WalkArgs {
            k_map: map(a.k_pages)?.0,
            v_map: map(a.v_pages)?.0,
            of: self.one_token_rows(w, &partial),
            adjacent: u32::from(w.pairing == RopePairing::Adjacent),
            depth: walk.depth,
            scale: partial.scale,
            eps: f32::from_bits(w.eps_bits),
            pad: [0; 14],
        };
        let kernel = format!("attention_walk_{d}");
        let shape = self.shape(&kernel, (BLOCKS_MOST, 1), walk.warps * 32, walk.bytes);
        Ok(Launch::new(shape, args))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_plan::{BufferId, KvDtype};

    #[test]
    fn blocks_share_splits_while_each_has_a_multiprocessor_and_fits() {
        let attn =
            AttnShape { heads: 32, kv_heads: 8, head_dim: 128, kv_dtype: KvDtype::F16, window: 0 };
        let id = BufferId(0);
        let of = |rows, pages_per_seq_max| {
            let a = Attention {
                qkv: id,
                positions: id,
                token_seq: id,
                block_table: id,
                pages_per_seq_max,
                k_pages: id,
                v_pages: id,
                scratch: id,
                out: id,
                out_quantised: true,
                attn,
            };
            Sharing::of(rows, &a)
        };
        assert_eq!([of(1, 128).ways, of(2, 128).ways, of(96, 128).ways], [8, 8, 1]);
        assert_eq!((of(1, 128).kept, of(96, 128).kept, of(1, 8).ways), (2, 0, 1));
        for pages in [1, 8, 16, 128, 1280, 1 << 20] {
            for rows in 1..=256 {
                let s = of(rows, pages);
                assert!(
                    s.bytes <= SHARED_BYTES_MAX && s.ways.is_power_of_two() && s.ways <= WAYS_MAX
                );
            }
        }
    }

    #[test]
    fn warps_walk_where_units_are_many_and_fit() {
        for head_dim in [16, 32, 64, 128] {
            let attn =
                AttnShape { heads: 32, kv_heads: 8, head_dim, kv_dtype: KvDtype::F16, window: 0 };
            assert_eq!(Walk::of(33, &attn), None);
            for rows in 34..=512 {
                let walk = Walk::of(rows, &attn).expect("many units");
                assert!(walk.depth >= 2 && (1..=WALKERS_MAX).contains(&walk.warps));
                // What the kernel declares itself takes two more KiB.
                assert!(walk.bytes + 2048 <= SHARED_BYTES_MAX, "{walk:?}");
            }
        }
        let attn =
            AttnShape { heads: 32, kv_heads: 8, head_dim: 128, kv_dtype: KvDtype::F16, window: 0 };
        assert_eq!(Walk::of(96, &attn).map(|w| (w.warps, w.depth)), Some((6, 4)));
    }
}
