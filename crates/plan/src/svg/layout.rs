//! Where everything goes.

use crate::{BufferId, EdgeKind, OpId, Packing, StepPlan};

pub(super) const GUTTER: f64 = 110.0;
const TOP: f64 = 76.0;
const ARENA_HEIGHT: f64 = 300.0;
/// The same where a plan is broken into bands.
const ARENA_HEIGHT_OF_BANDS: f64 = 150.0;
/// How wide the columns of a band are together, at most: what fits a screen.
const BAND_WIDTH_MAX: f64 = 1560.0;
/// What a lane takes on which nothing runs.
const EMPTY_LANE_HEIGHT: f64 = 20.0;
/// From the end of a band to the lanes of the next.
const BETWEEN_BANDS: f64 = 44.0;
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
    /// Bands that the columns are broken into, one below the other.
    pub bands: Vec<Band>,
    pub hazards_y: f64,
    pub upright: bool,
    pub label_chars: usize,
    pub line_chars: usize,
    /// Columns, an op's width and its height.
    column: f64,
    op_size: (f64, f64),
    /// Each op's column and lane.
    places: Vec<(usize, usize)>,
    /// The columns in which each buffer of the arena lives, and where its bytes lie.
    lives: Vec<Option<(usize, usize, core::ops::Range<u64>)>>,
    arena_bytes: u64,
}

/// A part of the columns, as high as what runs in them needs: lanes and the arena below. Across, places
/// are those of the whole; down, those of the page.
pub(super) struct Band {
    pub columns: core::ops::Range<usize>,
    pub lanes: Vec<Rect>,
    pub arena: Rect,
}

impl Band {
    /// What of the whole it shows.
    pub(super) fn view(&self) -> Rect {
        let y = self.lanes.first().map_or(self.arena.y, |l| l.y) - ABOVE;
        Rect { y, h: self.arena.y + self.arena.h - y + ABOVE, ..self.arena }
    }
}

impl Layout {
    pub(super) fn new(plan: &StepPlan, packing: &Packing, hazards: usize) -> Layout {
        let columns = columns(plan);
        let count = columns.iter().max().map_or(1, |c| c + 1);
        let upright = count > WIDE_COLUMNS_MAX;
        let (column, op_w, op_h, lane_h) =
            if upright { (30.0, 20.0, 112.0, 128.0) } else { (112.0, 98.0, 26.0, 46.0) };
        let bands = count.div_ceil((BAND_WIDTH_MAX / column) as usize);
        let each = count.div_ceil(bands);
        let body = each as f64 * column;
        let width = (GUTTER + body + 24.0).max(760.0);
        let places: Vec<(usize, usize)> =
            plan.ops.iter().zip(&columns).map(|(op, at)| (*at, op.lane.index())).collect();
        let arena_h = if bands == 1 { ARENA_HEIGHT } else { ARENA_HEIGHT_OF_BANDS };
        let mut all: Vec<Band> = Vec::with_capacity(bands);
        for i in 0..bands {
            let columns = i * each..(i + 1) * each;
            let top = all.last().map_or(TOP, |b| b.arena.y + b.arena.h + BETWEEN_BANDS);
            let mut lanes: Vec<Rect> = Vec::with_capacity(plan.lanes.len());
            for lane in 0..plan.lanes.len() {
                let y = lanes.last().map_or(top, |l| l.y + l.h);
                let is_used = places.iter().any(|(at, l)| *l == lane && columns.contains(at));
                let h = if is_used { lane_h } else { EMPTY_LANE_HEIGHT };
                lanes.push(Rect { x: 8.0, y, w: width - 16.0, h });
            }
            let y = lanes.last().map_or(top, |l| l.y + l.h) + 34.0;
            let x = GUTTER + columns.start as f64 * column;
            all.push(Band { columns, lanes, arena: Rect { x, y, w: body, h: arena_h } });
        }
        let hazards_y = all.last().map_or(TOP, |b| b.arena.y + b.arena.h) + 36.0;
        let line_chars = ((width - 60.0) / 6.6) as usize;
        let height = hazards_y + if hazards == 0 { -12.0 } else { 12.0 + hazards as f64 * 51.0 };
        let lives = lives(plan, packing, &columns);
        Layout {
            width,
            height,
            bands: all,
            hazards_y,
            upright,
            label_chars: if upright { 20 } else { 14 },
            line_chars,
            column,
            op_size: (op_w, op_h),
            places,
            lives,
            arena_bytes: packing.arena_bytes().max(1),
        }
    }

    /// An op as it lies in a band, or beside it where it is of another.
    pub(super) fn op(&self, id: OpId, band: &Band) -> Option<Rect> {
        let (at, lane) = *self.places.get(id.index())?;
        let lane = band.lanes.get(lane)?;
        let (w, h) = self.op_size;
        let x = GUTTER + at as f64 * self.column + (self.column - w) / 2.0;
        Some(Rect { x, y: lane.y + (lane.h - h) / 2.0, w, h })
    }

    /// The same, where it is of this band.
    pub(super) fn own(&self, id: OpId, band: &Band) -> Option<Rect> {
        let (at, _) = self.places.get(id.index())?;
        band.columns.contains(at).then(|| self.op(id, band)).flatten()
    }

    /// Whether what reaches from one op to another shows in a band.
    pub(super) fn crosses(&self, a: OpId, b: OpId, band: &Band) -> bool {
        let at = |id: OpId| self.places.get(id.index()).map(|(at, _)| *at);
        let (Some(a), Some(b)) = (at(a), at(b)) else { return false };
        a.min(b) < band.columns.end && a.max(b) >= band.columns.start
    }

    /// A buffer's bytes, from the column of its first use to that of its last, where that shows in a
    /// band.
    pub(super) fn buffer(&self, id: BufferId, band: &Band) -> Option<Rect> {
        let (first, last, bytes) = self.lives.get(id.index())?.clone()?;
        if first >= band.columns.end || last < band.columns.start {
            return None;
        }
        let (y, end) = (self.arena_y(bytes.start, band), self.arena_y(bytes.end, band));
        let x = GUTTER + first as f64 * self.column + 1.0;
        let w = (last - first + 1) as f64 * self.column - 2.0;
        (end > y).then_some(Rect { x, y, w, h: end - y })
    }

    pub(super) fn arena_y(&self, bytes: u64, band: &Band) -> f64 {
        let share = bytes.min(self.arena_bytes) as f64 / self.arena_bytes as f64;
        band.arena.y + share * band.arena.h
    }
}

/// Where each buffer's bytes lie in the arena, and the columns of its first use and its last.
fn lives(
    plan: &StepPlan,
    packing: &Packing,
    columns: &[usize],
) -> Vec<Option<(usize, usize, core::ops::Range<u64>)>> {
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
            Some((first, last, lo..lo.saturating_add(plan.buffer(id).bytes)))
        })
        .collect()
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
