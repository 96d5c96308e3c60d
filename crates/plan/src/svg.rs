//! A plan as a picture: lanes, ops and edges above, the arena over the same columns below,
//! hazards in red. A column is a place in the longest chain of waits, so what stands in one
//! column may run at once. Where there are more columns than a screen holds, they go on in a band below.

mod layout;

use crate::hazard::{Fault, Hazard, Touch};
use crate::summary::Bytes;
use crate::{BufferKind, EdgeKind, OpId, Packing, StepPlan};
use core::fmt::Write as _;
use layout::{Band, Layout, Rect};
use std::collections::HashMap;

const STYLE: &str = "text{font:11px 'DejaVu Sans',Verdana,sans-serif;fill:#1f2933}\
.title{font-size:16px;font-weight:bold}.sub{fill:#52606d}\
.lane{fill:#f5f7fa}.lane.odd{fill:#e9eef3}.name{font-weight:bold}\
.op{fill:#fff;stroke:#3e4c59;stroke-width:1}.op.host{fill:#fff7e0}\
.edge{fill:none;stroke:#7b8794;stroke-width:1.2;opacity:.75}.edge.pdl{stroke-dasharray:4 3}\
.next{fill:#627d98}.bad{fill:none;stroke:#d64545;stroke-width:2.4}\
.missing{fill:none;stroke:#d64545;stroke-width:2.2;stroke-dasharray:7 4}\
.clash{fill:#d64545;fill-opacity:.45;stroke:#ba2525}\
.mark{fill:#d64545}.marktext{fill:#fff;font-weight:bold;font-size:10px}\
.hazard{fill:#ba2525}.grid{stroke:#cbd2d9;stroke-width:1}\
.buf{stroke:#fff;stroke-width:.8}.small{font-size:9px}";

/// Hazards that get a number in the picture; more are counted.
const HAZARDS_SHOWN_MAX: usize = 12;

/// Draws the plan. Any plan can be drawn, also one that makes no sense: what does not exist is
/// left out.
pub fn svg(plan: &StepPlan, packing: &Packing, hazards: &[Hazard]) -> String {
    let layout = Layout::new(plan, packing, hazards.len().min(HAZARDS_SHOWN_MAX + 1));
    let mut p = Picture { plan, packing, layout, out: String::new() };
    p.head();
    let bands = core::mem::take(&mut p.layout.bands);
    for band in &bands {
        p.lanes(band);
        p.grid(band);
        p.begin(band);
        p.edges(band);
        p.ops(band);
        p.arena(band);
        p.marks(band, hazards);
        p.out.push_str("</svg>\n");
    }
    p.hazards(hazards);
    p.out.push_str("</svg>\n");
    p.out
}

struct Picture<'a> {
    plan: &'a StepPlan,
    packing: &'a Packing,
    layout: Layout,
    out: String,
}

