//! `lockstep status`: what the operator would otherwise read out of flags and logs.

use crate::args::StatusArgs;
use crate::exit::{Exit, Failure};
use crate::http;
use crate::out;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::Duration;

/// Asks a server and shows its answer, once or again and again.
pub fn run(args: &StatusArgs) -> Result<Exit, Failure> {
    let Some(seconds) = args.watch else { return once(args) };
    let clear = std::io::stdout().is_terminal() && !args.json;
    loop {
        if clear {
            // Home, and clear what is below: the page is rewritten in place.
            out::line("\x1b[H\x1b[J");
        }
        if let Err(failure) = once(args) {
            match failure.exit {
                Exit::Usage => return Err(failure),
                // A server that restarts is worth waiting for.
                _ if args.json => out::line(failure.to_json()),
                _ => out::line(&failure.message),
            }
        }
        if out::reader_is_gone() {
            return Ok(Exit::Done);
        }
        std::thread::sleep(Duration::from_secs(seconds.max(1)));
    }
}

fn once(args: &StatusArgs) -> Result<Exit, Failure> {
    let target = http::target(&args.url, args.api_key.as_deref())?;
    let url = target.to_string();
    let answer = http::get(target, "/server_info")?;
    let info: Value = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
    if answer.status != 200 {
        let words = format!("{url} answered {}: {}", answer.status, answer.words());
        return Err(Failure::new(Exit::Unwell, words));
    }
    let engine = &info["lockstep"]["engine"];
    if !engine.is_object() {
        let words = format!("{url} answers, but is not a Lockstep server");
        return Err(Failure { detail: info, ..Failure::new(Exit::Unwell, words) });
    }
    if args.json {
        out::line(&info);
    } else {
        out::page(page(&info, engine).trim_end(), 10);
    }
    let serving = engine["health"] == "serving";
    Ok(if serving { Exit::Done } else { Exit::Unwell })
}

