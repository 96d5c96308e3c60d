//! Predictions against the story's own figures.

use super::*;

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
        ..Target::direct("http://a:1")
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
    assert!(p("decode.graph-max-bs", "0").blockers()[0].contains("whole number"));
    assert!(p("pool.kv-memory", "2GiB").blockers()[0].contains("restart"));
    assert!(p("server.port", "1").blockers()[0].contains("restart"));
}
