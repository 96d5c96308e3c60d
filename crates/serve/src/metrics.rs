//! `/metrics`: what this room counts itself, and what the engine reports, under the names that
//! `lockstep_flow::metrics` declares and, where the meaning is the same, under the names that
//! SGLang's operators know.
//!
//! A metric that nothing sets does not exist: an engine value is encoded at the scrape from the
//! engine's own status, and a family without members prints nothing.

mod page;

use crate::Engine;
use crate::engine::present;
use crate::load::Load;
use core::fmt;
use lockstep_flow::alarms::{self, AlarmKind};
use lockstep_flow::metrics::find;
use lockstep_flow::status::{BucketMode, BucketUse, SubPoolUse};
use lockstep_flow::{AuditMismatch, AuditPart, EngineStatus, GenerationState};
use page::{Page, Series, by, one};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, prometheus_text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};
use std::borrow::Cow;
use std::sync::Arc;

/// The content type of what [`Metrics::encode`] writes.
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

type Labels = [(&'static str, String); 2];

/// Everything that is counted on this side of the engine.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    responses: Family<Labels, Counter>,
    /// Requests whose tools the grammar could not hold to their schemas.
    pub unconstrained_tools: Counter,
    /// From arrival to the first token.
    pub first_token_seconds: Histogram,
    /// Between two tokens of a sequence.
    pub inter_token_seconds: Histogram,
    /// From arrival to the end of a sequence.
    pub request_seconds: Histogram,
    /// From arrival to the start of its prefill.
    pub queue_seconds: Histogram,
}

/// Registers a metric of this room under each of its declared names.
fn register(registry: &mut Registry, name: &str, metric: &(impl Metric + Clone)) {
    let declared = find(name).unwrap_or_else(|| panic!("{name} is not declared"));
    for name in std::iter::once(&declared.name).chain(declared.aliases) {
        registry.register(*name, declared.help, metric.clone());
    }
}

impl Metrics {
    /// Registers everything; every series carries `model_name`.
    pub fn new(engine: Arc<dyn Engine>, load: Arc<Load>, model_name: &str) -> Metrics {
        let mut registry = Registry::default();
        let label = (Cow::from("model_name"), Cow::from(model_name.to_owned()));
        let model = registry.sub_registry_with_label(label);
        let histogram = |start| Histogram::new(exponential_buckets(start, 2.0, 18));
        let mut metrics = Metrics {
            registry: Registry::default(),
            responses: Family::default(),
            unconstrained_tools: Counter::default(),
            first_token_seconds: histogram(0.001),
            inter_token_seconds: histogram(0.000_5),
            request_seconds: histogram(0.004),
            queue_seconds: histogram(0.000_5),
        };
        register(model, "lockstep_http_responses", &metrics.responses);
        register(model, "lockstep_unconstrained_tool_requests", &metrics.unconstrained_tools);
        register(model, "lockstep_time_to_first_token_seconds", &metrics.first_token_seconds);
        register(model, "lockstep_inter_token_latency_seconds", &metrics.inter_token_seconds);
        register(model, "lockstep_e2e_request_latency_seconds", &metrics.request_seconds);
        register(model, "lockstep_queue_time_seconds", &metrics.queue_seconds);
        model.register_collector(Box::new(EngineMetrics { engine, load }));
        metrics.registry = registry;
        metrics
    }

    /// Counts an answer. `route` is a route's pattern, never a client's path: the labels stay few.
    pub fn count_response(&self, route: &str, status: u16) {
        let labels = [("route", route.to_owned()), ("status", status.to_string())];
        self.responses.get_or_create(&labels).inc();
    }

    /// The page.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut page = String::with_capacity(32 << 10);
        prometheus_text::encode(&mut page, &self.registry)?;
        Ok(page)
    }
}

struct EngineMetrics {
    engine: Arc<dyn Engine>,
    load: Arc<Load>,
}

impl fmt::Debug for EngineMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineMetrics")
    }
}

