//! What the tests of this room share.
#![allow(dead_code)] // Each test takes what it needs.

pub mod generate;
pub mod interpreter;
pub mod large;
pub mod oracle;
pub mod overlap {
    pub fn plan(layers: usize, rows: u32, lanes: u32) -> lockstep_plan::StepPlan {
        lockstep_plan::drill::overlapped(layers, rows, lanes)
    }
}

/// A small seeded generator (splitmix64).
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A plan in a few lines, for a failure's message.
pub fn show(plan: &lockstep_plan::StepPlan, packing: &lockstep_plan::Packing) -> String {
    use lockstep_plan::Access;
    let name = |a: &Access| match a {
        Access::Static { span, .. } => {
            let name = &plan.buffer(span.buffer).name;
            format!("{name}[{}..{}]", span.offset, span.offset + span.len)
        }
        Access::Indexed { buffer, via, .. } => {
            format!("{}[via {}]", plan.buffer(*buffer).name, plan.buffer(*via).name)
        }
    };
    let list = |l: &[Access]| l.iter().map(name).collect::<Vec<_>>().join(" ");
    let mut out = String::new();
    for (i, op) in plan.ops.iter().enumerate() {
        let (r, w) = (list(&op.reads), list(&op.writes));
        out += &format!("\n{i} {} lane {}: {r} -> {w}", op.name, op.lane.0);
    }
    for e in &plan.edges {
        out += &format!("\n{} -> {} {:?}", e.from.0, e.to.0, e.kind);
    }
    for id in plan.buffer_ids() {
        let b = plan.buffer(id);
        out += &format!("\n{} {} bytes at {:?}", b.name, b.bytes, packing.offset(id));
    }
    out
}
