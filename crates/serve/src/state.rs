//! An engine's status as JSON, under our own names: for `/server_info`, `/ui/data`, `lockstep
//! status`.

use crate::admin::shown;
use crate::load::Load;
use lockstep_flow::alarms;
use lockstep_flow::status::{BucketUse, EngineStatus, SubPoolUse};
use lockstep_flow::{AuditPart, AuditUse, Durations, Micros};
use serde_json::{Map, Value, json};

/// The raised alarms, most urgent first.
pub fn alarms(s: &EngineStatus, load: &Load) -> Value {
    let one = |a: &alarms::Alarm| {
        json!({
            "alarm": a.kind.id(),
            "level": a.kind.level().as_str(),
            "words": a.words,
            "meaning": a.kind.meaning(),
            "action": a.kind.action(),
        })
    };
    alarms::raised(s, &load.minute_ago()).iter().map(one).collect()
}

/// Everything of an engine's status.
pub fn engine(s: &EngineStatus, tokens_per_second: f64) -> Value {
    let eager: Map<String, Value> =
        s.eager_steps.iter().map(|(r, n)| (r.as_str().into(), json!(n))).collect();
    let waited: Map<String, Value> =
        s.waited_steps.iter().map(|(r, n)| (r.as_str().into(), json!(n))).collect();
    json!({
        "health": s.health.to_string(),
        "lab": lab(s),
        "held_for": s.held_for,
        "uptime_s": s.uptime.as_secs_f64(),
        "model": model(s),
        "device": {
            "name": s.device.name,
            "isa": s.device.isa,
            "threads": s.device.threads,
            "arena_bytes": s.device.arena_bytes,
        },
        "running": s.running,
        "queued": s.queued,
        "running_max": s.running_max,
        "queued_max": s.queued_max,
        "chunked_prefill_tokens": s.chunked_prefill_tokens,
        "generated_tokens_per_second": tokens_per_second,
        "pools": s.pools.iter().map(pool).collect::<Vec<Value>>(),
        "generation": s.generation,
        "generations": s.generations.iter().map(|g| shown(g, s, false)).collect::<Vec<Value>>(),
        "arenas": {
            "bytes": s.arenas.bytes,
            "arenas": s.arenas.arenas,
            "executables": s.arenas.executables,
        },
        "buckets": s.buckets.iter().map(|b| bucket(b, s)).collect::<Vec<Value>>(),
        "eager_steps": eager,
        "pipeline_refused": waited,
        "step_seconds": {
            "decode": durations(&s.decode_step_times),
            "prefill": durations(&s.prefill_step_times),
        },
        "audit": audit(&s.audit),
        "counters": counters(s),
    })
}

/// What a lab build does wrong on purpose; null in any other.
pub fn lab(s: &EngineStatus) -> Value {
    s.lab.as_ref().map_or(Value::Null, |lab| {
        json!({
            "drill": lab.drill,
            "per_million": lab.per_million,
            "strikes": lab.strikes,
            "replays": lab.replays,
        })
    })
}

fn model(s: &EngineStatus) -> Value {
    json!({
        "name": s.model.name,
        "path": s.model.path,
        "architecture": s.model.architecture,
        "quantization": s.model.quantization,
        "vocab": s.model.vocab,
        "context_max_tokens": s.model.context_max_tokens,
        "parameters": s.model.parameters,
        "weight_bytes": s.model.weight_bytes,
        "weights_digest": s.model.weights_digest,
    })
}

fn pool(p: &SubPoolUse) -> Value {
    json!({
        "name": p.name,
        "page_tokens": p.page_tokens,
        "pages_total": p.pages_total,
        "pages_used": p.pages_used,
        "pages_canary": p.pages_canary,
        "pages_cached": p.pages_cached,
        "tokens_used": p.tokens_used,
        "tokens_total": p.tokens_total(),
        "bytes_total": p.bytes_total,
        "usage": p.usage(),
    })
}