impl Collector for EngineMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let s = present(self.engine.as_ref());
        let mut page = Page::new(encoder);
        alarm_gauges(&mut page, &alarms::raised(&s, &self.load.minute_ago()))?;
        load_gauges(&mut page, &s, self.load.tokens_per_second())?;
        pool_gauges(&mut page, &s)?;
        totals(&mut page, &s)?;
        steps(&mut page, &s)?;
        buckets(&mut page, &s)?;
        generations(&mut page, &s)?;
        audit(&mut page, &s)
    }
}

fn alarm_gauges(page: &mut Page<'_>, raised: &[alarms::Alarm]) -> fmt::Result {
    let row = |kind: AlarmKind| {
        let labels =
            vec![("alarm", Cow::from(kind.id())), ("level", Cow::from(kind.level().as_str()))];
        (labels, f64::from(raised.iter().any(|a| a.kind == kind)))
    };
    page.put("lockstep_alarm", &AlarmKind::ALL.map(row))
}

fn load_gauges(page: &mut Page<'_>, s: &EngineStatus, rate: f64) -> fmt::Result {
    page.put("lockstep_up", &one(s.health.is_serving()))?;
    page.put("lockstep_uptime_seconds", &one(s.uptime.as_secs_f64()))?;
    page.put("lockstep_running_requests", &one(s.running))?;
    page.put("lockstep_queued_requests", &one(s.queued))?;
    page.put("lockstep_running_requests_max", &one(s.running_max))?;
    page.put("lockstep_queued_requests_max", &one(s.queued_max))?;
    page.put("lockstep_generated_tokens_per_second", &one(rate))?;
    page.put("lockstep_weight_bytes", &one(s.model.weight_bytes as f64))?;
    page.put("lockstep_arena_bytes", &one(s.device.arena_bytes as f64))
}

fn pool_gauges(page: &mut Page<'_>, s: &EngineStatus) -> fmt::Result {
    let mut each = |name: &str, value: fn(&SubPoolUse) -> f64| {
        let rows: Vec<Series<'_>> =
            s.pools.iter().map(|p| by("pool", p.name.as_str(), value(p))).collect();
        page.put(name, &rows)
    };
    each("lockstep_pool_pages", |p| p.pages_total.into())?;
    each("lockstep_pool_pages_used", |p| p.pages_used.into())?;
    each("lockstep_pool_pages_cached", |p| p.pages_cached.into())?;
    each("lockstep_pool_usage_ratio", SubPoolUse::usage)?;
    each("lockstep_pool_bytes", |p| p.bytes_total as f64)?;
    let Some(p) = s.pools.first() else { return Ok(()) };
    let tokens = |pages: u32| one(f64::from(pages) * f64::from(p.page_tokens));
    let free = p.pages_total.saturating_sub(p.pages_used + p.pages_cached);
    page.put("lockstep_token_usage", &one(s.token_usage()))?;
    page.put("lockstep_capacity_tokens", &one(s.capacity_tokens() as f64))?;
    page.put("lockstep_used_tokens", &tokens(p.pages_used))?;
    page.put("lockstep_available_tokens", &tokens(free))?;
    page.put("lockstep_evictable_tokens", &tokens(p.pages_cached))?;
    page.put("lockstep_page_tokens", &one(p.page_tokens))
}

