//! More than one lane for real: a model's plan spread over four lanes becomes a graph with
//! branches, and gives the bits of one lane. And the drill that needs such a graph: transients that
//! share bytes by the order in which ops are issued. The prover refuses that packing; with the
//! prover passed over, the device captures it anyway, and what clients get is visibly wrong.

use crate::Table;
use crate::bed::{Ask, Bed, Keep, Outcome, Rng, gpu, greedy, model};
use lockstep_cuda::CudaDevice;
use lockstep_engine::{Draft, EngineError, Knobs};
use lockstep_flow::AuditPart;
use lockstep_model::Model;
use lockstep_plan::{InOutBytes, Packing, StepPlan, pack_beside, pack_by_issue_order};
use lockstep_sim::spread;
use std::path::Path;
use std::sync::Arc;

/// Seeds of a drill, as everywhere in `docs/drills.md`.
const RUNS: u64 = 16;
/// Tokens of a request.
const TOKENS: u32 = 24;
/// Requests of a run.
const REQUESTS: usize = 8;

/// Every plan on four lanes, packed by its partial order.
struct Spread;

impl Draft for Spread {
    fn draft(&self, _: u64, plan: StepPlan, room: InOutBytes) -> (StepPlan, Packing) {
        let plan = spread(&plan);
        let packing = pack_beside(&plan, room);
        (plan, packing)
    }
}

/// The same, packed by issue order.
struct ByIssueOrder;

impl Draft for ByIssueOrder {
    fn draft(&self, _: u64, plan: StepPlan, _: InOutBytes) -> (StepPlan, Packing) {
        let plan = spread(&plan);
        let packing = pack_by_issue_order(&plan);
        (plan, packing)
    }
}

fn knobs(audit_rate: u32) -> Knobs {
    Knobs {
        graph_max_bs: 8,
        running_max: 8,
        chunk_tokens: 256,
        kv_bytes: 64 << 20,
        audit_rate,
        prefix_cache: false,
        context_tokens: 512,
        watch_s: 0,
        ..Knobs::default()
    }
}

fn asks(seed: u64) -> Vec<Ask> {
    let mut rng = Rng(0x1a9e5 + seed);
    let one = |_| {
        let len = 1 + rng.below(60) as usize;
        Ask { prompt: rng.prompt(len, 256), params: greedy(TOKENS) }
    };
    (0..REQUESTS).map(one).collect()
}

fn bed(
    device: CudaDevice,
    model: Model,
    audit_rate: u32,
    draft: Option<Arc<dyn Draft>>,
) -> Result<Bed, EngineError> {
    Bed::drafted((Box::new(device), model), knobs(audit_rate), Keep::Rows, draft)
}

/// Whether two runs gave the same tokens and the same bits of every row of logits.
fn same(a: &[Outcome], b: &[Outcome]) -> bool {
    let bits =
        |o: &Outcome| -> Vec<u32> { o.rows.values().flatten().map(|v| v.to_bits()).collect() };
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.tokens == b.tokens && bits(a) == bits(b))
}

fn count(of: impl Iterator<Item = bool>) -> usize {
    of.filter(|b| *b).count()
}

pub fn run(fixtures: &Path, table: &mut Table) {
    let path = fixtures.join("tiny/qwen3");
    let open = || model(&path, false);
    let must = |bed: Result<Bed, EngineError>| bed.unwrap_or_else(|e| panic!("{e}"));
    let seeds = || (1..=RUNS).map(asks);

    let mut one = must(bed(gpu(), open(), 0, None));
    let yardstick: Vec<Vec<Outcome>> = seeds().map(|a| one.run(&a, 3)).collect();
    let mut lanes = must(bed(gpu(), open(), 0, Some(Arc::new(Spread))));
    let clean = count(seeds().zip(&yardstick).map(|(a, was)| same(&lanes.run(&a, 3), was)));
    table.verdict(
        clean == RUNS as usize,
        format!("lanes: four lanes give the bits of one in {clean} of {RUNS} runs"),
    );
    let mut audited = must(bed(gpu(), open(), 1, Some(Arc::new(Spread))));
    let clean = count(seeds().zip(&yardstick).map(|(a, was)| same(&audited.run(&a, 3), was)));
    let mismatches = audited.status().audit.part(AuditPart::Twin).mismatches;
    table.verdict(
        clean == RUNS as usize && mismatches == 0,
        format!("lanes: the same with every step audited, {mismatches} mismatches"),
    );

    match bed(gpu(), open(), 0, Some(Arc::new(ByIssueOrder))) {
        Err(EngineError::Refused { hazards, .. }) => {
            table.verdict(
                true,
                format!("drill arena-reuse-by-issue-order: refused: {}", hazards[0]),
            );
        }
        Err(e) => table.verdict(false, format!("drill arena-reuse-by-issue-order: {e}")),
        Ok(_) => {
            table.verdict(false, "drill arena-reuse-by-issue-order: not refused".into());
        }
    }
    #[cfg(feature = "lab")]
    bypassed(&open, &yardstick, table);
    #[cfg(not(feature = "lab"))]
    table.line("     the drill itself needs a suite built with `--features lab`".into());
}

/// What the refused packing does where it is captured anyway.
#[cfg(feature = "lab")]
fn bypassed(open: &dyn Fn() -> Model, yardstick: &[Vec<Outcome>], table: &mut Table) {
    let faulty = |audit_rate| {
        let mut device = gpu();
        device.set_packing(pack_by_issue_order);
        let bed = bed(device, open(), audit_rate, Some(Arc::new(Spread)));
        bed.unwrap_or_else(|e| panic!("{e}"))
    };
    let seeds = || (1..=RUNS).map(asks);
    let mut unseen = faulty(0);
    let wrong = count(seeds().zip(yardstick).map(|(a, was)| !same(&unseen.run_any(&a, 3), was)));
    let tokens = count(seeds().zip(yardstick).map(|(a, was)| {
        let now = unseen.run_any(&a, 3);
        now.iter().zip(was).any(|(a, b)| a.tokens != b.tokens)
    }));
    table.verdict(
        wrong == RUNS as usize,
        format!(
            "drill arena-reuse-by-issue-order, prover passed over, audit off: bits wrong in {wrong} \
             of {RUNS} runs, tokens in {tokens}"
        ),
    );
    let seen = count(seeds().map(|a| {
        let mut bed = faulty(1);
        bed.run_any(&a, 3);
        bed.status().audit.part(AuditPart::Twin).mismatches > 0
    }));
    table.verdict(
        seen == RUNS as usize,
        format!(
            "drill arena-reuse-by-issue-order: the audit's twin sees it in {seen} of {RUNS} runs"
        ),
    );
    let refused = gpu().graph_that_allocates();
    table.verdict(
        matches!(refused, Err(lockstep_cuda::CudaError::GraphAllocates { .. })),
        match refused {
            Err(e) => format!("a graph with an allocation node: {e}"),
            Ok(()) => "a graph with an allocation node was not refused".into(),
        },
    );
}
