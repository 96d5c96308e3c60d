//! Every metric of `/metrics`, declared once: name, kind, labels, meaning. `serve` exports by these
//! declarations, `docs/metrics.md` is written from them, and the dashboard is tested against them.
//!
//! A metric that nothing sets does not exist: one that is only there sometimes says when.

/// What a metric's values are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Only grows; its series end in `_total`.
    Counter,
    /// The present.
    Gauge,
    /// Its series end in `_bucket`, `_sum` and `_count`.
    Histogram,
}

impl Kind {
    /// The word after `# TYPE`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// A declared metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metric {
    /// Its name without the endings that its kind gives to series.
    pub name: &'static str,
    /// The same numbers under the names that SGLang's operators know.
    pub aliases: &'static [&'static str],
    /// What its values are.
    pub kind: Kind,
    /// Its labels beside `model_name`.
    pub labels: &'static [&'static str],
    /// What it says, with its unit.
    pub help: &'static str,
    /// When it is there; empty where it always is.
    pub when: &'static str,
}

impl Metric {
    /// The names that its series have on the page.
    pub fn series_names(&self) -> Vec<String> {
        let ends: &[&str] = match self.kind {
            Kind::Counter => &["_total"],
            Kind::Gauge => &[""],
            Kind::Histogram => &["_bucket", "_sum", "_count"],
        };
        ends.iter().map(|end| format!("{}{end}", self.name)).collect()
    }
}

/// The declaration of a metric.
pub fn find(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|m| m.name == name)
}

const fn one(kind: Kind, name: &'static str, help: &'static str) -> Metric {
    Metric { name, aliases: &[], kind, labels: &[], help, when: "" }
}

const fn counter(name: &'static str, help: &'static str) -> Metric {
    one(Kind::Counter, name, help)
}

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    one(Kind::Gauge, name, help)
}

const fn histogram(name: &'static str, help: &'static str) -> Metric {
    one(Kind::Histogram, name, help)
}

impl Metric {
    const fn also(self, aliases: &'static [&'static str]) -> Metric {
        Metric { aliases, ..self }
    }

    const fn by(self, labels: &'static [&'static str]) -> Metric {
        Metric { labels, ..self }
    }

    const fn when(self, when: &'static str) -> Metric {
        Metric { when, ..self }
    }
}