fn totals(page: &mut Page<'_>, s: &EngineStatus) -> fmt::Result {
    let c = &s.counters;
    for (name, value) in [
        ("lockstep_steps", c.steps),
        ("lockstep_pipelined_steps", c.pipelined_steps),
        ("lockstep_prompt_tokens", c.prompt_tokens),
        ("lockstep_generated_tokens", c.generated_tokens),
        ("lockstep_prefill_tokens", c.prefill_tokens),
        ("lockstep_drafted_tokens", c.drafted_tokens),
        ("lockstep_accepted_tokens", c.accepted_tokens),
        ("lockstep_undrafted_rows", c.undrafted_rows),
        ("lockstep_admitted_requests", c.admitted),
        ("lockstep_finished_requests", c.finished),
        ("lockstep_cancelled_requests", c.cancelled),
        ("lockstep_grammar_stopped_requests", c.grammar_stopped),
        ("lockstep_failed_requests", c.failed),
        ("lockstep_model_fallbacks", u64::from(!s.model.stands_in.is_empty())),
        ("lockstep_preemptions", c.preemptions),
        ("lockstep_evicted_pages", c.evicted_pages),
    ] {
        page.put(name, &one(value as f64))?;
    }
    let cached = by("cache_source", "device", c.cached_tokens as f64);
    page.put("lockstep_cached_tokens", &[cached])?;
    let refused = [
        by("reason", "queue_full", c.refused_queue_full as f64),
        by("reason", "other", c.refused_other as f64),
    ];
    page.put("lockstep_refused_requests", &refused)
}

fn steps(page: &mut Page<'_>, s: &EngineStatus) -> fmt::Result {
    let c = &s.counters;
    let pass = |mode: &'static str, n: u64| by("mode", mode, n as f64);
    let passes = [
        pass("decode_cuda_graph", c.decode_steps_captured),
        pass("decode_none", c.decode_steps.saturating_sub(c.decode_steps_captured)),
        pass("prefill_cuda_graph", c.prefill_steps_captured),
        pass("prefill_none", c.prefill_steps.saturating_sub(c.prefill_steps_captured)),
    ];
    page.put("lockstep_passes", &passes)?;
    let eager: Vec<Series<'_>> =
        s.eager_steps.iter().map(|(r, n)| by("reason", r.as_str(), *n as f64)).collect();
    page.put("lockstep_eager_steps", &eager)?;
    let waited: Vec<Series<'_>> =
        s.waited_steps.iter().map(|(r, n)| by("reason", r.as_str(), *n as f64)).collect();
    page.put("lockstep_pipeline_refused", &waited)?;
    let times = [("decode", &s.decode_step_times), ("prefill", &s.prefill_step_times)];
    page.put_durations("lockstep_step_seconds", "kind", &times)
}

fn buckets(page: &mut Page<'_>, s: &EngineStatus) -> fmt::Result {
    let modes = [BucketMode::Captured, BucketMode::Eager, BucketMode::Quarantined];
    let count = |mode: BucketMode| {
        by("mode", mode.as_str(), s.buckets.iter().filter(|b| b.mode == mode).count() as f64)
    };
    page.put("lockstep_buckets", &modes.map(count))?;
    let mut each = |name: &str, value: &dyn Fn(&BucketUse) -> Option<f64>| {
        let row = |b: &BucketUse| Some(by("bucket", b.key.to_string(), value(b)?));
        let rows: Vec<Series<'_>> = s.buckets.iter().filter_map(row).collect();
        page.put(name, &rows)
    };
    let quarantined = |b: &BucketUse| f64::from(b.mode == BucketMode::Quarantined);
    each("lockstep_bucket_quarantined", &|b| Some(quarantined(b)))?;
    each("lockstep_bucket_replays", &|b| Some(b.replays as f64))?;
    each("lockstep_bucket_eager_steps", &|b| Some(b.eager_steps as f64))?;
    each("lockstep_bucket_live_rows", &|b| Some(b.live_rows as f64))?;
    each("lockstep_bucket_padded_rows", &|b| Some(b.padded_rows as f64))?;
    each("lockstep_bucket_audits", &|b| Some(b.audit.audits as f64))?;
    each("lockstep_bucket_audit_age_seconds", &|b| Some(b.audit.age(s.uptime)?.as_secs_f64()))
}

