//! A proven plan for people and machines: what `lockstep plan show` prints.

use crate::{
    Access, BufferId, BufferKind, EdgeKind, Obligation, Proven, RowReach, StateKind, StepPlan,
};
use core::fmt::{self, Write as _};

/// One op, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpLine {
    /// Its name.
    pub name: String,
    /// Its kernel.
    pub kernel: &'static str,
    /// Its lane's name.
    pub lane: String,
    /// What it reads: `q`, `ids[0..64]`, `pages via slots`.
    pub reads: Vec<String>,
    /// What it writes.
    pub writes: Vec<String>,
}

/// One buffer's place in the arena.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArenaLine {
    /// Its name.
    pub name: String,
    /// `input`, `late input`, `output`, `output, not fetched` or `transient`.
    pub kind: &'static str,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// First and last op that touch it, in program order.
    pub alive: Option<(String, String)>,
}

/// Everything about a proven plan that can be shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// `decode-32`.
    pub bucket: String,
    /// Hex digest of plan and packing.
    pub digest: String,
    /// Lanes and the number of ops on each.
    pub lanes: Vec<(String, usize)>,
    /// Edges within a step.
    pub event_edges: usize,
    /// Programmatic launches.
    pub programmatic_edges: usize,
    /// Edges into the next step.
    pub next_step_edges: usize,
    /// Bytes of weights that the plan reads.
    pub weight_bytes: u64,
    /// Bytes of state.
    pub state_bytes: u64,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// What packing did.
    pub pack: crate::PackReport,
    /// What the proof looked at.
    pub proof: crate::ProofCounts,
    /// What every step's lease vouches for, in words.
    pub obligations: Vec<String>,
    /// Ops in program order.
    pub ops: Vec<OpLine>,
    /// The arena, by offset.
    pub arena: Vec<ArenaLine>,
}

impl Summary {
    /// Of a proven plan.
    pub fn of(proven: &Proven) -> Summary {
        let plan = proven.plan();
        let edges = |f: fn(&EdgeKind) -> bool| plan.edges.iter().filter(|e| f(&e.kind)).count();
        let bytes = |f: fn(&BufferKind) -> bool| {
            plan.buffers.iter().filter(|b| f(&b.kind)).map(|b| b.bytes).sum()
        };
        let on = |lane: usize| plan.ops.iter().filter(|op| op.lane.index() == lane).count();
        Summary {
            bucket: plan.bucket.to_string(),
            digest: proven.digest().to_string(),
            lanes: plan.lanes.iter().enumerate().map(|(i, l)| (l.clone(), on(i))).collect(),
            event_edges: edges(|k| *k == EdgeKind::Event),
            programmatic_edges: edges(|k| matches!(k, EdgeKind::Programmatic { .. })),
            next_step_edges: edges(|k| *k == EdgeKind::NextStep),
            weight_bytes: bytes(|k| *k == BufferKind::Weight),
            state_bytes: bytes(|k| matches!(k, BufferKind::State(_))),
            arena_bytes: proven.packing().arena_bytes(),
            pack: *proven.packing().report(),
            proof: *proven.counts(),
            obligations: proven.obligations().iter().map(|o| in_words(plan, *o)).collect(),
            ops: plan.ops.iter().map(|op| op_line(plan, op)).collect(),
            arena: arena(proven),
        }
    }

    /// As JSON, with the fields' own names.
    pub fn to_json(&self) -> String {
        let list = |l: &[String]| Json::list(l.iter().map(|s| Json::text(s)));
        let ops = self.ops.iter().map(|op| {
            Json::object([
                ("name", Json::text(&op.name)),
                ("kernel", Json::text(op.kernel)),
                ("lane", Json::text(&op.lane)),
                ("reads", list(&op.reads)),
                ("writes", list(&op.writes)),
            ])
        });
        let arena = self.arena.iter().map(|a| {
            let alive = a.alive.clone().map(|(f, l)| [f, l]);
            Json::object([
                ("name", Json::text(&a.name)),
                ("kind", Json::text(a.kind)),
                ("offset", a.offset.to_string()),
                ("bytes", a.bytes.to_string()),
                ("alive", alive.map_or("null".into(), |a| list(&a))),
            ])
        });
        let lanes = self.lanes.iter().map(|(name, ops)| {
            Json::object([("name", Json::text(name)), ("ops", ops.to_string())])
        });
        let number = |n: u64| n.to_string();
        Json::object([
            ("bucket", Json::text(&self.bucket)),
            ("digest", Json::text(&self.digest)),
            ("lanes", Json::list(lanes)),
            ("event_edges", number(self.event_edges as u64)),
            ("programmatic_edges", number(self.programmatic_edges as u64)),
            ("next_step_edges", number(self.next_step_edges as u64)),
            ("weight_bytes", number(self.weight_bytes)),
            ("state_bytes", number(self.state_bytes)),
            ("arena_bytes", number(self.arena_bytes)),
            ("input_bytes", number(self.pack.input_bytes)),
            ("output_bytes", number(self.pack.output_bytes)),
            ("transient_bytes", number(self.pack.transient_bytes)),
            ("no_reuse_bytes", number(self.pack.no_reuse_bytes)),
            ("saved_bytes", number(self.pack.saved_bytes())),
            ("single_lane_bytes", number(self.pack.single_lane_bytes)),
            ("overlap_bytes", number(self.pack.overlap_bytes())),
            ("live_bytes", number(self.pack.live_bytes)),
            ("pairs_compared", number(self.proof.pairs)),
            ("obligations", list(&self.obligations)),
            ("ops", Json::list(ops)),
            ("arena", Json::list(arena)),
        ])
    }
}

