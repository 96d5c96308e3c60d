//! `prove` on small plans that each break one rule, beside the twin that does not.

use lockstep_flow::BucketKey;
use lockstep_plan::{
    Access, Axis, BeforeWait, BufferId, BufferKind, Decision, DependsOn, Edge, EdgeKind, Elem,
    Fault, Hazard, LaneId, Obligation, OpId, OpKind, Packing, PaddingPolicy, PlanBuilder, Proven,
    RowReach, RowView, Rule, Span, StateKind, StepPlan, Stride, pack, pack_by_issue_order, prove,
};

const BYTES: u64 = 256;

fn all(b: BufferId) -> Access {
    Access::whole(b, BYTES)
}

fn part(buffer: BufferId, offset: u64, len: u64) -> Access {
    Access::Static { span: Span { buffer, offset, len }, rows: None }
}

fn mix(b: &mut PlanBuilder, name: &str, lane: LaneId, r: Vec<Access>, w: Vec<Access>) -> OpId {
    b.op_with(name, lane, OpKind::Mix { seed: 1 }, r, w)
}

fn builder() -> PlanBuilder {
    PlanBuilder::new(BucketKey::decode(1), 8)
}

fn input(b: &mut PlanBuilder, name: &str) -> BufferId {
    let kind = BufferKind::Input { padding: PaddingPolicy::NoRows, late: false };
    b.rows(name, kind, Axis::T, BYTES, Elem::Opaque)
}

fn output(b: &mut PlanBuilder, name: &str) -> BufferId {
    b.rows(name, BufferKind::Output { fetched: true }, Axis::T, BYTES, Elem::Opaque)
}

fn proven(plan: &StepPlan) -> Result<Proven, Vec<Hazard>> {
    prove(plan.clone(), pack(plan))
}

fn rules(plan: &StepPlan, packing: Packing) -> Vec<Rule> {
    let hazards = prove(plan.clone(), packing).expect_err("the plan has a fault");
    for h in &hazards {
        let text = h.to_string();
        assert!(text.contains("Fix: ") && text.starts_with(h.rule().name()), "{text}");
    }
    let mut rules: Vec<Rule> = hazards.iter().map(Hazard::rule).collect();
    rules.dedup();
    rules
}

/// `x -> a -> (b on main, c on side) -> d -> out`, edges derived.
fn diamond() -> StepPlan {
    let mut b = builder();
    let (x, out) = (input(&mut b, "x"), output(&mut b, "out"));
    let [p, q, r] = ["p", "q", "r"].map(|n| b.scratch(n, BYTES));
    let side = b.lane("side");
    mix(&mut b, "a", LaneId::MAIN, vec![all(x)], vec![all(p)]);
    mix(&mut b, "b", LaneId::MAIN, vec![all(p)], vec![all(q)]);
    mix(&mut b, "c", side, vec![all(p)], vec![all(r)]);
    mix(&mut b, "d", LaneId::MAIN, vec![all(q), all(r)], vec![all(out)]);
    b.finish()
}

fn op(plan: &StepPlan, name: &str) -> OpId {
    plan.op_ids().find(|o| plan.op(*o).name == name).unwrap()
}

#[test]
fn a_diamond_on_two_lanes_is_proven_and_loses_its_proof_with_any_edge() {
    let plan = diamond();
    let proof = proven(&plan).unwrap();
    assert_eq!(proof.obligations(), []);
    assert_eq!(proof.counts().ops, 6);
    for i in 0..plan.edges.len() {
        let mut broken = plan.clone();
        broken.edges.remove(i);
        let found = rules(&broken, pack(&plan));
        assert!(found.contains(&Rule::Race), "edge {i} {:?}: {found:?}", plan.edges[i]);
    }
}

#[test]
fn a_missing_edge_is_named_and_adding_it_makes_the_plan_provable() {
    let plan = diamond();
    for i in 0..plan.edges.len() {
        let mut broken = plan.clone();
        broken.edges.remove(i);
        let mut rounds = 0;
        while let Err(hazards) = prove(broken.clone(), pack(&plan)) {
            let missing = hazards.iter().filter_map(|h| h.missing);
            broken.edges.extend(missing.collect::<Vec<_>>());
            rounds += 1;
            assert!(rounds < 3, "{hazards:?}");
        }
    }
}

