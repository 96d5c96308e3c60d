//! `/metrics`: what this room counts itself, and what the engine reports, under `lockstep_` names
//! and, where the meaning is the same, under the names that SGLang's operators know.
//!
//! A metric that nothing sets does not exist: an engine value is encoded at the scrape from the
//! engine's own status, and a family without members prints nothing.

use crate::Engine;
use crate::load::Throughput;
use core::fmt;
use lockstep_flow::EngineStatus;
use lockstep_flow::status::SubPoolUse;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, prometheus_text};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
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

impl Metrics {
    /// Registers everything; every series carries `model_name`.
    pub fn new(engine: Arc<dyn Engine>, load: Arc<Throughput>, model_name: &str) -> Metrics {
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
        model.register(
            "lockstep_http_responses",
            "HTTP answers by route and status",
            metrics.responses.clone(),
        );
        model.register(
            "lockstep_unconstrained_tool_requests",
            "Requests whose tool calls could not be held to their schemas",
            metrics.unconstrained_tools.clone(),
        );
        for (name, sglang, help, histogram) in [
            (
                "lockstep_time_to_first_token_seconds",
                "sglang:time_to_first_token_seconds",
                "From a request's arrival to its first token",
                &metrics.first_token_seconds,
            ),
            (
                "lockstep_inter_token_latency_seconds",
                "sglang:inter_token_latency_seconds",
                "Between two tokens of a sequence",
                &metrics.inter_token_seconds,
            ),
            (
                "lockstep_e2e_request_latency_seconds",
                "sglang:e2e_request_latency_seconds",
                "From a request's arrival to its end",
                &metrics.request_seconds,
            ),
            (
                "lockstep_queue_time_seconds",
                "sglang:queue_time_seconds",
                "From a request's arrival to the start of its prefill",
                &metrics.queue_seconds,
            ),
        ] {
            model.register(name, help, histogram.clone());
            model.register(sglang, help, histogram.clone());
        }
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
        let mut page = String::with_capacity(16 << 10);
        prometheus_text::encode(&mut page, &self.registry)?;
        Ok(page)
    }
}

struct EngineMetrics {
    engine: Arc<dyn Engine>,
    load: Arc<Throughput>,
}

impl fmt::Debug for EngineMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineMetrics")
    }
}

/// One series: its labels and its value.
type Series<'a> = (Vec<(&'static str, Cow<'a, str>)>, f64);