struct Json;

impl Json {
    fn text(s: &str) -> String {
        let mut out = String::from('"');
        for c in s.chars() {
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                c if c < ' ' => {
                    let _ = write!(out, "\\u{:04x}", c as u32);
                }
                c => out.push(c),
            }
        }
        out.push('"');
        out
    }

    fn list(items: impl Iterator<Item = String>) -> String {
        format!("[{}]", items.collect::<Vec<_>>().join(","))
    }

    fn object<const N: usize>(fields: [(&str, String); N]) -> String {
        let fields = fields.map(|(name, value)| format!("{}:{value}", Json::text(name)));
        format!("{{{}}}", fields.join(","))
    }
}

fn in_words(plan: &StepPlan, o: Obligation) -> String {
    let n = |id: BufferId| plan.buffer(id).name.as_str();
    match o {
        Obligation::WritesExclusive { state, table } => {
            format!("rows write {} through {} at places of their own", n(state), n(table))
        }
        Obligation::PaddedReserved { state, table } => {
            format!("padded rows of {} name the reserved block of {}", n(table), n(state))
        }
        Obligation::InRange { state, table } => {
            format!("every entry of {} lies inside {}", n(table), n(state))
        }
        Obligation::HeldUntilComplete { state, table } => {
            format!("blocks of {} named by {} stay until the step is done", n(state), n(table))
        }
        Obligation::LiveRowsOnly { table } => {
            format!("live entries of {} name live rows", n(table))
        }
    }
}

fn op_line(plan: &StepPlan, op: &crate::Op) -> OpLine {
    let list = |l: &[Access]| l.iter().map(|a| access(plan, a)).collect();
    OpLine {
        name: op.name.clone(),
        kernel: op.kind.kernel(),
        lane: plan.lanes[op.lane.index()].clone(),
        reads: list(&op.reads),
        writes: list(&op.writes),
    }
}

fn access(plan: &StepPlan, a: &Access) -> String {
    let b = plan.buffer(a.buffer());
    match a {
        Access::Static { span, rows } => {
            let whole = span.offset == 0 && span.len == b.bytes;
            let part =
                if whole { String::new() } else { format!("[{}..{}]", span.offset, span.end()) };
            match rows.map(|r| r.reach) {
                Some(RowReach::Gather { via }) => {
                    format!("{}{part} rows of {}", b.name, plan.buffer(via).name)
                }
                _ => format!("{}{part}", b.name),
            }
        }
        Access::Indexed { via, .. } => format!("{} via {}", b.name, plan.buffer(*via).name),
    }
}

fn arena(proven: &Proven) -> Vec<ArenaLine> {
    let plan = proven.plan();
    let mut alive: Vec<Option<(usize, usize)>> = vec![None; plan.buffers.len()];
    for (i, op) in plan.ops.iter().enumerate() {
        for a in op.reads.iter().chain(&op.writes) {
            let at = &mut alive[a.buffer().index()];
            *at = Some((at.map_or(i, |(first, _)| first), i));
        }
    }
    let name = |i: usize| plan.ops[i].name.clone();
    let mut lines: Vec<ArenaLine> = plan
        .buffer_ids()
        .filter_map(|id| {
            let b = plan.buffer(id);
            let kind = match b.kind {
                BufferKind::Input { late: true, .. } => "late input",
                BufferKind::Input { .. } => "input",
                BufferKind::Output { fetched: true } => "output",
                BufferKind::Output { fetched: false } => "output, not fetched",
                _ => "transient",
            };
            let alive = alive[id.index()].map(|(f, l)| (name(f), name(l)));
            let offset = proven.packing().offset(id)?;
            Some(ArenaLine { name: b.name.clone(), kind, offset, bytes: b.bytes, alive })
        })
        .collect();
    lines.sort_by_key(|l| l.offset);
    lines
}

