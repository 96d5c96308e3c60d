//! Alarms: what in a status asks for a person, declared once with its meaning and what to do. The
//! page at `/ui`, `lockstep status`, `/metrics`, the log and `docs/operating.md` all read this.

use crate::status::{BucketMode, Counters, EagerReason, Health};
use crate::{AuditPart, EngineStatus, GenerationState, Micros};
use core::fmt;

/// How soon.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// By day: it serves, but not as it should.
    Look,
    /// Now: answers are lost or in doubt.
    Act,
}

impl Level {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Level::Look => "look",
            Level::Act => "act",
        }
    }
}

/// What can be raised.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AlarmKind {
    /// The process does something wrong on purpose.
    LabFault,
    /// The engine has stopped.
    EngineFailed,
    /// Sequences run, and no step ends.
    Stalled,
    /// The audit found a difference.
    AuditMismatch,
    /// A bound buffer is not what the manifest says.
    ManifestMismatch,
    /// A bucket is out of service.
    BucketQuarantined,
    /// Pages are out of service.
    PagesSetAside,
    /// Requests end badly.
    RequestsFailing,
    /// Requests are refused because the queue is full.
    QueueFull,
    /// Nothing new is taken.
    Draining,
    /// The newest generation was refused.
    GenerationRejected,
    /// Nothing is audited.
    AuditOff,
    /// The token pool is almost full.
    PoolNearlyFull,
    /// Running sequences are put back.
    Preempting,
    /// Batches outgrow the captured buckets.
    EagerAboveCeiling,
    /// Another model is served than the one that was meant.
    ModelFallback,
}

impl AlarmKind {
    /// Every kind, most urgent first.
    pub const ALL: [AlarmKind; 16] = [
        AlarmKind::LabFault,
        AlarmKind::EngineFailed,
        AlarmKind::Stalled,
        AlarmKind::AuditMismatch,
        AlarmKind::ManifestMismatch,
        AlarmKind::BucketQuarantined,
        AlarmKind::PagesSetAside,
        AlarmKind::RequestsFailing,
        AlarmKind::QueueFull,
        AlarmKind::Draining,
        AlarmKind::GenerationRejected,
        AlarmKind::AuditOff,
        AlarmKind::PoolNearlyFull,
        AlarmKind::Preempting,
        AlarmKind::EagerAboveCeiling,
        AlarmKind::ModelFallback,
    ];