fn escape(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // Not allowed in XML, whatever a name holds.
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// As much of `s` as `chars` show.
fn short(s: &str, chars: usize) -> String {
    if s.chars().count() <= chars {
        return s.into();
    }
    let keep: String = s.chars().take(chars.saturating_sub(1)).collect();
    format!("{keep}\u{2026}")
}

/// As much of a name as `chars` show: its end, which tells it from the names beside it. What stands
/// before that is a layer's number, the same for a whole stretch of the picture.
fn end(name: &str, chars: usize) -> String {
    let count = name.chars().count();
    if count <= chars {
        return name.into();
    }
    let keep: String = name.chars().skip(count + 1 - chars.max(1)).collect();
    format!("\u{2026}{keep}")
}

impl Picture<'_> {
    /// Appends one element. Writing to a string cannot fail.
    fn put(&mut self, args: core::fmt::Arguments<'_>) {
        let _ = self.out.write_fmt(args);
        self.out.push('\n');
    }

    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let text = escape(text);
        self.put(format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{text}</text>"));
    }

    fn rect(&mut self, r: Rect, class: &str, more: &str, title: &str) {
        let Rect { x, y, w, h } = r;
        let title = escape(title);
        self.put(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" \
             class=\"{class}\"{more}><title>{title}</title></rect>"
        ));
    }

    fn head(&mut self) {
        let (w, h) = (self.layout.width, self.layout.height);
        self.put(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w:.0}\" height=\"{h:.0}\" \
             viewBox=\"0 0 {w:.0} {h:.0}\"><style>{STYLE}</style>\
             <defs><marker id=\"arrow\" markerWidth=\"7\" markerHeight=\"7\" refX=\"6\" refY=\"3\" \
             orient=\"auto\"><path d=\"M0,0L6,3L0,6z\" fill=\"#7b8794\"/></marker>\
             <marker id=\"redarrow\" markerWidth=\"6\" markerHeight=\"6\" refX=\"5\" refY=\"3\" \
             orient=\"auto\"><path d=\"M0,0L6,3L0,6z\" fill=\"#d64545\"/></marker></defs>\
             <rect width=\"{w:.0}\" height=\"{h:.0}\" fill=\"#fff\"/>"
        ));
        let plan = self.plan;
        let r = self.packing.report();
        self.text(16.0, 26.0, "title", &format!("step plan {}", plan.bucket));
        let mut sub = format!(
            "{} ops on {} lanes, {} edges; arena {}",
            plan.ops.len(),
            plan.lanes.len(),
            plan.edges.len(),
            Bytes(self.packing.arena_bytes())
        );
        if r.no_reuse_bytes > 0 {
            let _ = write!(
                sub,
                "; transients {}, without reuse {}, on one lane {}",
                Bytes(r.transient_bytes),
                Bytes(r.no_reuse_bytes),
                Bytes(r.single_lane_bytes)
            );
        }
        self.text(16.0, 44.0, "sub", &sub);
        let keys = "arrows: events (dashed: programmatic launch) \u{b7} dots: waits for the step before \
                    \u{b7} red: hazards";
        self.text(16.0, 60.0, "sub small", keys);
    }

    /// Begins what a band shows of the columns: nothing of the others reaches beyond it.
    fn begin(&mut self, band: &Band) {
        let first = layout::GUTTER;
        let Rect { x, y, w, h } = band.view();
        self.put(format_args!(
            "<svg x=\"{first:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" \
             viewBox=\"{x:.1} {y:.1} {w:.1} {h:.1}\">"
        ));
    }

    fn lanes(&mut self, band: &Band) {
        for i in 0..self.plan.lanes.len() {
            let r = band.lanes[i];
            let class = if i % 2 == 0 { "lane" } else { "lane odd" };
            let name = self.plan.lanes[i].clone();
            self.rect(r, class, "", &name);
            self.text(16.0, r.y + r.h / 2.0 + 4.0, "name", &short(&name, 14));
        }
    }

    fn ops(&mut self, band: &Band) {
        let waits: Vec<OpId> =
            self.plan.edges.iter().filter(|e| e.kind == EdgeKind::NextStep).map(|e| e.to).collect();
        for id in self.plan.op_ids() {
            let Some(r) = self.layout.own(id, band) else { continue };
            let op = self.plan.op(id);
            let class = if op.kind.is_host() { "op host" } else { "op" };
            let title = format!("#{} {} ({})", id.0, op.name, op.kind.kernel());
            self.rect(r, class, " rx=\"3\"", &title);
            let label = escape(&end(&op.name, self.layout.label_chars));
            if self.layout.upright {
                let (x, y) = (r.x + r.w / 2.0 + 4.0, r.y + r.h - 5.0);
                self.put(format_args!(
                    "<text x=\"{x:.1}\" y=\"{y:.1}\" transform=\"rotate(-90 {x:.1} {y:.1})\" \
                     class=\"small\">{label}</text>"
                ));
            } else {
                let (x, y) = (r.x + r.w / 2.0, r.y + r.h / 2.0 + 4.0);
                self.put(format_args!(
                    "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{label}</text>"
                ));
            }
            if waits.contains(&id) {
                let (x, y) = (r.x, r.y);
                self.put(format_args!(
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.2\" class=\"next\">\
                     <title>waits for the step before</title></circle>"
                ));
            }
        }
    }

    fn edges(&mut self, band: &Band) {
        for e in self.plan.edges.iter().filter(|e| e.kind != EdgeKind::NextStep) {
            let ends = [e.from, e.to].map(|op| self.layout.op(op, band));
            let [Some(a), Some(b)] = ends else { continue };
            if !self.layout.crosses(e.from, e.to, band) {
                continue;
            }
            let class = if e.kind == EdgeKind::Event { "edge" } else { "edge pdl" };
            let path = layout::curve(a, b);
            self.put(format_args!(
                "<path d=\"{path}\" class=\"{class}\" marker-end=\"url(#arrow)\"/>"
            ));
        }
    }

    fn grid(&mut self, band: &Band) {
        let area = Rect { x: layout::GUTTER, ..band.arena };
        self.text(16.0, area.y - 8.0, "name", "arena over time");
        let ticks = 4;
        for i in 0..=ticks {
            let bytes = self.packing.arena_bytes() * i / ticks;
            let y = self.layout.arena_y(bytes, band);
            let x2 = area.x + area.w;
            self.put(format_args!(
                "<line x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{x2:.1}\" y2=\"{y:.1}\" class=\"grid\"/>",
                area.x
            ));
            self.text(16.0, y + 4.0, "sub small", &Bytes(bytes).to_string());
        }
    }

    fn arena(&mut self, band: &Band) {
        for id in self.plan.buffer_ids() {
            let Some(r) = self.layout.buffer(id, band) else { continue };
            let b = self.plan.buffer(id);
            let (hue, light) = match b.kind {
                BufferKind::Input { .. } => (45, 78),
                BufferKind::Output { .. } => (150, 70),
                _ => (200 + (id.0.wrapping_mul(47) % 90), 72),
            };
            let at = self.packing.offset(id).unwrap_or(0);
            let title = format!("{} {} at {at}", b.name, Bytes(b.bytes));
            let more = format!(" style=\"fill:hsl({hue},55%,{light}%)\"");
            self.rect(r, "buf", &more, &title);
        }
        // Labels last: a neighbour drawn later would cover them.
        for id in self.plan.buffer_ids() {
            let Some(r) = self.layout.buffer(id, band) else { continue };
            // What began in an earlier band has its name there.
            let r = if r.x < band.arena.x { continue } else { r };
            let fits = ((r.w - 4.0) / 5.6) as usize;
            if r.h >= 10.0 && fits >= 2 {
                let y = r.y + (r.h / 2.0 + 3.5).min(r.h - 2.0);
                let name = &self.plan.buffer(id).name;
                // Most are what an op puts out, which tells none from another.
                let told = name.strip_suffix(".out").filter(|_| name.chars().count() > fits);
                let name = end(told.unwrap_or(name), fits);
                self.text(r.x + 3.0, y, "small", &name);
            }
        }
    }

    fn hazards(&mut self, hazards: &[Hazard]) {
        if hazards.is_empty() {
            return;
        }
        let mut y = self.layout.hazards_y;
        let plural = if hazards.len() == 1 { "" } else { "s" };
        self.text(16.0, y, "title hazard", &format!("{} hazard{plural}", hazards.len()));
        y += 6.0;
        for (i, hazard) in hazards.iter().take(HAZARDS_SHOWN_MAX).enumerate() {
            let text = hazard.to_string();
            for (n, line) in wrap(&text, self.layout.line_chars).into_iter().take(3).enumerate() {
                y += 15.0;
                let x = 40.0;
                if n == 0 {
                    self.badge(24.0, y - 4.0, i + 1);
                }
                self.text(x, y, "hazard", &line);
            }
            y += 6.0;
        }
        if hazards.len() > HAZARDS_SHOWN_MAX {
            let more = format!("and {} more", hazards.len() - HAZARDS_SHOWN_MAX);
            self.text(40.0, y + 15.0, "hazard", &more);
        }
    }

    fn marks(&mut self, band: &Band, hazards: &[Hazard]) {
        let mut numbers: HashMap<OpId, usize> = HashMap::new();
        for (i, hazard) in hazards.iter().take(HAZARDS_SHOWN_MAX).enumerate() {
            self.mark(band, i + 1, hazard, &mut numbers);
        }
    }

    fn badge(&mut self, x: f64, y: f64, number: usize) {
        self.put(format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"7.5\" class=\"mark\"/>"));
        let y = y + 3.5;
        self.put(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\" class=\"marktext\">{number}</text>"
        ));
    }

    /// Rings the ops that take part, draws the missing order between two of them, and paints the
    /// bytes that clash. The number stands on the upper edge of the op that has to wait.
    fn mark(
        &mut self,
        band: &Band,
        number: usize,
        hazard: &Hazard,
        numbers: &mut HashMap<OpId, usize>,
    ) {
        let touches = hazard.touches();
        let spots: Vec<Rect> = touches.iter().filter_map(|t| self.layout.op(t.op, band)).collect();
        let ends = [touches.first(), touches.last()].map(|t| t.map(|t| t.op));
        let [Some(from), Some(to)] = ends else { return };
        if !self.layout.crosses(from, to, band) {
            return;
        }
        for touch in &touches {
            let Some(r) = self.layout.own(touch.op, band) else { continue };
            self.rect(r.grown(2.0), "bad", " rx=\"4\"", &hazard.to_string());
        }
        if let [a, b] = spots[..]
            && a != b
        {
            let path = layout::curve(a, b);
            self.put(format_args!(
                "<path d=\"{path}\" class=\"missing\" marker-end=\"url(#redarrow)\"/>"
            ));
        }
        if let Fault::Aliasing { first, second, arena } = &hazard.fault {
            self.clash(band, first, second, arena.clone(), &hazard.to_string());
        }
        if let (Some(r), Some(touch)) = (spots.last(), touches.last())
            && self.layout.own(touch.op, band).is_some()
        {
            let before = numbers.entry(touch.op).or_default();
            let down = *before as f64 * 15.0;
            *before += 1;
            // Down the right side where the box is tall, along its top where it is wide.
            let (x, y) =
                if self.layout.upright { (r.x + r.w, r.y + down) } else { (r.x + r.w - down, r.y) };
            self.badge(x, y, number);
        }
    }

    fn clash(
        &mut self,
        band: &Band,
        a: &Touch,
        b: &Touch,
        arena: core::ops::Range<u64>,
        title: &str,
    ) {
        let columns = [a.op, b.op].map(|o| self.layout.op(o, band));
        let [Some(a), Some(b)] = columns else { return };
        let (lo, hi) =
            (self.layout.arena_y(arena.start, band), self.layout.arena_y(arena.end, band));
        let (x, end) = (a.x.min(b.x), (a.x + a.w).max(b.x + b.w));
        let r = Rect { x, y: lo.min(hi), w: end - x, h: (hi - lo).abs().max(2.0) };
        self.rect(r, "clash", "", title);
    }
}

/// Breaks text at spaces.
fn wrap(text: &str, chars: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always a line");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > chars {
            lines.push(word.into());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}