#[test]
fn a_race_reads_like_a_work_order() {
    let mut plan = diamond();
    let (c, d) = (op(&plan, "c"), op(&plan, "d"));
    plan.edges.retain(|e| (e.from, e.to) != (c, d));
    let hazards = prove(plan.clone(), pack(&plan)).unwrap_err();
    assert_eq!(
        hazards[0].to_string(),
        "race: d (lane main) reads r[0..256] and c (lane side) writes r[0..256], 256 bytes in \
         common, and neither lane order nor an event orders the two. Fix: record an event after c \
         on lane side and wait for it before d on lane main."
    );
}

/// The corruption that this project answers: a side lane's temporary gets bytes of a main-lane
/// tensor that is dead in issue order and alive when the two lanes overlap.
#[test]
fn arena_reuse_by_issue_order_is_refused_on_two_lanes_and_fine_on_one() {
    let build = |lanes| {
        let mut b = PlanBuilder::new(BucketKey::decode(1), lanes);
        let (x, out) = (input(&mut b, "x"), output(&mut b, "out"));
        let [p, q, s, t] = ["p", "q", "s", "t"].map(|n| b.scratch(n, BYTES));
        let side = b.lane("side");
        mix(&mut b, "a", LaneId::MAIN, vec![all(x)], vec![all(p)]);
        mix(&mut b, "b", LaneId::MAIN, vec![all(p)], vec![all(q)]);
        mix(&mut b, "c", side, vec![all(x)], vec![all(s)]);
        mix(&mut b, "d", side, vec![all(s)], vec![all(t)]);
        mix(&mut b, "e", LaneId::MAIN, vec![all(q), all(t)], vec![all(out)]);
        b.finish()
    };
    let one = build(1);
    prove(one.clone(), pack_by_issue_order(&one)).unwrap();
    assert_eq!(pack(&one).report().overlap_bytes(), 0);

    let two = build(8);
    let hazards = prove(two.clone(), pack_by_issue_order(&two)).unwrap_err();
    assert!(hazards.iter().all(|h| matches!(h.fault, Fault::Aliasing { .. })), "{hazards:?}");
    assert!(hazards[0].to_string().contains("or pack by the partial order"), "{}", hazards[0]);
    let packed = pack(&two);
    assert!(packed.report().overlap_bytes() > 0);
    prove(two.clone(), packed).unwrap();
}

#[test]
fn placement_faults_are_aliasing_faults() {
    let plan = diamond();
    let good = pack(&plan);
    let with = |i: usize, offset, arena| {
        let mut offsets = good.offsets().to_vec();
        offsets[i] = offset;
        rules(&plan, Packing::from_offsets(offsets, arena))
    };
    let (q, arena) = (plan.find("q").unwrap().index(), good.arena_bytes());
    assert_eq!(with(q, None, arena), [Rule::Aliasing]);
    assert_eq!(with(q, Some(good.offsets()[q].unwrap() + 1), arena), [Rule::Aliasing]);
    assert_eq!(with(q, Some(arena), arena), [Rule::Aliasing]);
    assert_eq!(with(q, Some(u64::MAX - 63), arena), [Rule::Aliasing]);
    assert_eq!(with(q, good.offsets()[plan.find("x").unwrap().index()], arena), [Rule::Aliasing]);
    assert_eq!(with(q, good.offsets()[q], arena - 64), [Rule::Aliasing]);
    let short = Packing::from_offsets(Vec::new(), arena);
    assert_eq!(rules(&plan, short), [Rule::Aliasing]);
}

#[test]
fn definedness_is_exact_to_the_byte() {
    let build = |first: u64| {
        let mut b = builder();
        let (x, out) = (input(&mut b, "x"), output(&mut b, "out"));
        let p = b.scratch("p", BYTES);
        mix(&mut b, "a", LaneId::MAIN, vec![all(x)], vec![part(p, 0, first)]);
        mix(&mut b, "b", LaneId::MAIN, vec![all(x)], vec![part(p, 100, BYTES - 100)]);
        mix(&mut b, "c", LaneId::MAIN, vec![all(p)], vec![all(out)]);
        b.finish()
    };
    proven(&build(100)).unwrap();
    let plan = build(99);
    let hazards = proven(&plan).unwrap_err();
    let Fault::Undefined { bytes, .. } = &hazards[0].fault else { panic!("{hazards:?}") };
    assert_eq!((hazards.len(), bytes.clone()), (1, 99..100));
}

