//! Predictions against the story's own figures.

use super::*;
use crate::deployment::Peer;
use crate::readback::InForce;
use crate::target::Worker;

fn wish(name: &str, value: &str) -> Wish {
    Wish { name: name.into(), flags: vec![format!("--{name}")], value: value.into() }
}

fn story() -> Readback {
    let mut r = Readback::none(Kind::Sglang);
    r.version = "0.5.23".into();
    r.model = "deepseek-ai/DeepSeek-V4-Flash".into();
    r.role = Some("decode".into());
    r.buckets = vec![1, 2, 4, 8, 12, 16, 24, 32];
    r.running_max = Some(256);
    r.graph_bytes = Some(1 << 30);
    r.command = "python -m sglang.launch_server --max-queued-requests 32".into();
    r
}

fn by_script() -> Target {
    Target {
        kind: Kind::Sglang,
        launch: Launch::Script { path: "serve.sh".into() },
        router: Some("http://127.0.0.1:30000".into()),
        ..Target::direct("http://127.0.0.1:30002")
    }
}

#[test]
fn the_storys_change_is_predicted_with_its_second_order_effects() {
    let wishes = [wish("cuda-graph-max-bs-decode", "96")];
    let p = predict(&by_script(), &story(), &wishes, &Grounds::default());
    assert_eq!(p.buckets_after, [1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96]);
    assert_eq!(p.new_buckets().len(), 8);
    // Three times the largest batch: at most three times the memory.
    assert_eq!(p.memory.kept, Some(2 << 30));
    assert_eq!(p.downtime_seconds, None);
    let ids: Vec<&str> = p.findings.iter().map(|f| f.id.as_str()).collect();
    for id in [
        "sglang-v4-overlap-forks",
        "sglang-graphs-shrink-the-pool",
        "sglang-queue-limit-in-pd",
        "running-above-largest-bucket",
        "code-path",
    ] {
        assert!(ids.contains(&id), "{id} is not in {ids:?}");
    }
    let overlap = p.findings.iter().find(|f| f.id == "sglang-v4-overlap-forks").unwrap();
    assert!(overlap.words.contains("new buckets [40, 48, 56, 64] fork, [72, 80, 88, 96] do not"));
    assert!(p.blockers().is_empty());
}

/// Each of 199,999 capture sizes was looked for in a list of as many, again and again: a dry run
/// took a minute.
#[test]
fn a_server_may_name_any_number_of_capture_sizes() {
    let all: Vec<u32> = (1..200_000).collect();
    let odd: Vec<u32> = all.iter().copied().filter(|n| n % 2 == 1).collect();
    let r = Readback { buckets: all.clone(), ..story() };
    let p = predict(&by_script(), &r, &[wish("max-queued-requests", "8")], &Grounds::default());
    assert_eq!((p.new_buckets().len(), p.buckets_after.len()), (0, 199_999));
    assert_eq!(without(&all, &odd).len(), 99_999);
}

fn peer(port: u16, role: &str, command: &str, max_bs: Option<&str>) -> Peer {
    let mut r = Readback { role: Some(role.into()), command: command.into(), ..story() };
    if let Some(value) = max_bs {
        let value = value.into();
        r.settings.insert("cuda-graph-max-bs-decode".into(), InForce { value, source: None });
    }
    let worker = Worker { url: format!("http://127.0.0.1:{port}"), role: None };
    Peer { worker, readback: Some(r) }
}

/// The story's deployment: a router, a prefill worker, two decode workers, one of which is changed.
#[test]
fn what_a_role_means_is_said() {
    let wishes = [wish("cuda-graph-max-bs-decode", "96")];
    let prefill = "sglang --max-queued-requests 32 --cuda-graph-max-bs-decode 32";
    let around = Deployment {
        peers: vec![peer(30003, "prefill", prefill, None), peer(30004, "decode", "", Some("32"))],
        ..Deployment::default()
    };
    let grounds = Grounds { around, ..Grounds::default() };
    let p = predict(&by_script(), &story(), &wishes, &grounds);
    let words = |id: &str| -> Vec<&str> {
        p.findings.iter().filter(|f| f.id == id).map(|f| f.words.as_str()).collect()
    };
    assert!(words("requests-through-router")[0].contains("go through http://127.0.0.1:30000"));
    assert!(words("others-carry")[0].contains("1 other decode workers"), "{:?}", p.findings);
    assert!(words("workers-differ")[0].contains("http://127.0.0.1:30004 has 32"));
    // The limit that does nothing, at the changed worker and at the prefill worker.
    assert_eq!(words("sglang-queue-limit-in-pd").len(), 2, "{:?}", p.findings);
    assert!(words("sglang-decode-graphs-in-prefill")[0].starts_with("at http://127.0.0.1:30003"));
    assert!(p.blockers().is_empty(), "{:?}", p.findings);

    let alone = Grounds::default();
    let p = predict(&by_script(), &story(), &wishes, &alone);
    let only = p.findings.iter().find(|f| f.id == "only-worker").unwrap();
    assert!(only.words.contains("the only decode worker"), "{only:?}");
    let no_router = Target { router: None, ..by_script() };
    let p = predict(&no_router, &story(), &wishes, &alone);
    assert!(p.blockers()[0].contains("answers no request by itself"), "{:?}", p.findings);
    let around = Deployment { said_role: Some("prefill".into()), ..Deployment::default() };
    let p = predict(&by_script(), &story(), &wishes, &Grounds { around, ..alone });
    assert!(p.blockers()[0].contains("runs as decode, and is listed as prefill"));
}

