//! A staged generation whose plans a faulty builder made: the prover refuses it, says why, and what
//! serves is as it was.

use lockstep_device::CpuDevice;
use lockstep_engine::{EngineParts, Handle, Knobs, start};
use lockstep_flow::{
    Event, EventKind, EventSink, GenerationReport, GenerationState, Micros, Request, RequestId,
    SamplingParams, Token,
};
use lockstep_plan::drill::PlanFault;
use lockstep_sim::drill::FaultyDraft;
use lockstep_sim::tiny_model;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

fn engine(fault: PlanFault) -> Handle {
    let knobs = Knobs {
        graph_max_bs: 4,
        running_max: 4,
        queued_max: 4,
        chunk_tokens: 64,
        kv_bytes: 8 << 20,
        context_tokens: 256,
        ..Knobs::default()
    };
    let device = CpuDevice::new(1, "auto").unwrap();
    let parts = EngineParts {
        draft: Some(Arc::new(FaultyDraft { fault, seed: 3 })),
        ..EngineParts::of(Box::new(device), tiny_model().unwrap(), knobs)
    };
    start(parts).unwrap_or_else(|e| panic!("{fault:?}: {e}")).handle
}

struct Sender(mpsc::Sender<EventKind>);

impl EventSink for Sender {
    fn emit(&mut self, event: Event) -> bool {
        self.0.send(event.kind).is_ok()
    }
}

fn tokens(handle: &Handle, id: u64) -> Vec<u32> {
    let params =
        SamplingParams { temperature: 0.0, max_tokens: 12, ignore_eos: true, ..Default::default() };
    let request = Request {
        id: RequestId(id),
        prompt: (3..40).map(Token).collect(),
        params,
        grammar: None,
        arrived: Micros(0),
        deadline: None,
        adapter: 0,
        use_prefix_cache: true,
    };
    let (sender, events) = mpsc::channel();
    handle.submit(request, Box::new(Sender(sender))).unwrap();
    let token = |kind| match kind {
        EventKind::Token { token, .. } => Some(token.0),
        EventKind::Failed { failure, .. } => panic!("{failure}"),
        _ => None,
    };
    events.iter().filter_map(token).collect()
}

/// Waits for the verdict on generation `number`.
fn verdict(handle: &Handle, number: u64) -> GenerationReport {
    let end = Instant::now() + Duration::from_secs(300);
    loop {
        let status = handle.status();
        let report = status.generation_report(number).expect("it was staged");
        if !report.state.is_on_its_way() {
            return report.clone();
        }
        assert!(Instant::now() < end, "no verdict: {report:#?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn the_prover_refuses_a_staged_generation_and_the_live_one_goes_on() {
    for fault in PlanFault::ALL {
        if fault == PlanFault::UndeclaredScratch {
            // What a kernel does behind its plan's back is nothing that a plan could say.
            continue;
        }
        let handle = engine(fault);
        let before = tokens(&handle, 1);
        assert_eq!(before.len(), 12);
        let number = handle.stage(&[]).unwrap();
        let report = verdict(&handle, number);
        let reason = report.reason.clone().unwrap_or_default();
        assert_eq!(report.state, GenerationState::Rejected, "{fault:?}: {reason}");
        assert!(reason.contains("is refused") && reason.contains("hazards in all"), "{reason}");
        let states: Vec<GenerationState> = report.moves.iter().map(|m| m.0).collect();
        assert_eq!(states, [GenerationState::Planned, GenerationState::Rejected], "{fault:?}");
        let status = handle.status();
        assert_eq!((status.generation, status.arenas.arenas), (1, 2), "{fault:?}");
        assert_eq!(tokens(&handle, 2), before, "{fault:?}");
        handle.shutdown();
    }
}