    /// Its name in metrics, logs and documentation.
    pub const fn id(self) -> &'static str {
        match self {
            AlarmKind::LabFault => "lab_fault",
            AlarmKind::EngineFailed => "engine_failed",
            AlarmKind::Stalled => "stalled",
            AlarmKind::AuditMismatch => "audit_mismatch",
            AlarmKind::ManifestMismatch => "manifest_mismatch",
            AlarmKind::BucketQuarantined => "bucket_quarantined",
            AlarmKind::PagesSetAside => "pages_set_aside",
            AlarmKind::RequestsFailing => "requests_failing",
            AlarmKind::QueueFull => "queue_full",
            AlarmKind::Draining => "draining",
            AlarmKind::GenerationRejected => "generation_rejected",
            AlarmKind::AuditOff => "audit_off",
            AlarmKind::PoolNearlyFull => "pool_nearly_full",
            AlarmKind::Preempting => "preempting",
            AlarmKind::EagerAboveCeiling => "eager_above_ceiling",
            AlarmKind::ModelFallback => "model_fallback",
        }
    }

    /// How soon it wants a person.
    pub const fn level(self) -> Level {
        match self {
            AlarmKind::LabFault
            | AlarmKind::EngineFailed
            | AlarmKind::Stalled
            | AlarmKind::AuditMismatch
            | AlarmKind::ManifestMismatch
            | AlarmKind::BucketQuarantined
            | AlarmKind::PagesSetAside
            | AlarmKind::RequestsFailing
            | AlarmKind::QueueFull => Level::Act,
            AlarmKind::Draining
            | AlarmKind::GenerationRejected
            | AlarmKind::AuditOff
            | AlarmKind::PoolNearlyFull
            | AlarmKind::Preempting
            | AlarmKind::EagerAboveCeiling
            | AlarmKind::ModelFallback => Level::Look,
        }
    }

    /// What it means.
    pub const fn meaning(self) -> &'static str {
        match self {
            AlarmKind::LabFault => {
                "A lab build does something wrong on purpose: its answers are not to be trusted."
            }
            AlarmKind::EngineFailed => {
                "The step loop has stopped for good; every request ended with an error."
            }
            AlarmKind::Stalled => "Sequences run, and no step has ended in the last minute.",
            AlarmKind::AuditMismatch => {
                "A check found bits that differ: memory, a kernel or a plan is at fault. Stays \
                 raised until a restart."
            }
            AlarmKind::ManifestMismatch => {
                "A buffer that a captured bucket is bound to is not the one that was proven. Stays \
                 raised until a restart."
            }
            AlarmKind::BucketQuarantined => {
                "The audit took a captured bucket out of service; its batches run op by op, right \
                 but slower."
            }
            AlarmKind::PagesSetAside => {
                "Pages changed after they were closed; they are given to nobody, and the pool is \
                 smaller by them."
            }
            AlarmKind::RequestsFailing => {
                "Accepted requests ended with an error of the server in the last minute."
            }
            AlarmKind::QueueFull => "Requests were refused with 429 in the last minute.",
            AlarmKind::Draining => "The server finishes what it has and takes nothing new.",
            AlarmKind::GenerationRejected => {
                "The newest staged generation failed a check; what serves was not touched."
            }
            AlarmKind::AuditOff => "No step is compared with its twin: a fault would go unseen.",
            AlarmKind::PoolNearlyFull => {
                "Running requests hold 95% or more of the token pool; the next ones wait, or \
                 running ones are preempted."
            }
            AlarmKind::Preempting => {
                "Running sequences were put back for want of pages in the last minute; their \
                 tokens stay the same, their latency does not."
            }
            AlarmKind::EagerAboveCeiling => {
                "More than one decode step in ten of the last minute had more rows than the \
                 largest captured bucket and ran op by op."
            }
            AlarmKind::ModelFallback => {
                "No source of the default chat model could be reached at start, so the project's \
                 own small model serves: it keeps records and calls a tool, and chats about nothing \
                 else."
            }
        }
    }

    /// What to do.
    pub const fn action(self) -> &'static str {
        match self {
            AlarmKind::LabFault => "Serve with a build without the feature `lab`.",
            AlarmKind::EngineFailed => {
                "Keep the log (it names the cause), restart the server, and report the cause."
            }
            AlarmKind::Stalled => {
                "Look at the machine (CPU steal, a stopped process, swapping); if the server does \
                 not come back, restart it."
            }
            AlarmKind::AuditMismatch => {
                "Take the server out of rotation, keep the evidence (`lockstep status`), test the \
                 memory of the machine, then restart."
            }
            AlarmKind::ManifestMismatch => "As for audit_mismatch.",
            AlarmKind::BucketQuarantined => {
                "Keep the evidence; stage a new generation, which is verified before it serves, or \
                 restart."
            }
            AlarmKind::PagesSetAside => "As for audit_mismatch; the evidence names the pages.",
            AlarmKind::RequestsFailing => "The log has one line for each with its cause.",
            AlarmKind::QueueFull => {
                "Add servers, or raise `--max-queued-requests` where waiting longer is better than \
                 being refused."
            }
            AlarmKind::Draining => {
                "Nothing, if you stopped it; else look who sent it SIGTERM or Ctrl-C (SIGINT)."
            }
            AlarmKind::GenerationRejected => {
                "Read its reason (`lockstep status`), change the knobs, stage again."
            }
            AlarmKind::AuditOff => "Start with `--audit-rate 1000`.",
            AlarmKind::PoolNearlyFull => "Raise `--kv-memory`, or lower `--max-running-requests`.",
            AlarmKind::Preempting => "As for pool_nearly_full.",
            AlarmKind::EagerAboveCeiling => {
                "Raise `decode.graph-max-bs` (live, by a new generation), or lower \
                 `--max-running-requests`."
            }
            AlarmKind::ModelFallback => {
                "Name a model with `--model`, or run `lockstep pull` where the network is, then \
                 restart."
            }
        }
    }
}

/// A raised alarm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Alarm {
    /// Which.
    pub kind: AlarmKind,
    /// What it is about, with the numbers of now.
    pub words: String,
}

impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.id(), self.words)
    }
}

/// The numbers of a status that alarms compare over time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sample {
    /// When, on the engine's clock.
    pub at: Micros,
    /// Totals then.
    pub counters: Counters,
    /// Steps above the largest captured bucket, until then.
    pub above_ceiling: u64,
    /// Sequences that ran.
    pub running: u32,
    /// Sequences that waited.
    pub queued: u32,
}

impl Sample {
    /// What a status says.
    pub fn of(s: &EngineStatus) -> Sample {
        let above = s.eager_steps.iter().find(|(r, _)| *r == EagerReason::AboveGraphMaxBs);
        Sample {
            at: s.uptime,
            counters: s.counters,
            above_ceiling: above.map_or(0, |(_, n)| *n),
            running: s.running,
            queued: s.queued,
        }
    }
}

/// A window shorter than this says nothing about a stall.
const STALL_MIN: Micros = Micros::from_millis(10_000);
/// Fewer steps than this say nothing about their share.
const STEPS_MIN: u64 = 50;
/// Usage of the pool that is too much.
const POOL_NEARLY_FULL: f64 = 0.95;

