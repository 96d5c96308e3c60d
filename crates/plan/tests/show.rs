//! Text, JSON and picture of a plan; and what is made of plans that make no sense.

mod support;

use lockstep_plan::explore::Extension;
use lockstep_plan::{
    Access, BufferId, Edge, EdgeKind, LaneId, OpId, Packing, Span, StepPlan, Summary, pack,
    pack_by_issue_order, prove, render_text, svg,
};
use support::{Rng, generate, overlap};

/// Checks that tags open and close in order, and returns how many elements there are.
fn elements(svg: &str) -> usize {
    let (mut open, mut count) = (Vec::new(), 0);
    for tag in svg.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("every tag ends");
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else {
            count += 1;
            if !tag.ends_with('/') {
                open.push(name);
            }
        }
    }
    assert!(open.is_empty(), "{open:?}");
    count
}

#[test]
fn the_picture_shows_every_op_and_buffer_and_hazards_in_red() {
    let plan = overlap::plan(2, 4, 8);
    let good = pack(&plan);
    let picture = svg(&plan, &good, &[]);
    assert!(elements(&picture) > plan.ops.len() + plan.edges.len() / 2);
    for op in &plan.ops {
        assert!(picture.contains(&op.name), "{}", op.name);
    }
    assert!(!picture.contains("class=\"bad\""));
    let bad = pack_by_issue_order(&plan);
    let hazards = prove(plan.clone(), bad.clone()).unwrap_err();
    let picture = svg(&plan, &bad, &hazards);
    elements(&picture);
    for class in ["bad", "missing", "clash", "mark"] {
        assert!(picture.contains(&format!("class=\"{class}\"")), "{class}");
    }
}

/// The picture of a model's plan was once 9,644 pixels wide, in one line.
#[test]
fn a_long_plan_goes_on_in_bands_below() {
    let plan = overlap::plan(40, 4, 8);
    let bad = pack_by_issue_order(&plan);
    let hazards = prove(plan.clone(), bad.clone()).unwrap_err();
    let picture = svg(&plan, &bad, &hazards);
    elements(&picture);
    let number = |tag: &str, name: &str| -> f64 {
        let from = tag.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
        tag[from..].split('"').next().unwrap().parse().unwrap()
    };
    let tags: Vec<&str> = picture.split('<').filter(|t| t.starts_with("svg ")).collect();
    let (page, bands) = tags.split_first().unwrap();
    let (width, height) = (number(page, "width"), number(page, "height"));
    assert!(width < 1800.0 && bands.len() > 2, "{width}, {} bands", bands.len());
    for pair in bands.windows(2) {
        let [a, b] = [pair[0], pair[1]];
        assert!(number(a, "y") + number(a, "height") < number(b, "y"), "{a}{b}");
    }
    // Each op is in exactly one of them, and whole.
    let ops = picture.split('<').filter(|t| t.contains("class=\"op"));
    let places: Vec<(f64, f64)> =
        ops.map(|t| (number(t, "x"), number(t, "x") + number(t, "width"))).collect();
    assert_eq!(places.len(), plan.ops.len());
    let shown = |band: &&&str| -> (f64, f64) {
        let view = band.split("viewBox=\"").nth(1).unwrap();
        let view: Vec<f64> =
            view.split('"').next().unwrap().split(' ').map(|n| n.parse().unwrap()).collect();
        (view[0], view[0] + view[2])
    };
    for (from, to) in places {
        let holds = |b: &&&str| (shown(b).0..shown(b).1).contains(&from) && to <= shown(b).1;
        assert_eq!(bands.iter().filter(holds).count(), 1, "{from} to {to}");
    }
    let last = bands.last().unwrap();
    assert!(number(last, "y") + number(last, "height") < height);
}

/// What was found: a plan of up to 18 columns was one line of 2,150 pixels; lanes on which nothing runs
/// were as tall as the others; names were cut at the end that tells them apart.
#[test]
fn a_picture_of_any_plan_fits_a_screen_and_its_names_tell() {
    let number = |tag: &str, name: &str| -> f64 {
        let from = tag.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
        tag[from..].split('"').next().unwrap().parse().unwrap()
    };
    for columns in 1..8 {
        let plan = overlap::plan(columns, 4, 8);
        let picture = svg(&plan, &pack(&plan), &[]);
        let page = picture.split('<').find(|t| t.starts_with("svg ")).unwrap();
        assert!(number(page, "width") < 1800.0, "{columns}: {page}");
    }
    let mut plan = overlap::plan(2, 4, 8);
    let height = |plan: &StepPlan| {
        let picture = svg(plan, &pack(plan), &[]);
        number(picture.split('<').find(|t| t.starts_with("svg ")).unwrap(), "height")
    };
    let before = height(&plan);
    plan.lanes.push("nothing".into());
    assert!(height(&plan) - before < 25.0);
    // A lane takes its height in those bands alone in which something runs on it.
    let mut long = overlap::plan(40, 4, 8);
    let late = LaneId(long.lanes.len() as u8);
    long.lanes.push("late".into());
    long.ops.last_mut().unwrap().lane = late;
    let picture = svg(&long, &pack(&long), &[]);
    elements(&picture);
    let tags: Vec<&str> = picture.split('<').collect();
    let is_late = |pair: &&[&str]| pair[1] == "title>late";
    let heights: Vec<f64> =
        tags.windows(2).filter(is_late).map(|pair| number(pair[0], "height")).collect();
    assert!(heights.len() > 2 && heights.iter().filter(|h| **h > 25.0).count() == 1, "{heights:?}");
    let name = "layers.11.attention.with_a_long_name.that_differs_here";
    plan.ops[3].name = name.into();
    let picture = svg(&plan, &pack(&plan), &[]);
    assert!(picture.contains("differs_here</text>"), "{picture}");
}