fn bucket(b: &BucketUse, s: &EngineStatus) -> Value {
    let shown = s.generation_report(s.generation).map_or(&[][..], |r| &r.buckets);
    let verified = shown.iter().any(|e| e.key == b.key && e.is_verified());
    json!({
        "bucket": b.key.to_string(),
        "tokens": b.key.tokens,
        "seqs": b.key.seqs,
        "logit_rows": b.key.logit_rows,
        "decode": b.key.is_decode(),
        "mode": b.mode.as_str(),
        "verified": verified,
        "replays": b.replays,
        "eager_steps": b.eager_steps,
        "live_rows": b.live_rows,
        "padded_rows": b.padded_rows,
        "audits": b.audit.audits,
        "audit_mismatches": b.audit.mismatches,
        "audit_age_s": b.audit.age(s.uptime).map(Micros::as_secs_f64),
    })
}

/// Steps, and how long they took; `bins` are (upper bound or null, steps), empty ones left out.
fn durations(d: &Durations) -> Value {
    let bins = d.bins().filter(|(_, n)| *n > 0).map(|(le, n)| json!([le, n]));
    json!({
        "steps": d.count(),
        "sum_s": d.sum_secs(),
        "longest_s": d.longest().as_secs_f64(),
        "bins": bins.collect::<Vec<Value>>(),
    })
}

fn audit(a: &AuditUse) -> Value {
    let part = |p: AuditPart| {
        let u = a.part(p);
        let sweeps = match p {
            AuditPart::Pages => Some(a.page_sweeps),
            AuditPart::Weights => Some(a.weight_sweeps),
            AuditPart::Tables | AuditPart::Twin => None,
        };
        json!({
            "part": p.as_str(),
            "audits": u.audits,
            "bytes": u.bytes,
            "mismatches": u.mismatches,
            "sweeps": sweeps,
        })
    };
    let mismatch = |m: &lockstep_flow::AuditMismatch| {
        json!({
            "part": m.part.as_str(),
            "bucket": m.bucket.map(|b| b.to_string()),
            "layer": m.layer,
            "count": m.count,
        })
    };
    json!({
        "rate": a.rate,
        "on_mismatch": a.on_mismatch.as_str(),
        "parts": AuditPart::ALL.map(part),
        "mismatches": a.mismatches.iter().map(mismatch).collect::<Vec<Value>>(),
        "pages_closed": a.pages_closed,
        "pages_covered": a.pages_covered,
        "pages_set_aside": a.pages_set_aside,
        "evidence": a.evidence,
    })
}

fn counters(s: &EngineStatus) -> Value {
    let c = &s.counters;
    json!({
        "steps": c.steps,
        "pipelined_steps": c.pipelined_steps,
        "decode_steps": c.decode_steps,
        "decode_steps_captured": c.decode_steps_captured,
        "prefill_steps": c.prefill_steps,
        "prefill_steps_captured": c.prefill_steps_captured,
        "prompt_tokens": c.prompt_tokens,
        "cached_tokens": c.cached_tokens,
        "prefill_tokens": c.prefill_tokens,
        "generated_tokens": c.generated_tokens,
        "drafted_tokens": c.drafted_tokens,
        "accepted_tokens": c.accepted_tokens,
        "undrafted_rows": c.undrafted_rows,
        "admitted": c.admitted,
        "finished": c.finished,
        "cancelled": c.cancelled,
        "grammar_stopped": c.grammar_stopped,
        "failed": c.failed,
        "refused_queue_full": c.refused_queue_full,
        "refused_other": c.refused_other,
        "preemptions": c.preemptions,
        "evicted_pages": c.evicted_pages,
        "generations_staged": c.generations_staged,
        "generations_rejected": c.generations_rejected,
        "generations_retired": c.generations_retired,
        "flips": c.flips,
        "rollbacks": c.rollbacks,
        "rollbacks_by_audit": c.rollbacks_by_audit,
        "canary_steps": c.canary_steps,
        "manifest_checks": c.manifest_checks,
        "manifest_mismatches": c.manifest_mismatches,
        "audits": c.audits,
        "audit_evidence": s.audit.evidence,
        "audit_mismatches": c.audit_mismatches,
    })
}