/// All of them, in the order of the documentation.
pub const METRICS: &[Metric] = &[
    // Traffic.
    gauge("lockstep_up", "1 while requests are taken"),
    gauge("lockstep_alarm", "1 while the alarm is raised").by(&["alarm", "level"]),
    gauge("lockstep_uptime_seconds", "Seconds since the engine's start"),
    gauge("lockstep_running_requests", "Sequences that run").also(&["sglang:num_running_reqs"]),
    gauge("lockstep_queued_requests", "Sequences that wait").also(&["sglang:num_queue_reqs"]),
    gauge("lockstep_running_requests_max", "Sequences that may run"),
    gauge("lockstep_queued_requests_max", "Sequences that may wait"),
    gauge("lockstep_generated_tokens_per_second", "Output tokens a second, over the last second")
        .also(&["sglang:gen_throughput"]),
    counter("lockstep_generated_tokens", "Output tokens").also(&["sglang:generation_tokens"]),
    counter("lockstep_prompt_tokens", "Prompt tokens of admitted requests")
        .also(&["sglang:prompt_tokens"]),
    counter("lockstep_cached_tokens", "Prompt tokens from the prefix cache")
        .by(&["cache_source"])
        .also(&["sglang:cached_tokens"]),
    counter("lockstep_prefill_tokens", "Prompt tokens computed"),
    counter("lockstep_drafted_tokens", "Tokens drafted by a prediction block and checked"),
    counter("lockstep_accepted_tokens", "Of those, tokens that the model itself sampled there"),
    counter(
        "lockstep_undrafted_rows",
        "Decode rows without a draft although drafts are on: the first after a resume, the last \
         token of a request, a request with a grammar",
    ),
    counter("lockstep_admitted_requests", "Sequences admitted").also(&["sglang:num_requests"]),
    counter("lockstep_finished_requests", "Sequences that ended well"),
    counter("lockstep_cancelled_requests", "Sequences cancelled by client or operator")
        .also(&["sglang:num_aborted_requests"]),
    counter(
        "lockstep_grammar_stopped_requests",
        "Sequences that ended because their grammar could not be followed further",
    ),
    counter("lockstep_failed_requests", "Sequences that ended badly otherwise"),
    counter(
        "lockstep_model_fallbacks",
        "1 where the default chat model could not be had at start and the model recall serves",
    ),
    counter("lockstep_refused_requests", "Sequences not admitted").by(&["reason"]),
    counter("lockstep_preemptions", "Times a running sequence was preempted")
        .also(&["sglang:num_retracted_requests"]),
    counter("lockstep_http_responses", "HTTP answers by route and status")
        .by(&["route", "status"])
        .when("after the first answer"),
    counter(
        "lockstep_unconstrained_tool_requests",
        "Requests whose tool calls could not be held to their schemas",
    ),
    // Latency.
    histogram(
        "lockstep_time_to_first_token_seconds",
        "Seconds from a request's arrival to its first token",
    )
    .also(&["sglang:time_to_first_token_seconds"]),
    histogram("lockstep_inter_token_latency_seconds", "Seconds between two tokens of a sequence")
        .also(&["sglang:inter_token_latency_seconds"]),
    histogram(
        "lockstep_e2e_request_latency_seconds",
        "Seconds from a request's arrival to its end",
    )
    .also(&["sglang:e2e_request_latency_seconds"]),
    histogram(
        "lockstep_queue_time_seconds",
        "Seconds from a request's arrival to the start of its prefill",
    )
    .also(&["sglang:queue_time_seconds"]),
    histogram(
        "lockstep_step_seconds",
        "Seconds of a step, from the choice of its batch to its events, audit included",
    )
    .by(&["kind"]),
    // Steps and buckets.
    counter("lockstep_steps", "Steps, captured and eager"),
    counter("lockstep_passes", "Steps by kind and by captured or eager execution")
        .by(&["mode"])
        .also(&["sglang:cuda_graph_passes"]),
    counter("lockstep_eager_steps", "Steps that ran op by op, by reason").by(&["reason"]),
    counter("lockstep_pipelined_steps", "Steps launched before the last one's tokens were seen"),
    counter(
        "lockstep_pipeline_refused",
        "Steps that waited for the host to end the last, by reason",
    )
    .by(&["reason"])
    .when("where steps are launched ahead (decode.pipelined, on a GPU)"),
    gauge("lockstep_buckets", "Buckets of the live generation by how they execute").by(&["mode"]),
    gauge("lockstep_bucket_quarantined", "1 while the audit keeps the bucket out of service")
        .by(&["bucket"]),
    counter("lockstep_bucket_replays", "Steps replayed through a bucket's capture").by(&["bucket"]),
    counter("lockstep_bucket_eager_steps", "Steps run op by op at a bucket's shape")
        .by(&["bucket"]),
    counter("lockstep_bucket_live_rows", "Rows that carried a token").by(&["bucket"]),
    counter("lockstep_bucket_padded_rows", "Rows that were padding").by(&["bucket"]),
    counter("lockstep_bucket_audits", "Steps of a bucket that were audited").by(&["bucket"]),
    gauge("lockstep_bucket_audit_age_seconds", "Seconds since a bucket's last audit")
        .by(&["bucket"])
        .when("of buckets that were audited"),
    // Token pool and memory.
    gauge("lockstep_pool_pages", "Pages of a sub-pool").by(&["pool"]),
    gauge("lockstep_pool_pages_used", "Pages held by requests and canary steps").by(&["pool"]),
    gauge("lockstep_pool_pages_cached", "Pages that only the prefix cache holds").by(&["pool"]),
    gauge("lockstep_pool_usage_ratio", "Pages held by requests over all pages, 0 to 1")
        .by(&["pool"]),
    gauge("lockstep_pool_bytes", "Bytes of a sub-pool").by(&["pool"]),
    gauge("lockstep_token_usage", "Usage of the fullest sub-pool, 0 to 1")
        .also(&["sglang:token_usage"]),
    gauge("lockstep_capacity_tokens", "Tokens of KV that the pool holds")
        .also(&["sglang:max_total_num_tokens"]),
    gauge("lockstep_used_tokens", "Tokens of KV in pages held by requests")
        .also(&["sglang:num_used_tokens", "sglang:kv_used_tokens"]),
    gauge("lockstep_available_tokens", "Tokens of KV in free pages")
        .also(&["sglang:kv_available_tokens"]),
    gauge("lockstep_evictable_tokens", "Tokens of KV that only the prefix cache holds")
        .also(&["sglang:kv_evictable_tokens"]),
    gauge("lockstep_page_tokens", "Tokens of a page").also(&["sglang:page_size"]),
    counter("lockstep_evicted_pages", "Pages dropped from the prefix cache to make room"),
    gauge("lockstep_weight_bytes", "Bytes of the weights"),
    gauge("lockstep_arena_bytes", "Bytes of the live generation's step arena"),
    // Generations.
    gauge("lockstep_generation", "Number of the live generation"),
    gauge("lockstep_generation_state", "1 for the state of the newest generation, 0 for others")
        .by(&["state"]),
    gauge(
        "lockstep_generation_gap_seconds",
        "Longest time between two steps that building, flipping or retiring the newest generation \
         took",
    ),
    counter("lockstep_generations_staged", "Generations staged after the first"),
    counter("lockstep_generations_rejected", "Of those, rejected ones"),
    counter("lockstep_generations_retired", "Of those, retired ones"),
    counter("lockstep_flips", "Flips to a generation that had been staged"),
    counter("lockstep_rollbacks", "Flips back to the generation before").by(&["by"]),
    gauge(
        "lockstep_generation_verified_buckets",
        "Buckets of the live generation whose canary steps gave the same bits",
    ),
    counter("lockstep_canary_steps", "Steps run to verify generations"),
    counter("lockstep_manifest_checks", "Times that bound buffers were compared with the manifest"),
    counter("lockstep_manifest_mismatches", "Of those, how many differed"),
    gauge("lockstep_arenas_total_bytes", "Bytes of the arenas of all generations, twins' included"),
    gauge("lockstep_arenas", "Arenas of all generations"),
    gauge("lockstep_executables", "Captured plans of all generations, twins' included"),
    // Audit.
    gauge("lockstep_audit_rate", "One step in this many is audited; 0 where the audit is off"),
    counter(
        "lockstep_audits",
        "Checks by part: steps for tables and twin, page groups for pages, chunks for weights",
    )
    .by(&["part"]),
    counter("lockstep_audit_bytes", "Bytes compared or hashed by the audit").by(&["part"]),
    counter("lockstep_audit_seconds", "Time of the step thread that the audit took").by(&["part"]),
    counter(
        "lockstep_audit_waits",
        "Times that a row waited a step for pages of the prefix cache to be compared",
    ),
    counter(
        "lockstep_audit_mismatches",
        "Checks that found a difference; bucket and layer are empty where there is none",
    )
    .by(&["part", "bucket", "layer"]),
    counter("lockstep_audit_pages_closed", "Page groups whose digest was taken when they closed"),
    gauge("lockstep_audit_pages_covered", "Page groups whose digest is kept now"),
    gauge("lockstep_audit_pages_set_aside", "Page groups that failed and are given to nobody"),
    counter("lockstep_audit_sweeps", "Times that the audit has been over every page or weight")
        .by(&["part"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_follow_their_kind() {
        let mut names: Vec<&str> = METRICS
            .iter()
            .flat_map(|m| core::iter::once(m.name).chain(m.aliases.iter().copied()))
            .collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for m in METRICS {
            assert!(m.name.starts_with("lockstep_"), "{}", m.name);
            assert!(!m.name.ends_with("_total"), "{}: the kind gives the ending", m.name);
            assert!(!m.help.is_empty() && !m.help.ends_with('.'), "{}", m.name);
            assert_eq!(find(m.name), Some(m));
        }
    }

    #[test]
    fn series_have_the_endings_of_their_kind() {
        let names = |name: &str| find(name).unwrap().series_names();
        assert_eq!(names("lockstep_steps"), ["lockstep_steps_total"]);
        assert_eq!(names("lockstep_up"), ["lockstep_up"]);
        let seconds = ["_bucket", "_sum", "_count"].map(|e| format!("lockstep_step_seconds{e}"));
        assert_eq!(names("lockstep_step_seconds"), seconds);
    }
}
