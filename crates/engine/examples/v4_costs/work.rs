//! Bytes and multiply-adds that an op of a step cannot do without.
//!
//! Weights are counted once an op (of experts, those that are chosen at most), rows once a read or
//! write, paged rows as often as they are attended to. A row that is written to a page counts
//! twice: nothing has its lines near, so they are fetched before they are written. An embedding is
//! packed like any matrix, sixteen tokens side by side, so that a token's row takes half a line for
//! each of its values.
//!
//! Beside multiply-adds stand divisions, which have a mark of their own, and other operations on
//! floats, which run at the multiply-adds' pace: [`EXP`] an exponential, [`LN`] a logarithm, two to
//! unpack a weight of two bytes for each [`ROWS`] rows (the tile kernels' registers), and for a
//! choice of rows [`COUNT`] a score and bit of its key.

use lockstep_plan::v4::V4Op;
use lockstep_plan::{Axis, BufferKind, OpId, OpKind, StepPlan};

/// What an op does.
#[derive(Clone, Copy, Default)]
pub struct Work {
    pub bytes: f64,
    pub macs: f64,
    /// Operations on floats that are neither multiply-adds nor divisions.
    pub others: f64,
    pub divs: f64,
}

/// Operations of an exponential: `cpu::math::exp_lanes`.
const EXP: f64 = 15.0;
/// Operations of a logarithm in f64, of which a vector holds half as many: `cpu::math::ln_lanes`.
const LN: f64 = 2.0 * (4.0 * 13.0 + 10.0);
/// Rows that share an unpacked weight.
const ROWS: f64 = 8.0;
/// Operations to make a score's key and compare it.
const COUNT: f64 = 6.0;

/// Live rows of a step.
pub struct Step {
    pub positions: Vec<u32>,
    pub seqs: u32,
    pub logit_rows: u32,
}

impl Step {
    fn rows(&self, axis: Axis) -> f64 {
        match axis {
            Axis::T => self.positions.len() as f64,
            Axis::S => f64::from(self.seqs),
            Axis::R => f64::from(self.logit_rows),
        }
    }

    /// The sum over token rows of a function of the position.
    fn each(&self, of: impl Fn(f64) -> f64) -> f64 {
        self.positions.iter().map(|p| of(f64::from(*p) + 1.0)).sum()
    }
}

/// The op's kind, as the table calls it; of products, which.
pub fn name(plan: &StepPlan, op: OpId) -> String {
    let op = plan.op(op);
    let which = op.name.rsplit('.').next().unwrap_or_default();
    match op.kind {
        OpKind::Gemm(_) => format!("gemm {which}"),
        _ => op.kind.kernel().into(),
    }
}

/// The work of an op.
pub fn work(plan: &StepPlan, op: OpId, step: &Step) -> Work {
    let kind = &plan.op(op).kind;
    let experts = match kind {
        OpKind::V4(V4Op::ExpertUp(e)) => Some((e.per_token, e.experts)),
        OpKind::V4(V4Op::ExpertDown(e)) => Some((e.per_token, e.experts)),
        _ => None,
    };
    let share = experts.map_or(1.0, |(per_token, experts)| {
        (step.rows(Axis::T) * f64::from(per_token)).min(f64::from(experts)) / f64::from(experts)
    });
    let o = plan.op(op);
    let mut bytes = 0.0;
    for access in o.reads.iter().chain(&o.writes) {
        let b = plan.buffer(access.buffer());
        bytes += match (b.kind, b.rows) {
            // Of a table of rotations, a row each; of an embedding too.
            (BufferKind::Weight, _) if matches!(kind, OpKind::Embed(_)) => 0.0,
            (BufferKind::Weight, _) if b.name.ends_with("rope") => 0.0,
            (BufferKind::Weight, _) => b.bytes as f64 * share,
            (_, Some((axis, row_bytes))) => step.rows(axis) * row_bytes as f64,
            _ => 0.0,
        };
    }
    if let OpKind::Embed(e) = kind {
        bytes += 32.0 * step.rows(e.axis) * f64::from(e.dim);
    }
    let (paged, macs) = inner(kind, step);
    let (others, divs) = beside(kind, step, macs);
    Work { bytes: bytes + paged, macs, others, divs }
}

