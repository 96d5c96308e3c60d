//! Filling the status that operators see, in place and without allocating.

use crate::Knobs;
use crate::core::Core;
use crate::counters::EAGER_REASONS;
use crate::generation::{Bucket, Generation};
use lockstep_device::Mode;
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::status::{
    ArenaUse, BucketMode, BucketUse, Counters, DeviceFacts, EngineStatus, Health, ModelFacts,
    SubPoolUse,
};
use lockstep_flow::{AuditPart, AuditUse, BucketAudit, Micros};

/// The status before the first step.
pub fn initial(
    (model, device): (&ModelFacts, &DeviceFacts),
    knobs: &Knobs,
    generation: &Generation,
    now: Micros,
) -> EngineStatus {
    EngineStatus {
        model: model.clone(),
        device: DeviceFacts { arena_bytes: generation.arena_bytes, ..device.clone() },
        running_max: knobs.running_max,
        queued_max: knobs.queued_max,
        chunked_prefill_tokens: knobs.chunk_tokens,
        generation: generation.number(),
        generations: vec![crate::yard::first(&generation.blueprint, now)],
        arenas: ArenaUse::default(),
        buckets: buckets(generation),
        eager_steps: EAGER_REASONS.iter().map(|r| (*r, 0)).collect(),
        audit: AuditUse {
            rate: knobs.audit_rate,
            on_mismatch: knobs.on_mismatch,
            ..AuditUse::default()
        },
        ..EngineStatus::default()
    }
}

/// A generation's buckets, with nothing run through them yet.
pub fn buckets(generation: &Generation) -> Vec<BucketUse> {
    let of = |b: &Bucket| BucketUse {
        key: b.key,
        mode: match (b.quarantined, b.mode) {
            (true, _) => BucketMode::Quarantined,
            (false, Mode::Captured) => BucketMode::Captured,
            (false, Mode::Eager) => BucketMode::Eager,
        },
        replays: 0,
        eager_steps: 0,
        live_rows: 0,
        padded_rows: 0,
        audit: BucketAudit::default(),
    };
    generation.buckets.iter().map(of).collect()
}

impl Core {
    /// Shows the present to other threads.
    pub fn publish(&self) {
        let now = self.clock.now();
        self.shared.update(|status| {
            status.uptime = now;
            status.running = self.sched.running();
            status.queued = self.sched.queued();
            status.decoded = self.decoded;
            self.publish_generations(status);
            for (to, from) in status.buckets.iter_mut().zip(&self.bucket_counters) {
                to.replays = from.replays;
                to.eager_steps = from.eager_steps;
                to.live_rows = from.live_rows;
                to.padded_rows = from.padded_rows;
            }
            for (to, from) in status.buckets.iter_mut().zip(&self.generation.buckets) {
                if from.quarantined {
                    to.mode = BucketMode::Quarantined;
                }
            }
            self.audit.publish(status);
            for (to, from) in status.eager_steps.iter_mut().zip(&self.eager_reasons) {
                to.1 = *from;
            }
            for (to, from) in status.waited_steps.iter_mut().zip(self.flights.waits()) {
                to.1 = *from;
            }
            status.decode_step_times = self.counters.decode_times;
            status.prefill_step_times = self.counters.prefill_times;
            let pool = self.sched.pool();
            status.audit.pages_covered = pool.proven_pages();
            status.audit.pages_set_aside = pool.set_aside_pages();
            self.publish_pools(&mut status.pools);
            self.publish_counters(&mut status.counters);
        });
    }

    fn publish_pools(&self, pools: &mut Vec<SubPoolUse>) {
        let pool = self.sched.pool();
        let config = pool.config();
        if pools.is_empty() {
            pools.extend(config.sub_pools.iter().map(|p| SubPoolUse {
                name: p.name.clone(),
                page_tokens: PAGE_TOKENS,
                pages_total: config.pages - 1,
                pages_used: 0,
                pages_canary: 0,
                pages_cached: 0,
                tokens_used: 0,
                bytes_total: p.bytes_per_page * u64::from(config.pages - 1),
            }));
        }
        // A page that the audit set aside is nobody's.
        let free = pool.free_pages() + pool.set_aside_pages();
        let cached = pool.cached_pages();
        let canary = self.canary_pages();
        for p in pools {
            p.pages_cached = cached;
            p.pages_canary = canary;
            p.pages_used = p.pages_total.saturating_sub(free + cached);
            p.tokens_used = u64::from(p.pages_used) * u64::from(PAGE_TOKENS);
        }
    }

    fn publish_counters(&self, to: &mut Counters) {
        let (step, sched) = (&self.counters, self.sched.counters());
        to.steps = step.steps;
        to.pipelined_steps = self.flights.pipelined;
        to.decode_steps = step.decode_steps;
        to.decode_steps_captured = step.decode_steps_captured;
        to.prefill_steps = step.prefill_steps;
        to.prefill_steps_captured = step.prefill_steps_captured;
        to.prompt_tokens = step.prompt_tokens;
        to.cached_tokens = step.cached_tokens;
        to.prefill_tokens = sched.prefill_tokens;
        to.generated_tokens = step.generated_tokens;
        to.drafted_tokens = sched.drafted_tokens;
        to.accepted_tokens = sched.accepted_tokens;
        to.undrafted_rows = sched.undrafted_rows;
        to.admitted = sched.admitted;
        to.finished = sched.finished;
        to.cancelled = step.cancelled;
        to.grammar_stopped = step.grammar_stopped;
        to.failed = sched.failed.saturating_sub(step.cancelled + step.grammar_stopped);
        to.preemptions = sched.preemptions;
        to.audits = self.audit.part(AuditPart::Twin).audits;
        to.audit_mismatches = self.audit.findings();
        to.generations_retired = step.retired;
        to.flips = step.flips;
        to.rollbacks = step.rollbacks;
        to.rollbacks_by_audit = step.rollbacks_by_audit;
        to.canary_steps = step.canary_steps;
        to.manifest_mismatches = step.manifest_mismatches;
        to.evicted_pages = self.sched.pool().counters().pages_evicted;
    }

    /// The engine has stopped for good.
    pub fn fail(&self, why: &str) {
        self.publish();
        self.shared.close(why);
        self.shared.update(|status| status.health = Health::Failed { why: why.into() });
    }
}