/// Bytes as a person reads them.
#[derive(Clone, Copy)]
pub(crate) struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["B", "KiB", "MiB", "GiB", "TiB"];
        let (mut n, mut unit) = (self.0 as f64, 0);
        while n >= 1024.0 && unit + 1 < units.len() {
            n /= 1024.0;
            unit += 1;
        }
        let digits = if unit == 0 || n >= 100.0 { 0 } else { 1 };
        f.pad(&format!("{n:.digits$} {}", units[unit]))
    }
}

/// A proven plan as text: shape, lanes, proof, ops, arena map, what sharing saves and overlap
/// costs.
pub fn render_text(proven: &Proven) -> String {
    let s = Summary::of(proven);
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_text(&mut out, proven.plan(), &s);
    out
}

fn write_text(out: &mut String, plan: &StepPlan, s: &Summary) -> fmt::Result {
    let lanes: Vec<String> = s.lanes.iter().map(|(l, n)| format!("{l} {n}")).collect();
    writeln!(out, "plan {}  {}", s.bucket, &s.digest[..16])?;
    writeln!(out, "  {} ops, by lane: {}", s.ops.len(), lanes.join(", "))?;
    writeln!(
        out,
        "  {} events, {} programmatic launches, {} waits from step to step",
        s.event_edges, s.programmatic_edges, s.next_step_edges
    )?;
    writeln!(
        out,
        "  proven: {} pairs compared, {} clocks joined over two steps",
        s.proof.pairs, s.proof.clock_joins
    )?;
    writeln!(out, "\nops (program order)")?;
    let wide = |f: fn(&OpLine) -> usize| s.ops.iter().map(f).max().unwrap_or(0);
    let (name, kernel, lane) =
        (wide(|o| o.name.len()), wide(|o| o.kernel.len()), wide(|o| o.lane.len()));
    for (i, op) in s.ops.iter().enumerate() {
        writeln!(
            out,
            "{i:5}  {:lane$}  {:name$}  {:kernel$}  {} -> {}",
            op.lane,
            op.name,
            op.kernel,
            op.reads.join(", "),
            op.writes.join(", ")
        )?;
    }
    let p = &s.pack;
    let share = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
    writeln!(out, "\nmemory")?;
    let rows = [
        ("arena", s.arena_bytes, String::new()),
        ("inputs", p.input_bytes, String::new()),
        ("outputs", p.output_bytes, String::new()),
        ("transients", p.transient_bytes, format!("at least {}", Bytes(p.live_bytes))),
        (
            "without reuse",
            p.no_reuse_bytes,
            format!(
                "reuse saves {}, {:.1}%",
                Bytes(p.saved_bytes()),
                share(p.saved_bytes(), p.no_reuse_bytes)
            ),
        ),
        (
            "on one lane",
            p.single_lane_bytes,
            format!(
                "overlap costs {}, {:.1}%",
                Bytes(p.overlap_bytes()),
                share(p.overlap_bytes(), p.single_lane_bytes)
            ),
        ),
        ("weights", s.weight_bytes, "outside the arena".into()),
        ("state", s.state_bytes, state_words(plan)),
    ];
    for (what, bytes, note) in rows {
        let line = format!("  {what:14} {:>10}  {note}", Bytes(bytes));
        writeln!(out, "{}", line.trim_end())?;
    }
    writeln!(out, "\narena map")?;
    let name = s.arena.iter().map(|a| a.name.len()).max().unwrap_or(0);
    for a in &s.arena {
        let alive = a.alive.as_ref().map_or_else(
            || "never used".into(),
            |(first, last)| {
                if first == last { first.clone() } else { format!("{first} .. {last}") }
            },
        );
        let (lo, hi) = (a.offset, a.offset + a.bytes);
        writeln!(out, "  {lo:>11} {hi:>11}  {:10}  {:name$}  {alive}", a.kind, a.name)?;
    }
    writeln!(out, "\nevery step's lease vouches that")?;
    for o in &s.obligations {
        writeln!(out, "  {o}")?;
    }
    Ok(())
}

fn state_words(plan: &StepPlan) -> String {
    let count = |pages: bool| {
        let of_kind = |k: &BufferKind| match k {
            BufferKind::State(StateKind::Pages { .. }) => pages,
            BufferKind::State(StateKind::Slots { .. }) => !pages,
            _ => false,
        };
        plan.buffers.iter().filter(|b| of_kind(&b.kind)).count()
    };
    format!("{} buffers of pages, {} of slots", count(true), count(false))
}