/// Writes a metric under each of its names.
fn put(
    encoder: &mut DescriptorEncoder<'_>,
    counter: bool,
    names: &[&str],
    help: &str,
    series: &[Series<'_>],
) -> fmt::Result {
    for name in names.iter().filter(|_| !series.is_empty()) {
        let kind = match counter {
            true => ConstCounter::new(0u64).metric_type(),
            false => ConstGauge::new(0f64).metric_type(),
        };
        let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in series {
            let labels: Vec<(&str, &str)> = labels.iter().map(|(k, v)| (*k, v.as_ref())).collect();
            let row = metric.encode_family(&labels)?;
            match counter {
                true => ConstCounter::new(*value as u64).encode(row)?,
                false => ConstGauge::new(*value).encode(row)?,
            }
        }
    }
    Ok(())
}

fn one<'a>(value: impl Into<f64>) -> Vec<Series<'a>> {
    vec![(Vec::new(), value.into())]
}

impl Collector for EngineMetrics {
    fn encode(&self, mut e: DescriptorEncoder<'_>) -> fmt::Result {
        let s = self.engine.status();
        load_gauges(&mut e, &s, self.load.tokens_per_second())?;
        pool_gauges(&mut e, &s)?;
        totals(&mut e, &s)?;
        buckets(&mut e, &s)
    }
}

fn load_gauges(e: &mut DescriptorEncoder<'_>, s: &EngineStatus, rate: f64) -> fmt::Result {
    let mut gauge =
        |names: &[&str], help: &str, value: f64| put(e, false, names, help, &one(value));
    gauge(&["lockstep_up"], "1 while requests are taken", s.health.is_serving().into())?;
    gauge(
        &["lockstep_running_requests", "sglang:num_running_reqs"],
        "Sequences that run",
        s.running.into(),
    )?;
    gauge(
        &["lockstep_queued_requests", "sglang:num_queue_reqs"],
        "Sequences that wait",
        s.queued.into(),
    )?;
    gauge(&["lockstep_running_requests_max"], "Sequences that may run", s.running_max.into())?;
    gauge(&["lockstep_queued_requests_max"], "Sequences that may wait", s.queued_max.into())?;
    gauge(
        &["lockstep_generated_tokens_per_second", "sglang:gen_throughput"],
        "Output tokens a second, over the last seconds",
        rate,
    )?;
    gauge(&["lockstep_uptime_seconds"], "Since the engine's start", s.uptime.as_secs_f64())?;
    gauge(&["lockstep_generation"], "Number of the live generation", s.generation as f64)?;
    gauge(&["lockstep_weight_bytes"], "Bytes of the weights", s.model.weight_bytes as f64)?;
    gauge(&["lockstep_arena_bytes"], "Bytes of the step arena", s.device.arena_bytes as f64)
}

fn pool_gauges(e: &mut DescriptorEncoder<'_>, s: &EngineStatus) -> fmt::Result {
    let mut each = |name: &str, help: &str, value: fn(&SubPoolUse) -> f64| {
        let row = |p: &'_ SubPoolUse| (vec![("pool", Cow::from(p.name.clone()))], value(p));
        let rows: Vec<Series<'_>> = s.pools.iter().map(row).collect();
        put(e, false, &[name], help, &rows)
    };
    each("lockstep_pool_pages", "Pages of a sub-pool", |p| p.pages_total.into())?;
    each("lockstep_pool_pages_used", "Pages held by requests", |p| p.pages_used.into())?;
    each("lockstep_pool_pages_cached", "Pages that only the prefix cache holds", |p| {
        p.pages_cached.into()
    })?;
    each("lockstep_pool_usage_ratio", "Used pages over all pages", SubPoolUse::usage)?;
    each("lockstep_pool_bytes", "Bytes of a sub-pool", |p| p.bytes_total as f64)?;
    let Some(p) = s.pools.first() else { return Ok(()) };
    let tokens = |pages: u32| f64::from(pages) * f64::from(p.page_tokens);
    let free = p.pages_total.saturating_sub(p.pages_used + p.pages_cached);
    let mut gauge =
        |names: &[&str], help: &str, value: f64| put(e, false, names, help, &one(value));
    gauge(
        &["lockstep_token_usage", "sglang:token_usage"],
        "Usage of the fullest sub-pool, 0 to 1",
        s.token_usage(),
    )?;
    gauge(
        &["lockstep_capacity_tokens", "sglang:max_total_num_tokens"],
        "Tokens of KV that the pool holds",
        s.capacity_tokens() as f64,
    )?;
    gauge(
        &["lockstep_used_tokens", "sglang:num_used_tokens", "sglang:kv_used_tokens"],
        "Tokens of KV in pages held by requests",
        tokens(p.pages_used),
    )?;
    gauge(&["sglang:kv_available_tokens"], "Tokens of KV in free pages", tokens(free))?;
    gauge(
        &["sglang:kv_evictable_tokens"],
        "Tokens of KV that only the prefix cache holds",
        tokens(p.pages_cached),
    )?;
    gauge(&["lockstep_page_tokens", "sglang:page_size"], "Tokens of a page", p.page_tokens.into())
}

fn totals(e: &mut DescriptorEncoder<'_>, s: &EngineStatus) -> fmt::Result {
    let c = &s.counters;
    let mut total =
        |names: &[&str], help: &str, value: u64| put(e, true, names, help, &one(value as f64));
    total(&["lockstep_steps"], "Steps, captured and eager", c.steps)?;
    total(
        &["lockstep_prompt_tokens", "sglang:prompt_tokens"],
        "Prompt tokens of admitted requests",
        c.prompt_tokens,
    )?;
    total(
        &["lockstep_generated_tokens", "sglang:generation_tokens"],
        "Output tokens",
        c.generated_tokens,
    )?;
    total(&["lockstep_cached_tokens"], "Prompt tokens from the prefix cache", c.cached_tokens)?;
    total(&["lockstep_prefill_tokens"], "Prompt tokens computed", c.prefill_tokens)?;
    total(
        &["lockstep_admitted_requests", "sglang:num_requests"],
        "Sequences admitted",
        c.admitted,
    )?;
    total(&["lockstep_finished_requests"], "Sequences that ended well", c.finished)?;
    total(
        &["lockstep_cancelled_requests", "sglang:num_aborted_requests"],
        "Sequences cancelled by client or operator",
        c.cancelled,
    )?;
    total(&["lockstep_failed_requests"], "Sequences that ended badly otherwise", c.failed)?;
    total(
        &["lockstep_preemptions", "sglang:num_retracted_requests"],
        "Times a running sequence was preempted",
        c.preemptions,
    )?;
    total(&["lockstep_evicted_pages"], "Pages dropped from the prefix cache", c.evicted_pages)?;
    total(&["lockstep_audits"], "Steps audited", c.audits)?;
    total(&["lockstep_audit_mismatches"], "Audits that found a difference", c.audit_mismatches)?;
    let refused = [
        (vec![("reason", Cow::from("queue_full"))], c.refused_queue_full as f64),
        (vec![("reason", Cow::from("other"))], c.refused_other as f64),
    ];
    put(e, true, &["lockstep_refused_requests"], "Sequences not admitted", &refused)?;
    let device = [(vec![("cache_source", Cow::from("device"))], c.cached_tokens as f64)];
    put(e, true, &["sglang:cached_tokens"], "Prompt tokens from the prefix cache", &device)?;
    let pass = |mode: &'static str, n: u64| (vec![("mode", Cow::from(mode))], n as f64);
    let passes = [
        pass("decode_cuda_graph", c.decode_steps_captured),
        pass("decode_none", c.decode_steps.saturating_sub(c.decode_steps_captured)),
        pass("prefill_cuda_graph", c.prefill_steps_captured),
        pass("prefill_none", c.prefill_steps.saturating_sub(c.prefill_steps_captured)),
    ];
    put(
        e,
        true,
        &["lockstep_passes", "sglang:cuda_graph_passes"],
        "Steps by kind and by captured or eager execution",
        &passes,
    )
}

fn buckets(e: &mut DescriptorEncoder<'_>, s: &EngineStatus) -> fmt::Result {
    let rows = |value: fn(&lockstep_flow::status::BucketUse) -> u64| -> Vec<Series<'static>> {
        let row = |b: &lockstep_flow::status::BucketUse| {
            (vec![("bucket", Cow::from(b.key.to_string()))], value(b) as f64)
        };
        s.buckets.iter().map(row).collect()
    };
    for (name, help, value) in [
        (
            "lockstep_bucket_replays",
            "Steps replayed through a bucket's capture",
            rows(|b| b.replays),
        ),
        ("lockstep_bucket_eager_steps", "Steps run op by op at its shape", rows(|b| b.eager_steps)),
        ("lockstep_bucket_live_rows", "Rows that carried a token", rows(|b| b.live_rows)),
        ("lockstep_bucket_padded_rows", "Rows that were padding", rows(|b| b.padded_rows)),
    ] {
        put(e, true, &[name], help, &value)?;
    }
    let eager: Vec<Series<'_>> = s
        .eager_steps
        .iter()
        .map(|(reason, n)| (vec![("reason", Cow::from(reason.as_str()))], *n as f64))
        .collect();
    put(e, true, &["lockstep_eager_steps"], "Steps that ran eagerly, by reason", &eager)
}
