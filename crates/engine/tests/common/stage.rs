//! Staging from a test's side.

use super::outcome::{Outcome, Rows};
use super::{Probe, Recorder, Rig};
use lockstep_engine::{Handle, KnobChange};
use lockstep_flow::generation::GenerationReport;
use lockstep_flow::knobs::find;
use lockstep_flow::{EngineStatus, GenerationState as State, RequestId};
use std::time::{Duration, Instant};

/// Nothing here takes longer unless it hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// A rig with room to flip.
pub fn rig() -> Rig {
    Rig::default().with(|k| {
        (k.running_max, k.queued_max, k.graph_max_bs) = (96, 64, 32);
        (k.kv_bytes, k.context_tokens, k.chunk_tokens) = (128 << 20, 1024, 64);
        (k.audit_rate, k.watch_s) = (50, 0);
    })
}

pub fn change(name: &str, value: &str) -> KnobChange {
    let knob = find(name).unwrap_or_else(|| panic!("{name} is a knob"));
    (knob, knob.parse(value).unwrap_or_else(|e| panic!("{e}")))
}

pub fn graph_max_bs(n: u32) -> [KnobChange; 1] {
    [change("decode.graph-max-bs", &n.to_string())]
}

/// Looks at the status until it is as wanted.
pub fn wait(handle: &Handle, what: &str, done: impl Fn(&EngineStatus) -> bool) -> EngineStatus {
    let end = Instant::now() + PATIENCE;
    loop {
        let status = handle.status();
        if done(&status) {
            return status;
        }
        assert!(Instant::now() < end, "{what} never came: {:#?}", status.generations);
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn report(status: &EngineStatus, number: u64) -> &GenerationReport {
    let found = status.generation_report(number);
    found.unwrap_or_else(|| panic!("no generation {number}: {:#?}", status.generations))
}

/// Waits until a staged generation is verified or over.
pub fn settled(handle: &Handle, number: u64) -> GenerationReport {
    let status = wait(handle, "a verdict", |s| !report(s, number).state.is_on_its_way());
    report(&status, number).clone()
}

pub fn verified(handle: &Handle, changes: &[KnobChange]) -> u64 {
    let number = handle.stage(changes).unwrap_or_else(|e| panic!("{e}"));
    let report = settled(handle, number);
    assert_eq!(report.state, State::Verified, "{:?}", report.reason);
    number
}

/// Submits probes; the `i`th is request `i`.
pub fn submit(handle: &Handle, probes: &[Probe]) -> Vec<Recorder> {
    submit_from(handle, probes, 0)
}

/// As [`submit`], but for the first so many.
pub fn submit_from(handle: &Handle, probes: &[Probe], from: usize) -> Vec<Recorder> {
    let one = |(i, probe): (usize, &Probe)| {
        let sink = Recorder::default();
        handle.submit(probe.request(i as u64), Box::new(sink.clone())).unwrap();
        sink
    };
    probes.iter().enumerate().skip(from).map(one).collect()
}

/// What clients have seen of an engine that keeps no logits.
pub fn outcomes(sinks: &[Recorder]) -> Vec<Outcome> {
    let mut rows = Rows::default();
    let one = |(i, s): (usize, &Recorder)| {
        Outcome::of(&s.0.lock().unwrap(), rows.take(RequestId(i as u64)).0)
    };
    sinks.iter().enumerate().map(one).collect()
}

/// A rig whose token pool one request fills: nothing else gets a page then.
pub fn one_fills_the_pool() -> Rig {
    rig().with(|k| (k.running_max, k.graph_max_bs) = (1, 1))
}

/// Bytes of arenas, arenas, executables.
pub fn arenas(handle: &Handle) -> (u64, u32, u32) {
    let a = handle.status().arenas;
    (a.bytes, a.arenas, a.executables)
}
