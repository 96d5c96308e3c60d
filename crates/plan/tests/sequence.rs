//! Steps of different buckets one after the other.

use lockstep_flow::BucketKey;
use lockstep_plan::{
    Access, Arenas, Axis, BufferKind, EdgeKind, Elem, InOutBytes, LaneId, OpKind, PaddingPolicy,
    PlanBuilder, Proven, RowReach, RowView, Rule, Span, StateKind, StepPlan, Stride, pack,
    pack_beside, prove, prove_any_order, prove_sequence,
};

fn bucket_plan(rows: u32, state_pages: u32) -> StepPlan {
    let mut b = PlanBuilder::new(BucketKey::decode(rows), 4);
    let kind = BufferKind::Input { padding: PaddingPolicy::Word(0), late: false };
    let input = b.rows("ids", kind, Axis::T, 64, Elem::U32);
    let mask = BufferKind::Input { padding: PaddingPolicy::Word(0), late: true };
    let mask = b.rows("mask", mask, Axis::T, 64, Elem::U32);
    let out = b.rows("tokens", BufferKind::Output { fetched: true }, Axis::T, 64, Elem::U32);
    let pages = b.state("pages", StateKind::Pages { page_bytes: 64 }, state_pages, Elem::F32);
    let x = b.transient("x", Axis::T, 192, Elem::F32);
    let y = b.transient("y", Axis::T, 192, Elem::F32);
    let row = |buffer, stride| Access::Static {
        span: Span { buffer, offset: 0, len: stride * u64::from(rows) },
        rows: Some(RowView {
            axis: Axis::T,
            stride: Stride::Capacity(stride),
            reach: RowReach::Same,
        }),
    };
    let via = Access::Indexed { buffer: pages, via: input, reserved_for_padding: true };
    let side = b.lane("side");
    let mut op = |name: &str, lane, reads, writes| {
        b.op_with(name, lane, OpKind::Mix { seed: 3 }, reads, writes);
    };
    op("write", LaneId::MAIN, vec![row(input, 64)], vec![via]);
    op("read", LaneId::MAIN, vec![row(input, 64), via], vec![row(x, 192)]);
    op("aside", side, vec![row(input, 64)], vec![row(y, 192)]);
    op("sample", LaneId::MAIN, vec![row(x, 192), row(y, 192), row(mask, 64)], vec![row(out, 64)]);
    b.finish()
}

fn proven(plan: &StepPlan, room: InOutBytes) -> Proven {
    prove(plan.clone(), pack_beside(plan, room)).unwrap()
}

#[test]
fn buckets_packed_beside_each_other_may_follow_in_any_order() {
    let plans: Vec<StepPlan> = [1, 2, 4, 8, 12].map(|n| bucket_plan(n, 9)).into();
    let room = plans.iter().map(InOutBytes::of).fold(InOutBytes::default(), InOutBytes::join);
    let proofs: Vec<Proven> = plans.iter().map(|p| proven(p, room)).collect();
    let all: Vec<&Proven> = proofs.iter().collect();
    let proof = prove_any_order(&all, Arenas::Shared).unwrap();
    assert!(proof.pairs() > 100);
    let arenas: Vec<u64> = proofs.iter().map(|p| p.packing().report().input_bytes).collect();
    assert!(arenas.windows(2).all(|w| w[0] == w[1]), "{arenas:?}");
}

/// Packed alone, a small bucket's outputs lie where a large one's inputs do: the host would write
/// the next step's inputs over results that it has not read yet.
#[test]
fn a_bucket_packed_alone_may_overwrite_what_the_host_still_reads() {
    let (small, large) = (bucket_plan(1, 9), bucket_plan(8, 9));
    let small = prove(small.clone(), pack(&small)).unwrap();
    let large = prove(large.clone(), pack(&large)).unwrap();
    let hazards = prove_sequence(&small, &large, Arenas::Shared).unwrap_err();
    assert!(hazards.iter().all(|h| h.rule() == Rule::Race));
    let text = hazards[0].to_string();
    assert!(text.contains("decode-8/host.") && text.contains("decode-1/host.tokens"), "{text}");
    prove_sequence(&small, &large, Arenas::Separate).unwrap();
}

/// An output is written again only after the host has read it: that edge belongs to the bucket
/// that writes, whichever bucket ran before.
#[test]
fn a_bucket_without_its_wait_for_the_host_is_refused_after_another() {
    let (mut a, b) = (bucket_plan(2, 9), bucket_plan(4, 9));
    let room = InOutBytes::of(&a).join(InOutBytes::of(&b));
    let b = proven(&b, room);
    // The output of `a` becomes scratch that the host never reads; nothing in `a` waits for the
    // host any more, and in itself it stays right.
    let out = a.find("tokens").unwrap();
    let spot = pack_beside(&a, room).offset(out);
    a.buffers[out.index()].kind = BufferKind::Transient;
    a.ops.retain(|op| !matches!(op.kind, OpKind::HostRead { .. }));
    a.edges.retain(|e| e.from.index() < a.ops.len() && e.to.index() < a.ops.len());
    let mut offsets = pack_beside(&a, room).offsets().to_vec();
    let arena = pack_beside(&a, room).arena_bytes();
    prove(a.clone(), pack_beside(&a, room)).unwrap();
    offsets[out.index()] = spot;
    let a = prove(a, lockstep_plan::Packing::from_offsets(offsets, arena)).unwrap();
    prove_sequence(&a, &b, Arenas::Shared).unwrap();
    let hazards = prove_sequence(&b, &a, Arenas::Shared).unwrap_err();
    assert!(hazards[0].to_string().contains("decode-4/host.tokens"), "{}", hazards[0]);
}

#[test]
fn state_of_one_name_and_two_sizes_is_refused_between_generations() {
    let (a, b) = (bucket_plan(2, 9), bucket_plan(2, 10));
    let room = InOutBytes::of(&a);
    let (a, b) = (proven(&a, room), proven(&b, room));
    let hazards = prove_sequence(&a, &b, Arenas::Separate).unwrap_err();
    assert_eq!(hazards[0].rule(), Rule::Structure);
    assert!(hazards[0].to_string().contains("pages is state of 576 bytes"), "{}", hazards[0]);
    let next = a.plan().edges.iter().filter(|e| e.kind == EdgeKind::NextStep).count();
    assert!(next > 0);
}
