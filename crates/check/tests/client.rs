//! The client against servers that do everything wrong, and one that does it right in odd pieces.

mod common;

use common::{Act, FINISH, Script, USAGE, answer, serve, stream_of, token};
use lockstep_check::client::{
    Abort, Client, Exchange, Outcome, Phase, ProtocolFault, Reading, Target, Timeouts,
};
use serde_json::json;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn client(script: &Script) -> Client {
    Client::new(Target::parse(&script.url).unwrap())
}

async fn ask(client: &Client, reading: Reading) -> Exchange {
    client.completions(&json!({"prompt": "x", "stream": true}), reading).await
}

/// Of a server that says nothing for a minute: the client's patience is short.
async fn stalled(acts: Vec<Act>) -> Exchange {
    let script = serve(vec![[acts, vec![Act::Wait(Duration::from_secs(60))]].concat()]).await;
    let timeouts = Timeouts { idle: Duration::from_secs(2), ..Timeouts::default() };
    let target = Target::parse(&script.url).unwrap().with_timeouts(timeouts);
    ask(&Client::new(target), Reading::default()).await
}

async fn once(acts: Vec<Act>) -> Exchange {
    let script = serve(vec![acts]).await;
    ask(&client(&script), Reading::default()).await
}

#[tokio::test]
async fn a_stream_in_pieces_of_one_byte_is_the_same_stream() {
    let bytes = stream_of(&[&token("a"), &token("b"), FINISH, USAGE, "[DONE]"], true);
    let pieces = bytes.iter().flat_map(|&b| [Act::Send(vec![b]), Act::Wait(Duration::ZERO)]);
    let e = once(pieces.collect()).await;
    assert_eq!(e.outcome, Outcome::Done);
    assert_eq!((e.text.as_str(), e.chunks.len(), e.output_tokens()), ("ab", 2, 2));
    assert_eq!(e.finish_reason.as_deref(), Some("length"));
    assert!(e.has_done_marker && e.sent_after <= e.first_byte_after);
    assert!(e.first_byte_after <= e.first_token_after && e.chunks[0].after <= e.ended_after);
}

