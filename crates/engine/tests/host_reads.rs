//! What the host reads of a step once it has run is what the plan declares as read by the host: an
//! output, or an input that the host itself wrote. Logits were a transient once that the audit,
//! canaries and taps looked at, and no proof had their look before the next step's writers.
#![forbid(unsafe_code)]

mod common;

use common::fault::{FaultDevice, Looks};
use common::models::tiny;
use common::stage::{graph_max_bs, verified};
use common::{Probe, Recorder, Rig};
use lockstep_flow::{AuditPart, SamplingParams, Token};
use lockstep_plan::BufferKind;
use std::path::{Path, PathBuf};

fn models() -> [PathBuf; 2] {
    let v4 = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/dsv4-tiny");
    [tiny("qwen3"), v4]
}

fn rig(rate: u32) -> Rig {
    Rig::default().with(|k| {
        (k.running_max, k.graph_max_bs, k.chunk_tokens) = (8, 8, 64);
        (k.kv_bytes, k.audit_rate, k.watch_s) = (64 << 20, rate, 0);
    })
}

/// Asks for everything that a result can show, and is made to say one text.
fn probe(i: u32) -> Probe {
    let params = SamplingParams {
        prompt_logprobs: true,
        logprobs: Some(3),
        max_tokens: 6,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let forced = (i == 0).then(|| (0..4).map(|t| Token(5 + t)).collect());
    Probe { forced, ..Probe::new((0..40).map(|t| 3 + (t * 7 + i) % 200), params) }
}

fn assert_declared(looks: &Looks, expected: &[&str]) {
    let looks = looks.lock().unwrap();
    let names: Vec<&str> = looks.keys().map(String::as_str).collect();
    assert_eq!(names, expected);
    for (name, kind) in &*looks {
        let of_host = matches!(kind, BufferKind::Output { .. } | BufferKind::Input { .. });
        assert!(of_host, "the host reads {name}, which is {kind:?}");
    }
}

#[test]
fn taps_and_the_audit_read_declared_outputs_alone() {
    for model in models() {
        let device = FaultDevice::hooked(|_, _| {});
        let looks = device.looks.clone();
        let mut engine = rig(1).engine_on(&model, Box::new(device), true);
        engine.together(&[probe(0), probe(1), probe(2)], &[]);
        let audited = engine.status().audit.part(AuditPart::Twin);
        assert!(audited.audits > 3 && audited.mismatches == 0, "{audited:?}");
        assert_declared(&looks, &["logits", "results"]);
    }
}

#[test]
fn canaries_read_declared_outputs_alone() {
    for model in models() {
        let device = FaultDevice::hooked(|_, _| {});
        let looks = device.looks.clone();
        let handle = rig(0).started(&model, Box::new(device));
        let number = verified(&handle, &graph_max_bs(4));
        handle.flip(number, None).unwrap();
        let sink = Recorder::default();
        handle.submit(probe(1).request(1), Box::new(sink.clone())).unwrap();
        common::stage::wait(&handle, "the end of a request", |_| sink.ended());
        assert_declared(&looks, &["logits", "results", "write_slots"]);
    }
}