#[test]
fn names_cannot_break_the_picture() {
    let mut plan = overlap::plan(1, 2, 8);
    plan.ops[3].name = "<script>&\"\u{1}".into();
    plan.buffers[0].name = "</svg>".into();
    plan.lanes[2] = "a<b".into();
    elements(&svg(&plan, &pack(&plan), &[]));
}

/// A reader of JSON that takes nothing else.
fn json(s: &[u8], at: &mut usize) {
    let expect = |at: &mut usize, c: u8| {
        assert_eq!(s[*at] as char, c as char, "at {at}");
        *at += 1;
    };
    let string = |at: &mut usize| {
        expect(at, b'"');
        while s[*at] != b'"' {
            assert!(s[*at] >= b' ');
            *at += if s[*at] == b'\\' { 2 } else { 1 };
        }
        *at += 1;
    };
    match s[*at] {
        b'{' | b'[' => {
            let object = s[*at] == b'{';
            let close = if object { b'}' } else { b']' };
            *at += 1;
            while s[*at] != close {
                if object {
                    string(at);
                    expect(at, b':');
                }
                json(s, at);
                if s[*at] == b',' {
                    *at += 1;
                    assert_ne!(s[*at], close);
                }
            }
            *at += 1;
        }
        b'"' => string(at),
        b'n' => *at += 4,
        c => {
            assert!(c.is_ascii_digit());
            while s[*at].is_ascii_digit() {
                *at += 1;
            }
        }
    }
}

#[test]
fn text_and_json_say_what_the_plan_holds() {
    let plan = overlap::plan(2, 4, 8);
    let packing = pack(&plan);
    let proven = prove(plan, packing).unwrap();
    let summary = Summary::of(&proven);
    let text = summary.to_json();
    let mut at = 0;
    json(text.as_bytes(), &mut at);
    assert_eq!(at, text.len());
    let text = render_text(&proven);
    for word in [
        "plan decode-4",
        "layer1.attention",
        "layer0.pages via slots",
        "reuse saves",
        "overlap costs",
        "padded rows of slots name the reserved block of layer0.pages",
    ] {
        assert!(text.contains(word), "{word} is missing in\n{text}");
    }
    assert_eq!(summary.ops.len(), proven.plan().ops.len());
    assert!(summary.arena.windows(2).all(|w| w[0].offset <= w[1].offset));
}

/// Damages a plan in places that a reader of plans might trust.
fn damage(rng: &mut Rng, plan: &mut StepPlan) {
    let big = [u64::MAX, u64::MAX - 63, 1 << 40, 77, 0];
    let number = |rng: &mut Rng| big[rng.below(5) as usize];
    let op = rng.below(plan.ops.len() as u64) as usize;
    let buffer = BufferId(number(rng) as u32);
    match rng.below(9) {
        0 => plan.ops[op].lane = LaneId(rng.next() as u8),
        1 => {
            let span = Span { buffer, offset: number(rng), len: number(rng) };
            plan.ops[op].reads.push(Access::Static { span, rows: None });
        }
        2 => {
            let via = BufferId(number(rng) as u32);
            plan.ops[op].writes.push(Access::Indexed { buffer, via, reserved_for_padding: false });
        }
        3 => {
            let (from, to) = (OpId(number(rng) as u32), OpId(rng.below(9) as u32));
            plan.edges.push(Edge { from, to, kind: EdgeKind::Event });
        }
        4 => {
            let (from, to) = (OpId(rng.below(6) as u32), OpId(rng.below(6) as u32));
            plan.edges.push(Edge { from, to, kind: EdgeKind::Event });
        }
        5 => {
            let b = rng.below(plan.buffers.len() as u64) as usize;
            plan.buffers[b].bytes = number(rng);
        }
        6 => {
            let b = rng.below(plan.buffers.len() as u64) as usize;
            plan.buffers[b].align = number(rng) as u32;
        }
        7 => plan.lanes.truncate(rng.below(3) as usize),
        _ => {
            let b = rng.below(plan.buffers.len() as u64) as usize;
            plan.buffers[b].rows = Some((lockstep_plan::Axis::S, number(rng)));
        }
    }
}

#[test]
fn damaged_plans_are_refused_or_proven_and_never_panic() {
    let mut refused = 0;
    for seed in 0..20_000 {
        let mut rng = Rng(seed ^ 0xdead);
        let mut plan = generate::plan(&mut rng, generate::SMALL);
        generate::edges(&mut rng, &mut plan);
        for _ in 0..1 + rng.below(2) {
            damage(&mut rng, &mut plan);
        }
        let packing = if rng.one_in(2) { pack(&plan) } else { pack_by_issue_order(&plan) };
        let odd = Packing::from_offsets(vec![Some(rng.next()); plan.buffers.len()], rng.next());
        let result = prove(plan.clone(), packing.clone());
        let _ = prove(plan.clone(), odd.clone());
        let hazards = result.err().unwrap_or_default();
        refused += usize::from(!hazards.is_empty());
        hazards.iter().for_each(|h| assert!(h.to_string().contains("Fix: ")));
        if seed % 10 == 0 {
            elements(&svg(&plan, &packing, &hazards));
            if let Some(x) = Extension::random(&plan, 2, seed) {
                x.poisons(&plan, &odd);
            }
            for fault in lockstep_plan::drill::PlanFault::ALL {
                let _ = fault.seed(&plan, seed);
            }
        }
    }
    assert!(refused > 10_000, "{refused}");
}