#[tokio::test]
async fn connections_are_used_again_and_closed_ones_replaced() {
    let good = stream_of(&[&token("a"), FINISH, "[DONE]"], true);
    let then_close = vec![Act::Send(good.clone()), Act::Close];
    let script =
        serve(vec![vec![Act::Send(good.clone())], then_close, vec![Act::Send(good)]]).await;
    let client = client(&script);
    for _ in 0..4 {
        assert_eq!(ask(&client, Reading::default()).await.outcome, Outcome::Done);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(script.requests.load(Ordering::SeqCst), 4);
    assert_eq!(script.connections.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_refusal_is_not_an_error() {
    let body = r#"{"error":{"message":"full"}}"#;
    let e = once(vec![Act::Send(answer("429 X", "retry-after: 7\r\n", body))]).await;
    let message = "full".to_owned();
    assert_eq!(e.outcome, Outcome::Refused { status: 429, retry_after_s: Some(7), message });
    let e = once(vec![Act::Send(answer("500 X", "", "boom"))]).await;
    assert_eq!(e.outcome, Outcome::Status { status: 500, message: "boom".into() });
    assert_eq!(e.status, Some(500));
}

#[tokio::test]
async fn cuts_stalls_and_errors_in_a_stream_are_told_apart() {
    let begun = || Act::Send(stream_of(&[&token("a")], false));
    let e = once(vec![begun(), Act::Close]).await;
    assert!(matches!(e.outcome, Outcome::Cut { .. }), "{}", e.outcome);
    assert_eq!(e.text, "a", "what came before the cut is kept");
    let e = stalled(vec![begun()]).await;
    assert_eq!(e.outcome, Outcome::Timeout { phase: Phase::Idle });
    let e = stalled(vec![]).await;
    assert_eq!(e.outcome, Outcome::Timeout { phase: Phase::FirstByte });
    let e = once(vec![Act::Close]).await;
    assert!(matches!(e.outcome, Outcome::Cut { .. }), "{}", e.outcome);
    let e = once(vec![Act::Send(stream_of(&[&token("a")], true))]).await;
    assert!(matches!(e.outcome, Outcome::Cut { .. }), "ended cleanly, but not finished");
    let e = once(vec![Act::Send(stream_of(&[r#"{"error":{"message":"lost"}}"#], true))]).await;
    assert_eq!(e.outcome, Outcome::Failed { message: "lost".into() });
    let e = once(vec![Act::Send(stream_of(&["{\"choices\":[{"], true))]).await;
    assert!(matches!(e.outcome, Outcome::Protocol { fault: ProtocolFault::Json { .. } }));
}

#[tokio::test]
async fn streams_that_end_without_a_marker_are_done_if_they_finished() {
    let e = once(vec![Act::Send(stream_of(&[&token("a"), FINISH], true))]).await;
    assert_eq!((e.outcome, e.has_done_marker), (Outcome::Done, false));
}

#[tokio::test]
async fn a_whole_answer_is_read_too() {
    let body = r#"{"choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}],
                   "usage":{"prompt_tokens":3,"completion_tokens":5}}"#;
    let json = "content-type: application/json\r\n";
    let script = serve(vec![vec![Act::Send(answer("200 OK", json, body))]]).await;
    let reading = Reading { raw_bytes_max: 10, ..Reading::default() };
    let e = client(&script).chat(&json!({"messages": []}), reading).await;
    assert_eq!((e.outcome, e.text.as_str()), (Outcome::Done, "hi"));
    assert_eq!((e.chunks.len(), e.chunks[0].tokens), (1, 5));
    assert_eq!(e.raw, &body.as_bytes()[..10]);
}

#[tokio::test]
async fn an_abort_closes_the_connection() {
    let mut acts = vec![Act::Send(stream_of(&[&token("a"), &token("b")], false))];
    for _ in 0..100 {
        acts.push(Act::Wait(Duration::from_millis(20)));
        acts.push(Act::Send(b"8\r\n: ping\n\n\r\n".to_vec()));
    }
    let script = serve(vec![acts]).await;
    let reading = Reading { abort: Some(Abort::Chunks(2)), ..Reading::default() };
    let e = ask(&client(&script), reading).await;
    assert_eq!((e.outcome, e.text.as_str()), (Outcome::Aborted, "ab"));
    for _ in 0..6000 {
        if script.closed_by_client.load(Ordering::SeqCst) == 1 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the server never saw the connection close");
}

#[tokio::test]
async fn what_a_server_can_make_the_client_hold_is_bounded() {
    let head = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(200_000));
    let e = once(vec![Act::Send(head.into_bytes())]).await;
    assert!(matches!(e.outcome, Outcome::Protocol { .. }), "{}", e.outcome);
    let e = once(vec![Act::Send(b"SSH-2.0-x\r\n\r\n".to_vec())]).await;
    assert!(matches!(e.outcome, Outcome::Protocol { .. }), "{}", e.outcome);
    let line = "z".repeat(1 << 20);
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: ".to_vec();
    let mut acts = vec![Act::Send(head)];
    acts.extend((0..40).map(|_| Act::Send(line.clone().into_bytes())));
    let e = once(acts).await;
    let large = |f: &ProtocolFault| matches!(f, ProtocolFault::TooLarge { .. });
    assert!(matches!(&e.outcome, Outcome::Protocol { fault } if large(fault)), "{}", e.outcome);
}

#[tokio::test]
async fn nobody_listens() {
    // No port that was free a moment ago: another test could have it by now.
    let client = Client::new(Target::parse("127.0.0.1:1").unwrap());
    let e = ask(&client, Reading::default()).await;
    assert!(matches!(e.outcome, Outcome::Connect { .. }), "{}", e.outcome);
}

#[tokio::test]
async fn the_model_is_discovered_once_and_named_in_requests() {
    let models = r#"{"data":[{"id":"m-1"}]}"#;
    let script = serve(vec![vec![Act::Send(answer("200 OK", "", models))]]).await;
    let client = client(&script).discover().await.unwrap();
    assert_eq!(client.target().model.as_deref(), Some("m-1"));
    let body = client.encode(&json!({"prompt": "x"}));
    assert_eq!(&body[..], br#"{"prompt":"x","model":"m-1"}"#);
    let script = serve(vec![vec![Act::Send(answer("404 X", "", "no"))]]).await;
    assert!(Client::new(Target::parse(&script.url).unwrap()).discover().await.is_err());
}