/// Other operations, and divisions, beside so many multiply-adds.
fn beside(kind: &OpKind, step: &Step, macs: f64) -> (f64, f64) {
    let t = step.rows(Axis::T);
    // Of each weight, which so many rows are multiplied with; for many of them it is kept unpacked.
    let unpacking = |rows: f64| {
        let rows = rows.max(1.0);
        2.0 * macs / rows * (rows / ROWS).ceil().min(2.0)
    };
    let of_expert = |per_token: u32, experts: u32| t * f64::from(per_token) / f64::from(experts);
    match kind {
        OpKind::Gemm(g) => (unpacking(step.rows(g.axis)), 0.0),
        OpKind::V4(op) => match op {
            V4Op::GroupedGemm(_) => (unpacking(t), 0.0),
            V4Op::ExpertUp(e) => (unpacking(of_expert(e.per_token, e.experts)), 0.0),
            V4Op::ExpertDown(e) => (unpacking(of_expert(e.per_token, e.experts)), 0.0),
            V4Op::HyperIn(h) => {
                let entries = f64::from(h.streams * h.streams);
                let rounds = if h.mix.is_some() { 2.0 * f64::from(h.sinkhorn_iters) } else { 0.0 };
                let rows = step.rows(h.axis);
                (rows * EXP * entries, rows * rounds * entries)
            }
            V4Op::CompressRows(_) => (macs * EXP, 0.0),
            V4Op::IndexTopK(i) => {
                let of = |n: f64| (n / f64::from(i.ratio)).floor();
                let scored =
                    step.each(|n| Some(of(n)).filter(|c| *c > f64::from(i.topk)).unwrap_or(0.0));
                (32.0 * COUNT * scored, 0.0)
            }
            V4Op::SinkAttention(a) => (macs / (2.0 * f64::from(a.dim)) * EXP, 0.0),
            V4Op::Route(r) => (t * f64::from(r.experts) * (EXP + LN), t * f64::from(r.experts)),
            _ => (0.0, 0.0),
        },
        _ => (0.0, 0.0),
    }
}

/// Bytes of paged rows, and multiply-adds.
fn inner(kind: &OpKind, step: &Step) -> (f64, f64) {
    let t = step.rows(Axis::T);
    let product = |n: u32, k: u32| f64::from(n) * f64::from(k);
    match kind {
        OpKind::Gemm(g) => {
            let n: u32 = g.parts.iter().map(|p| p.n).sum();
            (0.0, step.rows(g.axis) * product(n, g.k))
        }
        OpKind::V4(op) => match op {
            V4Op::GroupedGemm(g) => (0.0, t * f64::from(g.groups) * product(g.n, g.k)),
            V4Op::ExpertUp(e) => (0.0, 2.0 * t * f64::from(e.per_token) * product(e.n, e.k)),
            V4Op::ExpertDown(e) => (0.0, t * f64::from(e.per_token) * product(e.n, e.k)),
            V4Op::HyperIn(h) => {
                let (n, width) = (h.streams, h.streams * h.dim);
                let outputs = if h.mix.is_some() { 2 * n + n * n } else { n };
                (0.0, step.rows(h.axis) * product(outputs, width))
            }
            V4Op::HyperOut(h) => (0.0, t * product(h.streams * h.streams, h.dim)),
            V4Op::WindowStore(w) => (t * 8.0 * f64::from(w.dim), 0.0),
            V4Op::StateStore(s) => (t * 8.0 * f64::from(s.cols), 0.0),
            V4Op::CompressRows(c) => {
                let overlap = if c.overlap { 2.0 } else { 1.0 };
                let closing = |n: f64| f64::from(n % f64::from(c.ratio) == 0.0);
                let floats = f64::from(c.ratio) * overlap * f64::from(c.dim);
                let rows = step.each(closing);
                (rows * 8.0 * floats, rows * floats)
            }
            V4Op::IndexScores(s) => {
                let closed = |n: f64| (n / f64::from(s.ratio)).floor();
                let scored = step
                    .each(|n| Some(closed(n)).filter(|c| *c > f64::from(s.topk)).unwrap_or(0.0));
                (4.0 * scored * f64::from(s.dim), scored * product(s.heads, s.dim))
            }
            V4Op::SinkAttention(a) => {
                let seen = step.each(|n| {
                    let window = n.min(f64::from(a.window));
                    let rows = a.compressed.as_ref().map_or(0.0, |c| {
                        let closed = (n / f64::from(c.ratio)).floor();
                        c.selection.map_or(closed, |(_, k)| closed.min(f64::from(k)))
                    });
                    window + rows
                });
                (4.0 * seen * f64::from(a.dim), 2.0 * seen * product(a.heads, a.dim))
            }
            _ => (0.0, 0.0),
        },
        _ => (0.0, 0.0),
    }
}