#[test]
fn an_op_that_updates_in_place_does_not_define_what_it_reads() {
    let mut b = builder();
    let out = output(&mut b, "out");
    let p = b.scratch("p", BYTES);
    mix(&mut b, "a", LaneId::MAIN, vec![all(p)], vec![all(p)]);
    mix(&mut b, "b", LaneId::MAIN, vec![all(p)], vec![all(out)]);
    let plan = b.finish();
    assert_eq!(rules(&plan, pack(&plan)), [Rule::Definedness]);
}

/// A plan of 4 rows with one access of each kind to spoil.
fn rows_plan(spoil: impl Fn(&mut StepPlan)) -> StepPlan {
    let mut b = PlanBuilder::new(BucketKey::decode(4), 8);
    let table = b.table("slots", Axis::T, 1, 0);
    let x = b.transient("x", Axis::T, 64, Elem::F32);
    let out = b.rows("out", BufferKind::Output { fetched: true }, Axis::T, 64, Elem::F32);
    let pages = b.state("pages", StateKind::Pages { page_bytes: 64 }, 9, Elem::F32);
    let w = b.weight("w", 64, Elem::F32);
    let rows = |buffer, bytes, stride, reach| Access::Static {
        span: Span { buffer, offset: 0, len: bytes },
        rows: Some(RowView { axis: Axis::T, stride: Stride::Capacity(stride), reach }),
    };
    let same = RowReach::Same;
    mix(
        &mut b,
        "a",
        LaneId::MAIN,
        vec![rows(table, 16, 4, same), Access::whole(w, 64)],
        vec![rows(x, 256, 64, same)],
    );
    let index = Access::Indexed { buffer: pages, via: table, reserved_for_padding: true };
    let gather = RowReach::Gather { via: table };
    mix(
        &mut b,
        "b",
        LaneId::MAIN,
        vec![rows(table, 16, 4, same), rows(x, 256, 64, gather)],
        vec![index],
    );
    mix(
        &mut b,
        "c",
        LaneId::MAIN,
        vec![rows(table, 16, 4, same), index],
        vec![rows(out, 256, 64, same)],
    );
    let mut plan = b.finish();
    spoil(&mut plan);
    plan
}

#[test]
fn indexed_accesses_leave_obligations_to_the_lease() {
    let plan = rows_plan(|_| {});
    let proof = proven(&plan).unwrap();
    let (state, table) = (plan.find("pages").unwrap(), plan.find("slots").unwrap());
    assert_eq!(
        proof.obligations(),
        [
            Obligation::WritesExclusive { state, table },
            Obligation::PaddedReserved { state, table },
            Obligation::InRange { state, table },
            Obligation::HeldUntilComplete { state, table },
            Obligation::LiveRowsOnly { table },
        ]
    );
}

#[test]
fn each_row_rule_refuses_its_fault() {
    let check = |rule: Rule, spoil: &dyn Fn(&mut StepPlan)| {
        let plan = rows_plan(spoil);
        assert_eq!(rules(&plan, pack(&plan)), [rule]);
    };
    let view = |plan: &mut StepPlan, o: &str, read: usize, f: &dyn Fn(&mut RowView)| {
        let id = op(plan, o);
        match &mut plan.ops[id.index()].reads[read] {
            Access::Static { rows: Some(view), .. } => f(view),
            _ => panic!("not a row access"),
        }
    };
    check(Rule::Stride, &|p| view(p, "b", 1, &|v| v.stride = Stride::Live));
    check(Rule::Stride, &|p| view(p, "b", 1, &|v| v.stride = Stride::Capacity(60)));
    check(Rule::Stride, &|p| p.buffers[1].rows = Some((Axis::T, 65)));
    check(Rule::Padding, &|p| view(p, "b", 1, &|v| v.reach = RowReach::All));
    check(Rule::Padding, &|p| view(p, "b", 0, &|v| v.axis = Axis::S));
    check(Rule::Padding, &|p| {
        let (b, x) = (op(p, "b"), p.find("x").unwrap());
        p.ops[b.index()].reads[1] = Access::whole(x, 256);
    });
    let reserve = |p: &mut StepPlan, yes: bool| {
        let b = op(p, "b");
        let Access::Indexed { reserved_for_padding, .. } = &mut p.ops[b.index()].writes[0] else {
            panic!("not indexed")
        };
        *reserved_for_padding = yes;
    };
    check(Rule::Padding, &|p| reserve(p, false));
    check(Rule::Padding, &|p| {
        let kind = BufferKind::Input { padding: PaddingPolicy::Word(7), late: false };
        p.buffers[0].kind = kind;
    });
    check(Rule::Indexed, &|p| {
        let b = op(p, "b");
        p.ops[b.index()].reads.remove(0);
    });
    check(Rule::Indexed, &|p| p.buffers[3].kind = BufferKind::Transient);
    check(Rule::FrozenDecision, &|p| {
        let b = op(p, "b");
        let depends_on = DependsOn::LiveBatch;
        let name = "short context".into();
        p.ops[b.index()].decisions.push(Decision { name, depends_on });
    });
    check(Rule::Workspace, &|p| p.buffers[2].kind = BufferKind::Weight);
}

