//! The load generator against servers whose figures are known: counts are asserted, times are not.

mod common;

use common::{Act, FINISH, answer, serve, stream_of, token};
use lockstep_check::bench::{
    Arrivals, Dataset, Form, Point, Progress, Server, Settings, Slo, Workload, csv, line, page,
    read, sweep, table,
};
use lockstep_check::client::{Call, Client, Target};
use std::time::Duration;

fn usage(prompt: u32, output: u32) -> String {
    format!(r#"{{"choices":[],"usage":{{"prompt_tokens":{prompt},"completion_tokens":{output}}}}}"#)
}

fn good(prompt: u32) -> Vec<Act> {
    let (a, u) = (token("a"), usage(prompt, 2));
    let first = stream_of(&[&a], false);
    let rest = stream_of(&[&a, &a, FINISH, &u, "[DONE]"], true).split_off(first.len());
    vec![Act::Send(first), Act::Wait(Duration::from_millis(5)), Act::Send(rest)]
}

fn server_at(url: &str) -> Server {
    Server {
        client: Client::new(Target::parse(url).unwrap().with_model(Some("m"))),
        call: Call::Completions,
        form: Form::Ids { low: 10, high: 20, extra: 0 },
        length_fields: vec![],
        has_usage: true,
        context_tokens: None,
        owned_by: String::new(),
    }
}

fn settings(loads: Vec<Arrivals>, requests: u32) -> Settings {
    let workload = Workload {
        dataset: Dataset::Fixed,
        input_tokens: 16,
        output_tokens: 2,
        prefix_tokens: 0,
        groups: 1,
        turns: 1,
        context_tokens: None,
    };
    Settings {
        loads,
        workload,
        requests: Some(requests),
        seed: 1,
        ci: 0.5,
        repeats_min: 2,
        repeats_max: 2,
        slo: Slo { e2e_ms: Some(60_000.0), ..Slo::default() },
        has_warmup: true,
    }
}

async fn points(server: &Server, settings: &Settings) -> Vec<Point> {
    let mut points = Vec::new();
    sweep(server, settings, &Progress::default(), |p| points.push(p)).await;
    points
}

#[tokio::test]
async fn every_request_is_counted_once_and_in_its_class() {
    let full = answer("429 X", "retry-after: 0\r\n", r#"{"error":{"message":"full"}}"#);
    let (refuse, fail) = (vec![Act::Send(full)], vec![Act::Send(answer("500 X", "", "boom"))]);
    // The two of the warm-up, then one refused and one failed.
    let script = serve(vec![good(16), good(16), refuse, fail, good(16)]).await;
    let settings = settings(vec![Arrivals::Closed { concurrency: 2 }], 6);
    let points = points(&server_at(&script.url), &settings).await;
    let (p, e) = (&points[0], points[0].extra.as_ref().unwrap());
    assert_eq!((e.sent, e.refused, e.errors, e.timeouts, p.totals.completed), (12, 1, 1, 0, 10));
    assert_eq!((p.totals.total_input_tokens, p.totals.total_output_tokens), (160, 20));
    assert_eq!((p.latencies.ttft.count, p.latencies.itl.count), (10, 10));
    assert_eq!((e.warmup_requests, p.totals.max_concurrent_requests), (2, 2));
    assert_eq!(p.goodput.as_ref().unwrap().slo_attainment, 10.0 / 12.0);
    assert!(e.failures.iter().any(|f| f.contains("full")), "{:?}", e.failures);
    let text = format!("{}\n", line(p));
    let back = read(&text).unwrap().0.remove(0).totals;
    assert_eq!((back.completed, back.total_output_tokens), (10, 20));
    assert!((back.output_throughput / p.totals.output_throughput - 1.0).abs() < 1e-9);
    assert!(table(&points).contains("TTFT") && csv(&points).lines().count() == 2);
    assert!(page(&points, &[]).contains("<svg"));
}

#[tokio::test]
async fn an_open_load_sends_what_it_planned() {
    let script = serve(vec![good(16)]).await;
    let load = Arrivals::Open { rate: 200.0, concurrency_max: 64 };
    let points = points(&server_at(&script.url), &settings(vec![load], 20)).await;
    assert_eq!((points[0].totals.completed, points[0].request_rate), (40, Some(200.0)));
}

#[tokio::test]
async fn answers_of_another_length_are_told() {
    let script = serve(vec![good(16)]).await;
    let mut settings = settings(vec![Arrivals::Closed { concurrency: 1 }], 2);
    settings.workload.output_tokens = 7;
    settings.has_warmup = false;
    let points = points(&server_at(&script.url), &settings).await;
    let e = points[0].extra.as_ref().unwrap();
    assert_eq!((e.output_unlike, e.output_mean, e.output_asked_mean), (4, 2.0, 7.0));
}

#[tokio::test]
async fn a_probe_finds_what_the_server_takes() {
    let models = answer("200 OK", "", r#"{"data":[{"id":"m","max_model_len":99}]}"#);
    let bad = || vec![Act::Send(answer("400 X", "", "no"))];
    let listed = || vec![Act::Send(models.clone())];
    // Ids up to 32,000 are refused, up to 16,000 taken; of the two fields only the first is.
    let script = serve(vec![listed(), listed(), bad(), good(16), bad(), good(32)]).await;
    let client = Client::new(Target::parse(&script.url).unwrap());
    let server = Server::probe(client, None).await.unwrap();
    assert_eq!(server.form, Form::Ids { low: 2000, high: 16_000, extra: 0 });
    assert_eq!(server.length_fields, ["ignore_eos"]);
    assert_eq!((server.context_tokens, server.has_usage), (Some(99), true));
    // No ids at all: words are counted, 10 tokens around them and one each.
    let mut acts = vec![listed(), listed()];
    acts.extend((0..9).map(|_| bad()));
    acts.extend([good(42), good(170), good(32)]);
    let script = serve(acts).await;
    let client = Client::new(Target::parse(&script.url).unwrap());
    let server = Server::probe(client, None).await.unwrap();
    assert_eq!(server.form, Form::Words { extra: 10.0, per_word: 1.0 });
    assert_eq!(server.length_fields, ["ignore_eos", "min_tokens"]);
}

#[tokio::test]
async fn the_wish_to_end_ends_a_run() {
    let script = serve(vec![vec![Act::Wait(Duration::from_secs(60))]]).await;
    let (server, progress) = (server_at(&script.url), Progress::default());
    let settings = settings(vec![Arrivals::Closed { concurrency: 3 }], 9);
    let stopper = progress.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        stopper.stop();
    });
    let mut taken = 0;
    sweep(&server, &settings, &progress, |_| taken += 1).await;
    assert_eq!(taken, 0, "nothing whole was measured");
}
