//! What the log says when something about the engine has changed: one event a change, structured
//! where the log is JSON.

use lockstep_flow::alarms::{Alarm, Level};
use lockstep_flow::status::{BucketMode, Health};
use lockstep_flow::{EngineStatus, GenerationReport, GenerationState};

/// How loud.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loudness {
    Info,
    Warn,
    Error,
}

/// One event of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notice {
    loudness: Loudness,
    /// What kind of event: a word to filter by.
    pub event: &'static str,
    /// The bucket that it is about.
    pub bucket: Option<String>,
    /// The generation that it is about.
    pub generation: Option<u64>,
    /// The alarm that it is about.
    pub alarm: Option<&'static str>,
    /// The rest, for people.
    pub words: String,
}

impl Notice {
    fn new(loudness: Loudness, event: &'static str, words: impl Into<String>) -> Notice {
        let (bucket, generation, alarm) = (None, None, None);
        Notice { loudness, event, bucket, generation, alarm, words: words.into() }
    }
}

/// What is different in `now`.
pub fn between(before: &EngineStatus, now: &EngineStatus) -> Vec<Notice> {
    let mut notices = Vec::new();
    if now.health != before.health {
        let loudness = match now.health {
            Health::Failed { .. } => Loudness::Error,
            _ => Loudness::Info,
        };
        notices.push(Notice::new(loudness, "health", now.health.to_string()));
    }
    let known = before.audit.evidence.len();
    for evidence in now.audit.evidence.iter().skip(known) {
        notices.push(Notice::new(Loudness::Error, "audit_mismatch", evidence.clone()));
    }
    for report in &now.generations {
        let known = before.generation_report(report.number).map_or(0, |r| r.moves.len());
        let moves = report.moves.iter().skip(known);
        notices.extend(moves.map(|(state, _)| of_move(report, *state)));
    }
    if now.generation == before.generation {
        let pairs = before.buckets.iter().zip(&now.buckets);
        for (_, bucket) in pairs.filter(|(b, n)| b.mode != n.mode) {
            let (loudness, event) = match bucket.mode {
                BucketMode::Quarantined => (Loudness::Error, "quarantine"),
                BucketMode::Captured | BucketMode::Eager => (Loudness::Info, "bucket_mode"),
            };
            let words = format!("bucket {} is {}", bucket.key, bucket.mode.as_str());
            let notice = Notice::new(loudness, event, words);
            notices.push(Notice { bucket: Some(bucket.key.to_string()), ..notice });
        }
    }
    notices
}

fn of_move(report: &GenerationReport, state: GenerationState) -> Notice {
    let (loudness, event) = match state {
        GenerationState::Live => (Loudness::Info, "flip"),
        GenerationState::Draining => (Loudness::Info, "drain"),
        GenerationState::Retired => (Loudness::Info, "retire"),
        GenerationState::Rejected => (Loudness::Warn, "reject"),
        _ => (Loudness::Info, "stage"),
    };
    let mut words = format!("generation {} is {state}", report.number);
    if let (true, Some(why)) = (state == report.state, &report.reason) {
        words.push_str(&format!(": {why}"));
    }
    Notice { generation: Some(report.number), ..Notice::new(loudness, event, words) }
}

/// Alarms that were raised or have gone.
pub fn of_alarms(before: &[Alarm], now: &[Alarm]) -> Vec<Notice> {
    let in_both = |a: &Alarm, others: &[Alarm]| others.iter().any(|o| o.kind == a.kind);
    let raised = now.iter().filter(|a| !in_both(a, before)).map(|a| {
        let loudness = match a.kind.level() {
            Level::Act => Loudness::Error,
            Level::Look => Loudness::Warn,
        };
        let words = format!("{}; {}", a, a.kind.action());
        let notice = Notice::new(loudness, "alarm_raised", words);
        Notice { alarm: Some(a.kind.id()), ..notice }
    });
    let gone = before.iter().filter(|a| !in_both(a, now)).map(|a| {
        let notice = Notice::new(Loudness::Info, "alarm_cleared", a.kind.id());
        Notice { alarm: Some(a.kind.id()), ..notice }
    });
    raised.chain(gone).collect()
}

/// Writes them.
pub fn log(notices: &[Notice]) {
    for n in notices {
        let Notice { event, bucket, generation, alarm, words, .. } = n;
        let bucket = bucket.as_deref();
        match n.loudness {
            Loudness::Info => tracing::info!(event, bucket, generation, alarm, "{words}"),
            Loudness::Warn => tracing::warn!(event, bucket, generation, alarm, "{words}"),
            Loudness::Error => tracing::error!(event, bucket, generation, alarm, "{words}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_flow::alarms::AlarmKind;
    use lockstep_flow::status::BucketUse;
    use lockstep_flow::{BucketKey, Micros};

    fn status() -> EngineStatus {
        let bucket = BucketUse {
            key: BucketKey::decode(8),
            mode: BucketMode::Captured,
            replays: 0,
            eager_steps: 0,
            live_rows: 0,
            padded_rows: 0,
            audit: Default::default(),
        };
        EngineStatus { buckets: vec![bucket], ..EngineStatus::default() }
    }

    #[test]
    fn nothing_new_says_nothing() {
        assert_eq!(between(&status(), &status()), []);
        let alarm = Alarm { kind: AlarmKind::QueueFull, words: "4 refused".into() };
        let other = Alarm { words: "5 refused".into(), ..alarm.clone() };
        assert_eq!(of_alarms(&[alarm], &[other]), [], "it is still the same alarm");
    }

    #[test]
    fn a_finding_and_its_quarantine_are_two_events() {
        let mut now = status();
        now.audit.evidence.push("twin: step 7 of bucket decode-8: logits differ".into());
        now.buckets[0].mode = BucketMode::Quarantined;
        now.health = Health::Failed { why: "no memory".into() };
        let found = between(&status(), &now);
        let events: Vec<&str> = found.iter().map(|n| n.event).collect();
        assert_eq!(events, ["health", "audit_mismatch", "quarantine"]);
        assert!(found.iter().all(|n| n.loudness == Loudness::Error));
        assert_eq!(found[2].bucket.as_deref(), Some("decode-8"));
        assert_eq!(between(&now, &now.clone()), [], "said once");
    }

    #[test]
    fn every_move_of_a_generation_is_said_once() {
        let mut before = status();
        before.generations.push(GenerationReport::planned(2));
        let mut now = before.clone();
        for state in &GenerationState::ALL[1..7] {
            now.generations[0].advance(*state, Micros(1)).unwrap();
        }
        now.generation = 2;
        let events: Vec<&str> = between(&before, &now).iter().map(|n| n.event).collect();
        assert_eq!(events, ["stage", "stage", "stage", "stage", "stage", "flip"]);
        let mut after = now.clone();
        after.generations.push(GenerationReport::planned(3));
        after.generations[1].reject("no memory", Micros(2));
        let found = between(&now, &after);
        assert_eq!((found.len(), found[0].generation), (1, Some(3)));
        assert_eq!(found[0].words, "generation 3 is rejected: no memory");
    }

    #[test]
    fn an_alarm_is_said_when_it_comes_and_when_it_goes() {
        let alarm = || Alarm { kind: AlarmKind::QueueFull, words: "4 refused".into() };
        let came = of_alarms(&[], &[alarm()]);
        assert_eq!((came[0].event, came[0].alarm), ("alarm_raised", Some("queue_full")));
        assert!(came[0].words.contains("4 refused; Add servers"), "{}", came[0].words);
        assert_eq!(of_alarms(&[alarm()], &[])[0].event, "alarm_cleared");
    }
}