/// The alarms of `now`, most urgent first. `before` is a sample of about a minute earlier.
pub fn raised(now: &EngineStatus, before: &Sample) -> Vec<Alarm> {
    let words = |kind| words(kind, now, before);
    AlarmKind::ALL
        .into_iter()
        .filter_map(|kind| Some(Alarm { kind, words: words(kind)? }))
        .collect()
}

/// What to say about `kind`; `None` where there is no alarm.
fn words(kind: AlarmKind, s: &EngineStatus, before: &Sample) -> Option<String> {
    let (c, b, now) = (&s.counters, &before.counters, Sample::of(s));
    let grew = |now: u64, then: u64| Some(now.saturating_sub(then)).filter(|n| *n > 0);
    match kind {
        AlarmKind::LabFault => s.lab.as_ref().map(|lab| {
            format!(
                "{} in {} steps of a million: {} hit so far",
                lab.drill, lab.per_million, lab.strikes
            )
        }),
        AlarmKind::EngineFailed => match &s.health {
            Health::Failed { why } => Some(why.clone()),
            _ => None,
        },
        AlarmKind::Stalled => {
            let window = s.uptime.since(before.at);
            let stuck = before.running > 0 && s.running > 0 && c.steps == b.steps;
            (stuck && window >= STALL_MIN && s.health.is_serving()).then(|| {
                format!("{} sequences, no step in {:.0} s", s.running, window.as_secs_f64())
            })
        }
        AlarmKind::AuditMismatch => {
            let parts = AuditPart::ALL.map(|p| (p, s.audit.part(p).mismatches));
            let found: Vec<String> =
                parts.iter().filter(|p| p.1 > 0).map(|(p, n)| format!("{n} in {p}")).collect();
            let first = s.audit.evidence.first().map_or(String::new(), |e| format!("; {e}"));
            (!found.is_empty()).then(|| format!("{}{first}", found.join(", ")))
        }
        AlarmKind::ManifestMismatch => (c.manifest_mismatches > 0)
            .then(|| format!("{} of {} checks", c.manifest_mismatches, c.manifest_checks)),
        AlarmKind::BucketQuarantined => {
            let out = s.buckets.iter().filter(|b| b.mode == BucketMode::Quarantined);
            let names: Vec<String> = out.map(|b| b.key.to_string()).collect();
            (!names.is_empty()).then(|| format!("out of service: {}", names.join(", ")))
        }
        AlarmKind::PagesSetAside => {
            let n = s.audit.pages_set_aside;
            (n > 0).then(|| format!("{n} page groups"))
        }
        AlarmKind::RequestsFailing => {
            grew(c.failed, b.failed).map(|n| format!("{n} in the last minute"))
        }
        AlarmKind::QueueFull => grew(c.refused_queue_full, b.refused_queue_full)
            .map(|n| format!("{n} refused in the last minute, {} wait", s.queued)),
        AlarmKind::Draining => (s.health == Health::Draining)
            .then(|| format!("{} running, {} queued", s.running, s.queued)),
        AlarmKind::GenerationRejected => {
            let newest = s.generations.last().filter(|g| g.state == GenerationState::Rejected)?;
            let why = newest.reason.as_deref().unwrap_or("no reason given");
            Some(format!("generation {}: {why}", newest.number))
        }
        AlarmKind::AuditOff => (s.audit.rate == 0).then(|| "audit.rate is 0".into()),
        AlarmKind::PoolNearlyFull => {
            let usage = s.requests_usage();
            (usage >= POOL_NEARLY_FULL).then(|| format!("{:.1}% used", 100.0 * usage))
        }
        AlarmKind::Preempting => grew(c.preemptions, b.preemptions)
            .map(|n| format!("{n} preemptions in the last minute")),
        AlarmKind::EagerAboveCeiling => {
            let steps = grew(c.decode_steps, b.decode_steps).filter(|n| *n >= STEPS_MIN)?;
            let above = grew(now.above_ceiling, before.above_ceiling)?;
            // Without the ceiling's number: a flip may have moved it within the minute.
            (10 * above > steps)
                .then(|| format!("{above} of {steps} decode steps of the last minute"))
        }
        AlarmKind::ModelFallback => Some(&s.model.stands_in).filter(|w| !w.is_empty()).cloned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{BucketUse, LabFault, SubPoolUse};
    use crate::{BucketKey, GenerationReport};

    fn well() -> EngineStatus {
        let counters = Counters { steps: 500, decode_steps: 500, ..Counters::default() };
        let uptime = Micros::from_millis(100_000);
        let mut s = EngineStatus { uptime, running: 3, counters, ..EngineStatus::default() };
        s.audit.rate = 1000;
        s.buckets.push(BucketUse {
            key: BucketKey::decode(8),
            mode: BucketMode::Captured,
            replays: 0,
            eager_steps: 0,
            live_rows: 0,
            padded_rows: 0,
            audit: Default::default(),
        });
        s.eager_steps.push((EagerReason::AboveGraphMaxBs, 0));
        s.pools.push(SubPoolUse {
            name: "full".into(),
            page_tokens: 32,
            pages_total: 100,
            pages_used: 94,
            pages_canary: 0,
            pages_cached: 0,
            tokens_used: 0,
            bytes_total: 0,
        });
        s
    }

    fn before() -> Sample {
        let mut b = Sample { at: Micros::from_millis(40_000), running: 3, ..Sample::default() };
        b.counters.decode_steps = 300;
        b
    }

    #[test]
    fn a_healthy_server_raises_nothing() {
        assert_eq!(raised(&well(), &before()), []);
    }

    #[test]
    fn each_alarm_is_raised_by_its_own_cause_alone() {
        type Cause = fn(&mut EngineStatus);
        let causes: [(AlarmKind, Cause); 16] = [
            (AlarmKind::LabFault, |s| {
                let drill = "page-bit-flip".into();
                s.lab = Some(LabFault { drill, per_million: 10, strikes: 0, replays: 0 });
            }),
            (AlarmKind::EngineFailed, |s| s.health = Health::Failed { why: "no memory".into() }),
            (AlarmKind::Stalled, |s| s.counters.steps = 0),
            (AlarmKind::AuditMismatch, |s| s.audit.parts[1].mismatches = 1),
            (AlarmKind::ManifestMismatch, |s| s.counters.manifest_mismatches = 1),
            (AlarmKind::BucketQuarantined, |s| s.buckets[0].mode = BucketMode::Quarantined),
            (AlarmKind::PagesSetAside, |s| s.audit.pages_set_aside = 2),
            (AlarmKind::RequestsFailing, |s| s.counters.failed = 1),
            (AlarmKind::QueueFull, |s| s.counters.refused_queue_full = 4),
            (AlarmKind::Draining, |s| s.health = Health::Draining),
            (AlarmKind::GenerationRejected, |s| {
                let mut report = GenerationReport::planned(2);
                report.reject("no memory", Micros(0));
                s.generations.push(report);
            }),
            (AlarmKind::AuditOff, |s| s.audit.rate = 0),
            (AlarmKind::PoolNearlyFull, |s| s.pools[0].pages_used = 95),
            (AlarmKind::Preempting, |s| s.counters.preemptions = 1),
            (AlarmKind::EagerAboveCeiling, |s| s.eager_steps[0].1 = 21),
            (AlarmKind::ModelFallback, |s| s.model.stands_in = "recall".into()),
        ];
        for (kind, cause) in causes {
            let mut s = well();
            cause(&mut s);
            let found = raised(&s, &before());
            assert_eq!(found.iter().map(|a| a.kind).collect::<Vec<_>>(), [kind], "{found:?}");
            assert!(!found[0].words.is_empty());
        }
        assert_eq!(causes.map(|c| c.0), AlarmKind::ALL, "every kind has its cause here");
    }

    #[test]
    fn what_passed_is_not_raised_and_what_is_rare_neither() {
        let mut s = well();
        s.counters.failed = 7;
        s.eager_steps[0].1 = 20;
        let mut b = before();
        b.counters.failed = 7;
        assert_eq!(raised(&s, &b), [], "20 of 200 steps are not more than one in ten");
        s.eager_steps[0].1 = 30;
        b.counters.decode_steps = 460;
        assert_eq!(raised(&s, &b), [], "40 steps are too few to say");
        s.counters.steps = 0;
        b.at = Micros::from_millis(95_000);
        assert_eq!(raised(&s, &b), [], "five seconds are too short for a stall");
    }

    /// An idle server whose canary steps held most of a small pool once raised it.
    #[test]
    fn canary_pages_do_not_fill_the_pool() {
        let mut s = well();
        (s.pools[0].pages_used, s.pools[0].pages_canary) = (98, 90);
        assert_eq!(raised(&s, &before()), []);
        s.pools[0].pages_canary = 3;
        assert_eq!(raised(&s, &before())[0].kind, AlarmKind::PoolNearlyFull);
    }

    #[test]
    fn urgent_ones_come_first() {
        let levels = AlarmKind::ALL.map(AlarmKind::level);
        assert!(levels.is_sorted_by(|a, b| a >= b));
        let mut ids = AlarmKind::ALL.map(AlarmKind::id);
        ids.sort_unstable();
        assert!(ids.windows(2).all(|w| w[0] != w[1]));
    }
}
