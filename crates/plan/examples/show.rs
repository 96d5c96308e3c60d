//! Draws the plan of one overlapped layer, right and with the packing that corrupted it:
//! `cargo run --release -p lockstep-plan --example show -- OUT_DIR`.

use lockstep_plan::drill::overlapped;
use lockstep_plan::{pack, pack_by_issue_order, prove, render_text, svg};
use std::path::Path;

fn main() -> std::io::Result<()> {
    let dir = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let write = |name: &str, text: &str| std::fs::write(Path::new(&dir).join(name), text);
    for layers in [1, 4] {
        let plan = overlapped(layers, 4, 8);
        let good = pack(&plan);
        write(&format!("proven-{layers}.svg"), &svg(&plan, &good, &[]))?;
        let bad = pack_by_issue_order(&plan);
        let hazards = prove(plan.clone(), bad.clone()).err().unwrap_or_default();
        write(&format!("issue-order-{layers}.svg"), &svg(&plan, &bad, &hazards))?;
        let mut racy = plan.clone();
        racy.edges.retain(|e| racy.ops[e.to.index()].name != "layer0.attention");
        let hazards = prove(racy.clone(), good.clone()).err().unwrap_or_default();
        write(&format!("race-{layers}.svg"), &svg(&racy, &good, &hazards))?;
        match prove(plan, good) {
            Ok(proven) => print!("{}", render_text(&proven)),
            Err(hazards) => hazards.iter().for_each(|h| println!("{h}")),
        }
    }
    Ok(())
}