fn count(value: &Value) -> String {
    let digits = value.as_u64().unwrap_or(0).to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn mib(value: &Value) -> String {
    format!("{:.1} MiB", value.as_f64().unwrap_or(0.0) / f64::from(1 << 20))
}

fn share(part: &Value, whole: &Value) -> String {
    let (part, whole) = (part.as_f64().unwrap_or(0.0), whole.as_f64().unwrap_or(0.0));
    if whole == 0.0 { "-".into() } else { format!("{:.1}%", 100.0 * part / whole) }
}

/// A server's words, without what a terminal would obey: names come from model files.
fn text(value: &Value) -> String {
    value.as_str().unwrap_or("?").replace(char::is_control, "\u{fffd}")
}

/// A pool's name in words: "full" reads as if no page were left. Labels of metrics keep it.
fn pool_words(name: &Value) -> String {
    if name == "full" { "KV (full attention)".into() } else { text(name) }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The report for people. Writing to a String cannot fail.
fn page(info: &Value, e: &Value) -> String {
    let mut p = String::new();
    let model = &e["model"];
    let device = &e["device"];
    let _ = writeln!(
        p,
        "{}  {}, {} on {} ({}, {} threads), up {:.0} s, lockstep {}",
        text(&e["health"]),
        text(&info["served_model_name"]),
        text(&model["quantization"]),
        text(&device["name"]),
        text(&device["isa"]),
        count(&device["threads"]),
        e["uptime_s"].as_f64().unwrap_or(0.0),
        text(&info["version"]),
    );
    let _ = writeln!(
        p,
        "requests  running {} of {}, queued {} of {}, {:.1} tokens/s",
        count(&e["running"]),
        count(&e["running_max"]),
        count(&e["queued"]),
        count(&e["queued_max"]),
        e["generated_tokens_per_second"].as_f64().unwrap_or(0.0),
    );
    alarms(&mut p, &info["lockstep"]["alarms"]);
    for pool in list(&e["pools"]) {
        let _ = writeln!(
            p,
            "pool      {}: {} of {} pages of {} tokens used ({}), {} cached, {} tokens fit, {}",
            pool_words(&pool["name"]),
            count(&pool["pages_used"]),
            count(&pool["pages_total"]),
            count(&pool["page_tokens"]),
            share(&pool["pages_used"], &pool["pages_total"]),
            count(&pool["pages_cached"]),
            count(&pool["tokens_total"]),
            mib(&pool["bytes_total"]),
        );
    }
    let _ = writeln!(
        p,
        "memory    weights {}, arena {}",
        mib(&model["weight_bytes"]),
        mib(&device["arena_bytes"])
    );
    totals(&mut p, e);
    audit(&mut p, &e["audit"]);
    generations(&mut p, e);
    buckets(&mut p, e);
    p
}

fn alarms(p: &mut String, alarms: &Value) {
    for alarm in list(alarms) {
        let sign = if alarm["level"] == "act" { "ACT" } else { "look" };
        let _ = writeln!(p, "{sign:<9} {}: {}", text(&alarm["alarm"]), text(&alarm["words"]));
        let _ = writeln!(p, "          {}", text(&alarm["action"]));
    }
}

fn audit(p: &mut String, a: &Value) {
    if a["rate"] == 0 {
        let _ = writeln!(p, "audit     off");
        return;
    }
    let parts: Vec<String> = list(&a["parts"])
        .map(|part| {
            let (checks, bad) = (count(&part["audits"]), part["mismatches"].as_u64().unwrap_or(0));
            let bad = if bad == 0 { String::new() } else { format!(" ({bad} DIFFER)") };
            format!("{} {checks}{bad}", text(&part["part"]))
        })
        .collect();
    let rate = count(&a["rate"]);
    let _ = writeln!(p, "audit     one step in {rate}; checks: {}", parts.join(", "));
    for evidence in list(&a["evidence"]) {
        let _ = writeln!(p, "evidence  {}", text(evidence));
    }
}

/// The live generation, and what else is there or went wrong.
fn generations(p: &mut String, e: &Value) {
    let c = &e["counters"];
    let _ = writeln!(
        p,
        "live      generation {}; {} flips, {} staged, {} rejected, {} manifest checks ({} differ)",
        count(&e["generation"]),
        count(&c["flips"]),
        count(&c["generations_staged"]),
        count(&c["generations_rejected"]),
        count(&c["manifest_checks"]),
        count(&c["manifest_mismatches"]),
    );
    let all: Vec<&Value> = list(&e["generations"]).collect();
    for g in all.iter().rev().take(4).rev() {
        let changed: Vec<String> = g["changed"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, k)| format!("{name} {} -> {}", k["from"], k["to"]))
            .collect();
        let changed =
            if changed.is_empty() { String::new() } else { format!("; {}", changed.join(", ")) };
        let why = g["reason"].as_str().map_or(String::new(), |why| format!("; {why}"));
        let _ = writeln!(
            p,
            "          generation {} is {}: {} of {} buckets captured, {} verified, {} steps{changed}{why}",
            count(&g["generation"]),
            text(&g["state"]),
            count(&g["evidence"]["captured_buckets"]),
            count(&g["evidence"]["buckets"]),
            count(&g["evidence"]["verified_buckets"]),
            count(&g["steps"]),
        );
    }
}

fn totals(p: &mut String, e: &Value) {
    let c = &e["counters"];
    let _ = writeln!(
        p,
        "totals    {} admitted, {} finished, {} cancelled, {} failed, {} refused, {} preemptions",
        count(&c["admitted"]),
        count(&c["finished"]),
        count(&c["cancelled"]),
        count(&c["failed"]),
        count(&Value::from(
            c["refused_queue_full"].as_u64().unwrap_or(0)
                + c["refused_other"].as_u64().unwrap_or(0)
        )),
        count(&c["preemptions"]),
    );
    let _ = writeln!(
        p,
        "tokens    {} prompt ({} from the prefix cache), {} output",
        count(&c["prompt_tokens"]),
        count(&c["cached_tokens"]),
        count(&c["generated_tokens"]),
    );
    let _ = writeln!(
        p,
        "steps     {} decode ({} captured), {} prefill ({} captured)",
        count(&c["decode_steps"]),
        share(&c["decode_steps_captured"], &c["decode_steps"]),
        count(&c["prefill_steps"]),
        share(&c["prefill_steps_captured"], &c["prefill_steps"]),
    );
    let eager = e["eager_steps"].as_object().into_iter().flatten();
    for (reason, n) in eager.filter(|(_, n)| **n != 0) {
        let _ = writeln!(p, "eager     {} steps: {}", count(n), reason.replace('_', " "));
    }
}

/// A table of the buckets that ran; the others in one line.
fn buckets(p: &mut String, e: &Value) {
    let all: Vec<&Value> = list(&e["buckets"]).collect();
    let ran =
        |b: &&&Value| b["replays"].as_u64() != Some(0) || b["eager_steps"].as_u64() != Some(0);
    let head = "bucket           mode          replays       eager      padded rows      audited";
    let _ = writeln!(p, "\n{head}");
    for b in all.iter().filter(ran) {
        let rows = b["live_rows"].as_u64().unwrap_or(0) + b["padded_rows"].as_u64().unwrap_or(0);
        let padded =
            format!("{} ({})", count(&b["padded_rows"]), share(&b["padded_rows"], &rows.into()));
        let age = match b["audit_age_s"].as_f64() {
            None => "-".into(),
            Some(seconds) => format!("{seconds:.0} s ago"),
        };
        let _ = writeln!(
            p,
            "{:<15}  {:<11}  {:>8}  {:>10}  {:>15}  {:>11}",
            b["bucket"].as_str().unwrap_or("?"),
            b["mode"].as_str().unwrap_or("?"),
            count(&b["replays"]),
            count(&b["eager_steps"]),
            padded,
            age,
        );
    }
    for mode in ["captured", "eager", "quarantined"] {
        let idle: Vec<&str> = all
            .iter()
            .filter(|b| !ran(b) && b["mode"] == mode)
            .filter_map(|b| b["bucket"].as_str())
            .collect();
        if !idle.is_empty() {
            let _ = writeln!(p, "not used yet, {mode}: {}", idle.join(" "));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(count(&json!(1234567)), "1,234,567");
        assert_eq!(count(&json!(999)), "999");
        assert_eq!(share(&json!(1), &json!(8)), "12.5%");
        assert_eq!(share(&json!(1), &json!(0)), "-");
    }

    #[test]
    fn the_page_names_used_buckets_and_lists_the_others() {
        let bucket = |name: &str, mode: &str, replays: u64| {
            json!({"bucket": name, "mode": mode, "replays": replays, "eager_steps": 0,
                   "live_rows": 3 * replays, "padded_rows": replays})
        };
        let e = json!({
            "health": "serving",
            "eager_steps": {"above_graph_max_bs": 7},
            "buckets": [bucket("decode-4", "captured", 5), bucket("decode-64", "eager", 0)],
        });
        let page = page(&json!({}), &e);
        assert!(page.contains("7 steps: above graph max bs"), "{page}");
        assert!(page.contains("decode-4 ") && page.contains("(25.0%)"), "{page}");
        assert!(page.contains("not used yet, eager: decode-64"), "{page}");
    }

    #[test]
    fn what_is_wrong_stands_first_and_says_what_to_do() {
        let alarms = json!([{"alarm": "bucket_quarantined", "level": "act", "words": "decode-8",
                             "action": "Keep the evidence."}]);
        let part = |name: &str, bad: u64| json!({"part": name, "audits": 1200, "mismatches": bad});
        let e = json!({
            "health": "serving",
            "generation": 2,
            "generations": [{
                "generation": 3, "state": "rejected", "reason": "no memory", "steps": 0,
                "changed": {"decode.graph-max-bs": {"from": 32, "to": 96}},
                "evidence": {"captured_buckets": 0, "buckets": 16},
            }],
            "audit": {"rate": 1000, "parts": [part("twin", 1), part("pages", 0)],
                      "evidence": ["twin: logits differ"]},
        });
        let page = page(&json!({"lockstep": {"alarms": alarms}}), &e);
        let at = |words: &str| page.find(words).unwrap_or_else(|| panic!("no {words} in {page}"));
        assert!(at("ACT       bucket_quarantined: decode-8") < at("totals"), "{page}");
        at("          Keep the evidence.");
        at("checks: twin 1,200 (1 DIFFER), pages 1,200");
        at("evidence  twin: logits differ");
        at(
            "generation 3 is rejected: 0 of 16 buckets captured, 0 verified, 0 steps; decode.graph-max-bs 32 -> 96; no memory",
        );
        let name = json!({"served_model_name": "\u{1b}[2Jmodel\r"});
        let page = super::page(&name, &e);
        assert!(page.contains("\u{fffd}[2Jmodel\u{fffd}, "), "{page}");
        let off = json!({"health": "serving", "audit": {"rate": 0}});
        assert!(super::page(&json!({}), &off).contains("audit     off"));
    }
}