#[test]
fn decisions_by_bucket_and_generation_are_fine() {
    let plan = rows_plan(|p| {
        for depends_on in [DependsOn::Bucket, DependsOn::Generation] {
            p.ops[4].decisions.push(Decision { name: "split count".into(), depends_on });
        }
    });
    proven(&plan).unwrap();
}

#[test]
fn an_op_without_writes_or_with_less_than_its_kind_declares_is_refused() {
    let mut plan = diamond();
    let c = op(&plan, "c");
    plan.ops[c.index()].writes.clear();
    assert!(rules(&plan, pack(&plan)).contains(&Rule::Workspace));
    let mut plan = diamond();
    let host = op(&plan, "host.x");
    plan.ops[host.index()].writes = vec![part(plan.find("x").unwrap(), 0, 16)];
    assert!(rules(&plan, pack(&plan)).contains(&Rule::Workspace));
}

#[test]
fn structural_faults_are_refused_and_never_panic() {
    let check = |spoil: &dyn Fn(&mut StepPlan)| {
        let mut plan = diamond();
        spoil(&mut plan);
        assert_eq!(rules(&plan, pack(&plan)), [Rule::Structure]);
        pack_by_issue_order(&plan);
    };
    let edge = |p: &mut StepPlan, from: &str, to: &str, kind| {
        let (from, to) = (op(p, from), op(p, to));
        p.edges.push(Edge { from, to, kind });
    };
    check(&|p| p.edges.push(Edge { from: OpId(99), to: OpId(0), kind: EdgeKind::Event }));
    check(&|p| edge(p, "d", "c", EdgeKind::Event));
    check(&|p| edge(p, "c", "b", EdgeKind::Event));
    check(&|p| edge(p, "a", "a", EdgeKind::Event));
    check(&|p| {
        edge(p, "host.x", "a", EdgeKind::Programmatic { before_wait: BeforeWait::default() })
    });
    check(&|p| p.ops[1].lane = LaneId(77));
    check(&|p| p.ops[1].lane = LaneId::HOST);
    check(&|p| p.ops[0].lane = LaneId::MAIN);
    check(&|p| p.ops[1].reads.push(Access::whole(BufferId(1 << 20), 1)));
    check(&|p| p.ops[1].reads.push(Access::whole(BufferId(2), BYTES + 1)));
    check(&|p| p.ops[1].reads.push(part(BufferId(2), u64::MAX, 2)));
    check(&|p| p.buffers[2].align = 48);
    check(&|p| p.buffers[2].name = "q".into());
    check(&|p| p.ops[2].name = "a".into());
    check(&|p| p.ops[0].writes.push(all(BufferId(2))));
}

#[test]
fn a_cycle_is_shown_whole() {
    let mut plan = diamond();
    let (d, c) = (op(&plan, "d"), op(&plan, "c"));
    plan.edges.push(Edge { from: d, to: c, kind: EdgeKind::Event });
    let hazards = prove(plan.clone(), pack(&plan)).unwrap_err();
    assert!(hazards[0].to_string().contains("c -> d - no replay would end"), "{}", hazards[0]);
}

