//! Scheduler and pool, driven as the engine drives them, against a device that trusts nothing.
#![forbid(unsafe_code)]

mod device;
mod oracle;
mod world;

use proptest::prelude::*;
use world::{Ask, Sizes, World};

#[derive(Clone, Debug)]
enum Op {
    Submit(Ask),
    /// As many choices of one prompt.
    Choices(Ask, u32),
    Cancel(usize),
    Wait(u64),
    Launch,
    /// A client leaves between the plan of a step and its lease.
    LaunchWithout(usize),
    Run(usize),
    Complete,
    /// Steps as fast as the depth allows.
    Serve(u32),
    FailStep,
}

fn ask() -> impl Strategy<Value = Ask> {
    let prompt = (0u8..3, 0u32..110, 0u32..60);
    let tokens = (
        prop_oneof![1u32..70, 40u32..250],
        prop_oneof![4 => Just(0u32), 1 => 0u32..12],
        0u64..1000,
    );
    let flags = (
        prop_oneof![5 => Just(0u32), 1 => Just(1u32)],
        prop::bool::weighted(0.15),
        prop::bool::weighted(0.15),
        prop::bool::weighted(0.3),
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.9),
        prop::option::weighted(0.1, 1u64..60),
    );
    (prompt, tokens, flags).prop_map(|((base, base_tokens, own_tokens), (max, min, seed), f)| Ask {
        base,
        base_tokens,
        own_tokens,
        max_tokens: max,
        min_tokens: min,
        seed,
        adapter: f.0,
        echo: f.1,
        grammar: f.2,
        ignore_eos: f.3,
        stops: f.4,
        uses_cache: f.5,
        deadline_ms: f.6,
    })
}

/// Short to start with and long at the end: what fills a pool after admission.
fn growing_ask() -> impl Strategy<Value = Ask> {
    (ask(), 1u32..40, 90u32..260).prop_map(|(ask, base_tokens, max_tokens)| Ask {
        base_tokens,
        own_tokens: 1,
        max_tokens,
        ignore_eos: true,
        stops: false,
        ..ask
    })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => ask().prop_map(Op::Submit),
        8 => growing_ask().prop_map(Op::Submit),
        2 => (ask(), 2u32..5).prop_map(|(a, n)| Op::Choices(a, n)),
        2 => (0usize..50).prop_map(Op::Cancel),
        2 => (0u64..9).prop_map(Op::Wait),
        14 => Just(Op::Launch),
        1 => (0usize..50).prop_map(Op::LaunchWithout),
        4 => (1usize..3).prop_map(Op::Run),
        12 => Just(Op::Complete),
        4 => (1u32..60).prop_map(Op::Serve),
        1 => Just(Op::FailStep),
    ]
}

fn sizes() -> impl Strategy<Value = Sizes> {
    (
        (5u32..30, 1u32..7, 0u32..12, 0u32..4),
        (prop_oneof![Just(3u32), Just(16), Just(40), Just(64)], 1u32..4, 100u32..600),
        (prop::bool::weighted(0.8), prop_oneof![Just(0u32), Just(25), Just(100)]),
    )
        .prop_map(
            |((pages, running, queued, spare_slots), (chunk, depth, context), (p, pad))| Sizes {
                pages,
                running,
                queued,
                spare_slots,
                chunk,
                depth,
                context,
                prefix_cache: p,
                padding_max_percent: pad,
            },
        )
}

fn play(sizes: &Sizes, ops: &[Op]) -> World {
    let mut world = World::new(sizes);
    for op in ops {
        match op {
            Op::Submit(ask) => drop(world.submit(ask)),
            Op::Choices(ask, n) => {
                for i in 0..*n {
                    world.submit(&Ask {
                        seed: ask.seed + u64::from(i),
                        own_tokens: 0,
                        ..ask.clone()
                    });
                }
            }
            Op::Cancel(n) => world.cancel(*n),
            Op::Wait(ms) => world.now.0 += ms * 1000,
            Op::Launch => drop(world.launch()),
            Op::LaunchWithout(n) => drop(world.launch_without(Some(*n))),
            Op::Run(n) => world.run(*n),
            Op::Complete => drop(world.complete()),
            Op::Serve(n) => world.serve(*n),
            Op::FailStep => world.fail_step(),
        }
    }
    world.drain_all();
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    /// Any sizes, any clients, any order of launches and completions: every row reads exactly its
    /// own history, every request ends once with the tokens that it would have had alone, and the
    /// books are right after every step.
    #[test]
    fn every_request_gets_what_it_would_get_alone(
        sizes in sizes(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        play(&sizes, &ops);
    }
}

/// A simulation that never preempts proves nothing about preemption: over a fixed set of worlds,
/// everything that the one above is there for has to happen, and often.
#[test]
fn the_worlds_see_everything_that_can_happen() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let worlds = (sizes(), prop::collection::vec(op(), 1..120));
    let mut sums = [("", 0u64); 18];
    for _ in 0..400 {
        let (sizes, ops) = worlds.new_tree(&mut runner).expect("no filters").current();
        let world = play(&sizes, &ops);
        let (s, p) = (*world.sched.counters(), *world.sched.pool().counters());
        let all = [
            ("finished", s.finished),
            ("failed", s.failed),
            ("refused for the queue", s.refused.queue_full),
            ("refused for the context", s.refused.context_too_long),
            ("refused for the pool", s.refused.pool_too_small),
            ("preemptions", s.preemptions),
            ("recomputed tokens", s.recomputed_tokens),
            ("discarded rows", s.discarded_rows),
            ("stalled rows", s.stalled_rows),
            ("prefix waits", s.prefix_waits),
            ("padded rows", s.padded_rows),
            ("prefill rows", s.prefill_rows),
            ("prefix hit tokens", p.prefix_hit_tokens),
            ("pages merged", p.pages_merged),
            ("pages evicted", p.pages_evicted),
            ("pages quarantined", p.pages_quarantined),
            ("rows that take the last token", world.device.last_token_rows),
            ("reads checked", world.device.reads),
        ];
        for (sum, (name, n)) in sums.iter_mut().zip(all) {
            *sum = (name, sum.1 + n);
        }
    }
    println!("{sums:?}");
    for (name, n) in sums {
        assert!(n >= 50, "{name}: only {n} in 400 worlds");
    }
}