#[test]
fn a_server_of_another_machine_is_not_restarted_from_here() {
    let there = Target { url: "http://192.0.2.7:30002".into(), ..by_script() };
    let wishes = [wish("cuda-graph-max-bs-decode", "96")];
    let p = predict(&there, &story(), &wishes, &Grounds::default());
    assert!(p.blockers()[0].contains("is not on this machine"), "{:?}", p.findings);
    // A tunnel to it is on this machine, and would be ended in its place.
    let tunnel = Grounds { holder: Some("ssh".into()), ..Grounds::default() };
    let p = predict(&by_script(), &story(), &wishes, &tunnel);
    assert!(p.blockers()[0].contains("is held by ssh"), "{:?}", p.findings);
}

#[test]
fn a_flag_that_the_version_lost_stops_the_change() {
    let p =
        predict(&by_script(), &story(), &[wish("cuda-graph-max-bs", "96")], &Grounds::default());
    assert!(p.blockers().iter().any(|b| b.contains("ambiguous")), "{:?}", p.findings);
}

#[test]
fn memory_under_the_reserve_stops_the_change() {
    let target = Target { reserve_bytes: 1 << 30, ..by_script() };
    let grounds = Grounds { free_bytes: Some(5 << 29), ..Grounds::default() };
    let wishes = [wish("cuda-graph-max-bs-decode", "96")];
    let p = predict(&target, &story(), &wishes, &grounds);
    assert!(p.blockers().iter().any(|b| b.contains("must stay free")), "{:?}", p.findings);
    let grounds = Grounds { free_bytes: Some(4 << 30), ..grounds };
    assert!(predict(&target, &story(), &wishes, &grounds).blockers().is_empty());
}

/// vLLM's limit was raised below captures that stay as they are: their size was known, and "does not
/// tell" was said.
#[test]
fn captures_that_stay_take_what_they_take() {
    let mut r = Readback::none(Kind::Vllm);
    r.settings.insert("max-num-seqs".into(), InForce { value: "32".into(), source: None });
    (r.buckets, r.graph_bytes) = (vec![1, 2, 4, 8, 16, 24, 32], Some(96_636_764));
    let p = predict(&by_script(), &r, &[wish("max-num-seqs", "64")], &Grounds::default());
    assert_eq!((p.memory.kept, p.new_buckets()), (Some(0), vec![]), "{}", p.memory.method);
    assert!(p.memory.method.contains("96636764"), "{}", p.memory.method);
}

#[test]
fn the_past_is_told() {
    assert_eq!(past_error(&[(300, 100), (90, 100)]), "off by at most +200% in 2 earlier changes");
    assert_eq!(past_error(&[]), "no earlier change to compare with");
}

#[test]
fn ladders_are_the_servers_own() {
    assert_eq!(sglang_ladder(256).len(), 36);
    assert_eq!(sglang_ladder(32).len(), 8);
    assert_eq!(vllm_ladder(16), [1, 2, 4, 8, 16]);
}

#[test]
fn our_own_knobs_are_judged_by_the_registry() {
    let mut r = Readback::none(Kind::Lockstep);
    r.command = "lockstep serve --graph-max-bs 32".into();
    r.buckets = vec![1, 2, 4, 8];
    let p = |name: &str, value: &str| {
        predict(&Target::direct("http://a:1"), &r, &[wish(name, value)], &Grounds::default())
    };
    let fine = p("decode.graph-max-bs", "16");
    assert!(fine.blockers().is_empty() && fine.new_buckets() == [12, 16]);
    assert_eq!(fine.downtime_seconds, Some(0.0));
    assert!(fine.findings.iter().any(|f| f.id == "flag-beats-file"));
    assert!(p("pool.kv-memory", "2GiB").blockers()[0].contains("restart"));
    assert!(p("server.port", "1").blockers()[0].contains("restart"));
}

/// That a staged generation "takes as much again" once stood where no bucket comes, as if some did.
#[test]
fn a_live_change_without_new_buckets_says_so() {
    let mut r = Readback::none(Kind::Lockstep);
    r.buckets = vec![1, 2, 4, 8];
    let report = json!({"arena_bytes": 3000, "shadow_bytes": 100, "buckets": []});
    let grounds = Grounds { generation: Some(report), ..Grounds::default() };
    let method = |after: &[u32]| {
        let m = memory(&r, after, &grounds);
        assert_eq!((m.staging, m.kept), (Some(3100), Some(0)));
        m.method
    };
    assert!(method(&[1, 2, 4]).starts_with("no new bucket; "));
    assert!(method(&[1, 2, 4, 8, 16]).contains("as much again"));
}
