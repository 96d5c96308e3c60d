//! The step path takes no memory: not in decode, not in prefill, not where requests start, finish,
//! share, are preempted or cancelled. Only `submit` may.
#![forbid(unsafe_code)]

mod common;

use common::{Host, request};
use lockstep_flow::{Request, RequestId, Token};
use std::sync::Arc;

fn allocations(depth: u32, pages: u32) -> (u64, Host) {
    let mut host = Host::new(8, 60, pages, depth);
    let mut outcomes = Vec::with_capacity(16);
    let mut total = 0;
    for wave in 0..6u64 {
        for i in 0..20 {
            let id = wave * 20 + i;
            let (prompt, max) = (1 + (i as u32 * 37) % 150, 20 + (i as u32 * 53) % 130);
            let mut r = request(id, prompt, max);
            if i % 3 == 0 {
                let own: Vec<Token> =
                    (0..prompt).map(|t| Token((t * 7 + id as u32) % 90)).collect();
                r = Request { prompt: Arc::from(own), ..r };
            }
            r.params.prompt_logprobs = i % 7 == 0;
            host.submit(&r).unwrap();
        }
        for n in 0..4000 {
            if n == 40 {
                total += allocation_counter::measure(|| {
                    host.sched.cancel(RequestId(wave * 20 + 2));
                })
                .count_total;
            }
            let sample = |row: &lockstep_sched::SeqRow| {
                Token((row.plan.first_position.0 * 11 + row.plan.request.0 as u32) % 97)
            };
            let info = allocation_counter::measure(|| host.quiet_step(&mut outcomes, sample));
            total += info.count_total;
            if host.sched.is_idle() {
                break;
            }
        }
        assert!(host.sched.is_idle());
    }
    (total, host)
}

#[test]
fn the_step_path_takes_no_memory() {
    for depth in 1..=2 {
        let (total, host) = allocations(depth, 14);
        let (s, p) = (host.sched.counters(), host.sched.pool().counters());
        assert!(s.preemptions > 5 && s.recomputed_tokens > 50, "{s:?}");
        assert!(p.pages_evicted > 50 && p.prefix_hit_tokens > 1000, "{p:?}");
        assert!(s.finished > 100 && s.steps > 1000, "{s:?}");
        assert_eq!(total, 0, "allocations in {} steps at depth {depth}", s.steps);
    }
}

/// A counter that cannot count proves nothing.
#[test]
fn the_counter_counts() {
    let info = allocation_counter::measure(|| drop(std::hint::black_box(vec![1u8; 100])));
    assert_eq!(info.count_total, 1);
}
