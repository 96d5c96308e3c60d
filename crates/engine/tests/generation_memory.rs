//! Memory after many generations, in a process where nothing else happens.
#![forbid(unsafe_code)]

mod common;

use common::models::tiny;
use common::stage::{arenas, graph_max_bs, rig, verified};
use lockstep_device::CpuDevice;
use lockstep_flow::Micros;

/// Resident bytes of this process.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// 20 cycles of stage, flip and retire leave what one leaves.
#[test]
fn memory_is_where_it_was_after_twenty_cycles() {
    let handle = rig().started(&tiny("llama"), Box::new(CpuDevice::new(2, "auto").unwrap()));
    let cycle = || {
        for ceiling in [96, 32] {
            let number = verified(&handle, &graph_max_bs(ceiling));
            handle.flip(number, Some(Micros(0))).unwrap();
            handle.retire(number - 1).unwrap();
        }
    };
    let at_start = arenas(&handle);
    assert_eq!(at_start.1, 2, "an arena and its shadow");
    cycle();
    cycle();
    let (after_two, resident_after_two) = (arenas(&handle), resident());
    assert_eq!(after_two, at_start);
    for _ in 0..20 {
        cycle();
    }
    assert_eq!(arenas(&handle), at_start);
    let grown = resident().saturating_sub(resident_after_two);
    println!("resident: {resident_after_two} bytes after 2 cycles, {grown} more after 22");
    // 40 generations came and went meanwhile; one in eight of them left behind would show.
    let all = 40 * at_start.0;
    assert!(grown < all / 8, "{grown} bytes more, of {all} that came and went");
    let status = handle.status();
    assert_eq!(status.counters.flips, 44);
    assert_eq!(status.generations.last().unwrap().number, 45);
    handle.shutdown();
}