/// `a -> b` on one lane, `b` launched programmatically: what it does before its wait overlaps `a`
/// and, because `a` was launched that way too, also `z`.
#[test]
fn programmatic_launch_orders_only_what_comes_after_the_wait() {
    let build = |a_before: BeforeWait, b_before: BeforeWait, reads_z: bool| {
        let mut b = builder();
        let (x, out) = (input(&mut b, "x"), output(&mut b, "out"));
        let [z, p] = ["z", "p"].map(|n| b.scratch(n, BYTES));
        let w = b.weight("w", BYTES, Elem::F32);
        let main = LaneId::MAIN;
        mix(&mut b, "z", main, vec![all(x)], vec![all(z)]);
        mix(&mut b, "a", main, vec![all(x), all(w)], vec![all(p)]);
        let first = if reads_z { all(z) } else { all(w) };
        mix(&mut b, "b", main, vec![first, all(p)], vec![all(out)]);
        let mut plan = b.finish();
        let [z, a, b] = ["z", "a", "b"].map(|n| op(&plan, n));
        let kind = |before_wait| EdgeKind::Programmatic { before_wait };
        plan.edges.push(Edge { from: z, to: a, kind: kind(a_before) });
        plan.edges.push(Edge { from: a, to: b, kind: kind(b_before) });
        plan
    };
    let reads = |reads| BeforeWait { reads, writes: 0 };
    proven(&build(reads(0), reads(0), true)).unwrap();
    // A weight may be fetched before the wait; what the neighbour writes may not.
    proven(&build(reads(0b10), reads(0b01), false)).unwrap();
    let early = build(reads(0), reads(0b10), false);
    assert!(rules(&early, pack(&early)).contains(&Rule::Race));
    // z ended before a's wait, not before a's start: b's early read of it is a race.
    let chain = build(reads(0b10), reads(0b01), true);
    assert!(rules(&chain, pack(&chain)).contains(&Rule::Race));
    // The input is ordered by the host's event before z, so a may read it early.
    proven(&build(reads(0b01), reads(0), true)).unwrap();
}

/// Found by the walk through all interleavings: `b` reads the state after its wait and writes it
/// before, and the read, which is ordered after `a`'s read, hid that the write is not.
#[test]
fn a_read_after_the_wait_does_not_hide_a_write_before_it() {
    let mut b = builder();
    let (x, out) = (input(&mut b, "x"), output(&mut b, "out"));
    let pages = b.state("pages", StateKind::Pages { page_bytes: 64 }, 4, Elem::F32);
    let via = Access::Indexed { buffer: pages, via: x, reserved_for_padding: true };
    mix(&mut b, "a", LaneId::MAIN, vec![all(x), via], vec![all(out)]);
    mix(&mut b, "b", LaneId::MAIN, vec![all(x), via], vec![via]);
    let mut plan = b.finish();
    proven(&plan).unwrap();
    let (from, to) = (op(&plan, "a"), op(&plan, "b"));
    let before_wait = BeforeWait { reads: 0, writes: 1 };
    plan.edges.push(Edge { from, to, kind: EdgeKind::Programmatic { before_wait } });
    assert_eq!(rules(&plan, pack(&plan)), [Rule::Race]);
}

#[test]
fn late_inputs_and_outputs_need_their_edges_across_steps() {
    let mut b = builder();
    let late = BufferKind::Input { padding: PaddingPolicy::NoRows, late: true };
    let (x, out) = (input(&mut b, "x"), output(&mut b, "out"));
    let mask = b.rows("mask", late, Axis::T, BYTES, Elem::U32);
    let unread = input(&mut b, "unread");
    let p = b.scratch("p", BYTES);
    mix(&mut b, "a", LaneId::MAIN, vec![all(x)], vec![all(p)]);
    mix(&mut b, "s", LaneId::MAIN, vec![all(p), all(mask)], vec![all(out)]);
    let plan = b.finish();
    let _ = unread;
    let at = |name: &str| op(&plan, name).index();
    assert!(at("a") < at("host.mask") && at("host.mask") < at("s"));
    proven(&plan).unwrap();
    let next: Vec<usize> =
        (0..plan.edges.len()).filter(|i| plan.edges[*i].kind == EdgeKind::NextStep).collect();
    assert_eq!(next.len(), 4);
    for i in next {
        let mut broken = plan.clone();
        let edge = broken.edges.remove(i);
        let hazards = prove(broken, pack(&plan)).unwrap_err();
        assert_eq!(hazards[0].missing, Some(edge));
        assert!(hazards[0].to_string().contains("of the next step"), "{}", hazards[0]);
    }
}

#[test]
fn digests_tell_plans_and_packings_apart() {
    let plan = diamond();
    let one = proven(&plan).unwrap().digest();
    assert_eq!(one, proven(&plan).unwrap().digest());
    assert_eq!(one.to_string().len(), 64);
    let mut other = plan.clone();
    other.ops[2].kind = OpKind::Mix { seed: 2 };
    assert_ne!(one, proven(&other).unwrap().digest());
    let mut offsets = pack(&plan).offsets().to_vec();
    for o in offsets.iter_mut().flatten() {
        *o += 64;
    }
    let moved = Packing::from_offsets(offsets, pack(&plan).arena_bytes() + 64);
    assert_ne!(one, prove(plan, moved).unwrap().digest());
}
