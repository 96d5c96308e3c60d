//! How long a plan of 10,000 ops on 8 device lanes takes to derive, pack and prove:
//! `cargo run --release -p lockstep-plan --example prove_large`.

#[path = "../tests/support/large.rs"]
mod large;

use lockstep_plan::{pack, prove};
use std::time::Instant;

fn main() {
    let start = Instant::now();
    let plan = large::plan(10_000, 8);
    println!("built, edges derived: {:8.1} ms", start.elapsed().as_secs_f64() * 1e3);
    let start = Instant::now();
    let packing = pack(&plan);
    println!("packed:               {:8.1} ms", start.elapsed().as_secs_f64() * 1e3);
    let (ops, lanes, edges) = (plan.ops.len(), plan.lanes.len(), plan.edges.len());
    let start = Instant::now();
    let proven = prove(plan, packing);
    let ms = start.elapsed().as_secs_f64() * 1e3;
    match proven {
        Ok(p) => {
            println!("proven:               {ms:8.1} ms");
            println!("{ops} ops, {lanes} lanes, {edges} edges; {:?}", p.counts());
            println!("{:?}", p.packing().report());
        }
        Err(hazards) => println!("{} hazards, first: {}", hazards.len(), hazards[0]),
    }
}
