//! Where everything goes.

use crate::{BufferId, EdgeKind, OpId, Packing, StepPlan};

const GUTTER: f64 = 110.0;
const TOP: f64 = 76.0;
const ARENA_HEIGHT: f64 = 300.0;
/// The same where a plan is broken into bands.
const ARENA_HEIGHT_OF_BANDS: f64 = 150.0;
/// How wide the columns of a band are together, at most: what fits a screen.
const BAND_WIDTH_MAX: f64 = 1560.0;
/// What a lane takes on which nothing runs.
const EMPTY_LANE_HEIGHT: f64 = 20.0;
/// What edges and marks take above their lane.
const ABOVE: f64 = 10.0;
/// Wider plans get narrow columns with upright labels.
const WIDE_COLUMNS_MAX: usize = 18;

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Rect {
    pub x: f64,
    pub y: f64,
    pub w: f64,
    pub h: f64,
}

impl Rect {
    pub(super) fn grown(self, by: f64) -> Rect {
        Rect { x: self.x - by, y: self.y - by, w: self.w + 2.0 * by, h: self.h + 2.0 * by }
    }
}

pub(super) struct Layout {
    pub width: f64,
    pub height: f64,
    /// Bands that the columns are broken into, one below the other: what lies in each of the whole.
    /// Backgrounds are those of the first.
    pub bands: Vec<Rect>,
    pub arena: Rect,
    pub hazards_y: f64,
    pub upright: bool,
    pub label_chars: usize,
    pub line_chars: usize,
    ops: Vec<Option<Rect>>,
    lanes: Vec<Rect>,
    buffers: Vec<Option<Rect>>,
    arena_bytes: u64,
}

impl Layout {
    pub(super) fn new(plan: &StepPlan, packing: &Packing, hazards: usize) -> Layout {
        let columns = columns(plan);
        let count = columns.iter().max().map_or(1, |c| c + 1);
        let upright = count > WIDE_COLUMNS_MAX;
        let (column, op_w, op_h, lane_h) =
            if upright { (30.0, 20.0, 112.0, 128.0) } else { (112.0, 98.0, 26.0, 46.0) };
        let bands = count.div_ceil((BAND_WIDTH_MAX / column) as usize);
        let body = count.div_ceil(bands) as f64 * column;
        let width = (GUTTER + body + 24.0).max(760.0);
        let mut lanes: Vec<Rect> = Vec::with_capacity(plan.lanes.len());
        for i in 0..plan.lanes.len() {
            let y = lanes.last().map_or(TOP, |l| l.y + l.h);
            let is_empty = plan.ops.iter().all(|op| op.lane.index() != i);
            let h = if is_empty { EMPTY_LANE_HEIGHT } else { lane_h };
            lanes.push(Rect { x: 8.0, y, w: width - 16.0, h });
        }
        let op_rect = |(i, op): (usize, &crate::Op)| {
            let lane = lanes.get(op.lane.index())?;
            let x = GUTTER + columns[i] as f64 * column + (column - op_w) / 2.0;
            Some(Rect { x, y: lane.y + (lane_h - op_h) / 2.0, w: op_w, h: op_h })
        };
        let ops: Vec<Option<Rect>> = plan.ops.iter().enumerate().map(op_rect).collect();
        let arena_top = lanes.last().map_or(TOP, |l| l.y + l.h) + 34.0;
        let arena_h = if bands == 1 { ARENA_HEIGHT } else { ARENA_HEIGHT_OF_BANDS };
        let arena = Rect { x: GUTTER, y: arena_top, w: body, h: arena_h };
        let band_h = arena_top + arena_h - TOP + ABOVE;
        let band =
            |i: usize| Rect { x: GUTTER + i as f64 * body, y: TOP - ABOVE, w: body, h: band_h };
        let bands: Vec<Rect> = (0..bands).map(band).collect();
        let more = (bands.len() - 1) as f64 * band_step(band_h);
        let hazards_y = arena_top + arena_h + 36.0 + more;
        let line_chars = ((width - 60.0) / 6.6) as usize;
        let height = hazards_y + if hazards == 0 { -12.0 } else { 12.0 + hazards as f64 * 51.0 };
        let mut layout = Layout {
            width,
            height,
            bands,
            arena,
            hazards_y,
            upright,
            label_chars: if upright { 20 } else { 14 },
            line_chars,
            ops,
            lanes,
            buffers: Vec::new(),
            arena_bytes: packing.arena_bytes().max(1),
        };
        layout.buffers = layout.lives(plan, packing, &columns, column);
        layout
    }