fn generations(page: &mut Page<'_>, s: &EngineStatus) -> fmt::Result {
    let c = &s.counters;
    page.put("lockstep_generation", &one(s.generation as f64))?;
    // An engine that keeps no reports has the one that serves.
    let newest = s.generations.last();
    let state = newest.map_or(GenerationState::Live, |g| g.state);
    let row = |of: GenerationState| by("state", of.as_str(), f64::from(of == state));
    page.put("lockstep_generation_state", &GenerationState::ALL.map(row))?;
    let gap = newest.map_or(0.0, |g| g.gap.longest.as_secs_f64());
    page.put("lockstep_generation_gap_seconds", &one(gap))?;
    let verified = s.generation_report(s.generation).map_or(0, |r| r.verified_buckets());
    page.put("lockstep_generation_verified_buckets", &one(verified as f64))?;
    for (name, value) in [
        ("lockstep_generations_staged", c.generations_staged),
        ("lockstep_generations_rejected", c.generations_rejected),
        ("lockstep_generations_retired", c.generations_retired),
        ("lockstep_flips", c.flips),
        ("lockstep_canary_steps", c.canary_steps),
        ("lockstep_manifest_checks", c.manifest_checks),
        ("lockstep_manifest_mismatches", c.manifest_mismatches),
    ] {
        page.put(name, &one(value as f64))?;
    }
    let rollbacks = [
        by("by", "operator", c.rollbacks.saturating_sub(c.rollbacks_by_audit) as f64),
        by("by", "audit", c.rollbacks_by_audit as f64),
    ];
    page.put("lockstep_rollbacks", &rollbacks)?;
    page.put("lockstep_arenas_total_bytes", &one(s.arenas.bytes as f64))?;
    page.put("lockstep_arenas", &one(s.arenas.arenas))?;
    page.put("lockstep_executables", &one(s.arenas.executables))
}

fn audit(page: &mut Page<'_>, s: &EngineStatus) -> fmt::Result {
    let a = &s.audit;
    page.put("lockstep_audit_rate", &one(a.rate))?;
    let part = |p: AuditPart, n: u64| by("part", p.as_str(), n as f64);
    page.put("lockstep_audits", &AuditPart::ALL.map(|p| part(p, a.part(p).audits)))?;
    page.put("lockstep_audit_bytes", &AuditPart::ALL.map(|p| part(p, a.part(p).bytes)))?;
    let seconds = |p: AuditPart| by("part", p.as_str(), a.part(p).time.as_secs_f64());
    page.put("lockstep_audit_seconds", &AuditPart::ALL.map(seconds))?;
    page.put("lockstep_audit_waits", &one(a.waits as f64))?;
    page.put("lockstep_audit_mismatches", &mismatches(s))?;
    page.put("lockstep_audit_pages_closed", &one(a.pages_closed as f64))?;
    page.put("lockstep_audit_pages_covered", &one(a.pages_covered))?;
    page.put("lockstep_audit_pages_set_aside", &one(a.pages_set_aside))?;
    let sweeps = [part(AuditPart::Pages, a.page_sweeps), part(AuditPart::Weights, a.weight_sweeps)];
    page.put("lockstep_audit_sweeps", &sweeps)
}

/// By place where the place is known. Each part also has a row without a place for all others,
/// which is there from the start: a rate over a series that begins at 1 would not see the first.
fn mismatches(s: &EngineStatus) -> Vec<Series<'static>> {
    let row = |part: AuditPart, bucket: String, layer: String, n: u64| {
        let labels = vec![
            ("part", Cow::from(part.as_str())),
            ("bucket", Cow::from(bucket)),
            ("layer", Cow::from(layer)),
        ];
        (labels, n as f64)
    };
    let placed = |m: &&AuditMismatch| m.bucket.is_some() || m.layer.is_some();
    let mut rows = Vec::new();
    for part in AuditPart::ALL {
        let own = || s.audit.mismatches.iter().filter(|m| m.part == part).filter(placed);
        let rest = s.audit.part(part).mismatches.saturating_sub(own().map(|m| m.count).sum());
        rows.push(row(part, String::new(), String::new(), rest));
        rows.extend(own().map(|m| {
            let bucket = m.bucket.map_or(String::new(), |b| b.to_string());
            let layer = m.layer.map_or(String::new(), |l| l.to_string());
            row(part, bucket, layer, m.count)
        }));
    }
    rows
}
