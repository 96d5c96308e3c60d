//! A proxy that damages answers: `fault_proxy UPSTREAM FAULT ONE_IN AFTER [SEED]`. Prints its
//! address and runs until it is ended.

#[path = "../tests/support/proxy.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod proxy;

use proxy::{Fault, Plan};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| args.get(at).and_then(|n| n.parse::<u64>().ok());
    let plan = args.get(1).and_then(|name| Fault::find(name)).zip(number(2)).zip(number(3));
    let Some(((fault, one_in), after)) = plan.filter(|((_, one_in), _)| *one_in > 0) else {
        let names: Vec<&str> = Fault::ALL.iter().map(|(_, name)| *name).collect();
        eprintln!(
            "usage: fault_proxy HOST:PORT FAULT ONE_IN AFTER [SEED]; faults: {}",
            names.join(", ")
        );
        std::process::exit(2);
    };
    let plan = Plan { fault, one_in, after, seed: number(4).unwrap_or(1) };
    match proxy::start(&args[0], plan) {
        Ok(proxy) => {
            println!("{}", proxy.address);
            loop {
                std::thread::park();
            }
        }
        Err(e) => {
            eprintln!("no proxy: {e}");
            std::process::exit(1);
        }
    }
}