    /// A buffer's bytes, from the column of its first use to that of its last.
    fn lives(
        &self,
        plan: &StepPlan,
        packing: &Packing,
        columns: &[usize],
        column: f64,
    ) -> Vec<Option<Rect>> {
        let mut used: Vec<Option<(usize, usize)>> = vec![None; plan.buffers.len()];
        for (op, at) in plan.ops.iter().zip(columns) {
            for a in op.reads.iter().chain(&op.writes) {
                if let Some(u) = used.get_mut(a.buffer().index()) {
                    *u = Some(u.map_or((*at, *at), |(lo, hi)| (lo.min(*at), hi.max(*at))));
                }
            }
        }
        plan.buffer_ids()
            .map(|id| {
                let lo = packing.offset(id)?;
                let (first, last) = used[id.index()]?;
                let (y, end) =
                    (self.arena_y(lo), self.arena_y(lo.saturating_add(plan.buffer(id).bytes)));
                let x = GUTTER + first as f64 * column + 1.0;
                let w = (last - first + 1) as f64 * column - 2.0;
                (end > y).then_some(Rect { x, y, w, h: end - y })
            })
            .collect()
    }

    pub(super) fn op(&self, id: OpId) -> Option<Rect> {
        self.ops.get(id.index()).copied().flatten()
    }

    pub(super) fn lane(&self, i: usize) -> Rect {
        self.lanes[i]
    }

    pub(super) fn buffer(&self, id: BufferId) -> Option<Rect> {
        self.buffers[id.index()]
    }

    pub(super) fn arena_y(&self, bytes: u64) -> f64 {
        let share = bytes.min(self.arena_bytes) as f64 / self.arena_bytes as f64;
        self.arena.y + share * self.arena.h
    }
}

/// From a band to the next one below it.
pub(super) fn band_step(height: f64) -> f64 {
    height + 24.0
}

/// The longest chain of waits before each op. Edges against program order do not count.
fn columns(plan: &StepPlan) -> Vec<usize> {
    let n = plan.ops.len();
    let mut incoming: Vec<Vec<usize>> = vec![Vec::new(); n];
    for e in plan.edges.iter().filter(|e| e.kind != EdgeKind::NextStep) {
        if e.from < e.to && e.to.index() < n {
            incoming[e.to.index()].push(e.from.index());
        }
    }
    let mut last = vec![None; plan.lanes.len()];
    let mut columns: Vec<usize> = Vec::with_capacity(n);
    for (i, op) in plan.ops.iter().enumerate() {
        let before = last.get_mut(op.lane.index()).and_then(|l: &mut Option<usize>| l.replace(i));
        let all = incoming[i].iter().copied().chain(before);
        columns.push(all.map(|u| columns[u] + 1).max().unwrap_or(0));
    }
    columns
}

/// From the right side of one op to the left side of another; between ops of one lane in an arc.
pub(super) fn curve(a: Rect, b: Rect) -> String {
    let (x1, x2) = (a.x + a.w, b.x);
    let (y1, y2) = (a.y + a.h / 2.0, b.y + b.h / 2.0);
    if (y1 - y2).abs() < 1.0 {
        let top = a.y - 12.0;
        let (m1, m2) = (a.x + a.w / 2.0, b.x + b.w / 2.0);
        return format!("M{m1:.1},{:.1}C{m1:.1},{top:.1} {m2:.1},{top:.1} {m2:.1},{:.1}", a.y, b.y);
    }
    // Straight down and up for neighbours in one column.
    let bend = ((x2 - x1).abs() * 0.5).clamp(10.0, 60.0);
    format!("M{x1:.1},{y1:.1}C{:.1},{y1:.1} {:.1},{y2:.1} {x2:.1},{y2:.1}", x1 + bend, x2 - bend)
}
