//! Load over time: a sample of the engine's status each second, what becomes of two of them when
//! they are compared, and the lines that the log gets.

use crate::engine::{Engine, present};
use crate::notices;
use lockstep_flow::EngineStatus;
use lockstep_flow::alarms::{self, Sample};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval};

/// Seconds of history.
const SAMPLES_MAX: usize = 300;
/// Alarms compare the present with what was this many samples ago.
const MINUTE: usize = 60;

/// What the last minutes were like.
#[derive(Default, Debug)]
pub struct Load(Mutex<VecDeque<Sample>>);

/// Output tokens a second from one sample to a later one.
pub fn per_second(before: &Sample, now: &Sample) -> f64 {
    let tokens = now.counters.generated_tokens.saturating_sub(before.counters.generated_tokens);
    tokens as f64 / now.at.since(before.at).as_secs_f64().max(1e-3)
}

impl Load {
    fn samples(&self) -> MutexGuard<'_, VecDeque<Sample>> {
        // Plain numbers: they are readable after any panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Output tokens a second over the last second; 0 before there were two samples.
    pub fn tokens_per_second(&self) -> f64 {
        let samples = self.samples();
        let mut last = samples.iter().rev();
        match (last.next(), last.next()) {
            (Some(now), Some(before)) => per_second(before, now),
            _ => 0.0,
        }
    }

    /// The sample of a minute ago; the oldest one where the server is younger.
    pub fn minute_ago(&self) -> Sample {
        let samples = self.samples();
        let at = samples.len().saturating_sub(MINUTE);
        samples.get(at).copied().unwrap_or_default()
    }

    /// Every sample, oldest first, about a second apart.
    pub fn history(&self) -> Vec<Sample> {
        self.samples().iter().copied().collect()
    }

    fn push(&self, sample: Sample) {
        let mut samples = self.samples();
        if samples.len() == SAMPLES_MAX {
            samples.pop_front();
        }
        samples.push_back(sample);
    }
}

const TICK: Duration = Duration::from_secs(1);

/// Keeps the history current, logs what has changed and prints the decode line. Runs until `ended`
/// is there or its sender gone; then comes the line of what was since the last one.
pub async fn watch(
    engine: Arc<dyn Engine>,
    load: Arc<Load>,
    log_every: Duration,
    mut ended: oneshot::Receiver<()>,
) {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = present(engine.as_ref());
    let mut raised = Vec::new();
    let mut printed = Sample::of(&last);
    // Counted, since a tick that comes a moment early would put the line off to the next.
    let mut ticks = 0;
    let mut is_over = false;
    while !is_over {
        tokio::select! {
            _ = tick.tick() => {}
            _ = &mut ended => is_over = true,
        }
        let now = present(engine.as_ref());
        let sample = Sample::of(&now);
        notices::log(&notices::between(&last, &now));
        let alarms = alarms::raised(&now, &load.minute_ago());
        if !is_over {
            // That it drains is no news of a server that has ended.
            notices::log(&notices::of_alarms(&raised, &alarms));
        }
        load.push(sample);
        ticks += 1;
        if !log_every.is_zero() && (is_over || ticks >= log_every.as_secs()) {
            if sample.counters.decode_steps > printed.counters.decode_steps {
                tracing::info!("{}", decode_line(&printed, &now));
            }
            (printed, ticks) = (sample, 0);
        }
        (last, raised) = (now, alarms);
    }
}

/// The line that parsers of SGLang's log read. `#running-req` is of one step as it is there: the
/// last one that decoded, since what runs when the line is due may have ended or not decoded yet.
/// The rest covers all since the last line: `cuda graph` is True only where every decode step
/// replayed a captured bucket.
fn decode_line(before: &Sample, now: &EngineStatus) -> String {
    let sample = Sample::of(now);
    let (c, b) = (&sample.counters, &before.counters);
    let steps = c.decode_steps.saturating_sub(b.decode_steps);
    let captured = c.decode_steps_captured.saturating_sub(b.decode_steps_captured);
    let usage = match now.pools.as_slice() {
        [only] => format!("#token: {}, token usage: {:.2}", only.tokens_used, only.usage()),
        pools => pools
            .iter()
            .map(|p| {
                let name = &p.name;
                format!("#{name} token: {}, {name} token usage: {:.2}", p.tokens_used, p.usage())
            })
            .collect::<Vec<_>>()
            .join(", "),
    };
    format!(
        "Decode batch, #running-req: {}, {usage}, cuda graph: {}, gen throughput (token/s): \
         {:.2}, #queue-req: {}, #decode-step: {steps}, #eager-step: {}",
        now.decoded,
        if captured == steps { "True" } else { "False" },
        per_second(before, &sample),
        now.queued,
        steps.saturating_sub(captured),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_flow::Micros;
    use lockstep_flow::status::{Counters, SubPoolUse};

    fn status(seconds: u64, steps: u64, captured: u64, tokens: u64) -> EngineStatus {
        EngineStatus {
            uptime: Micros::from_millis(1000 * seconds),
            running: 3,
            queued: 2,
            decoded: 3,
            pools: vec![SubPoolUse {
                name: "full".into(),
                page_tokens: 32,
                pages_total: 100,
                pages_used: 25,
                pages_canary: 0,
                pages_cached: 0,
                tokens_used: 777,
                bytes_total: 0,
            }],
            counters: Counters {
                decode_steps: steps,
                decode_steps_captured: captured,
                generated_tokens: tokens,
                ..Counters::default()
            },
            ..EngineStatus::default()
        }
    }

    #[test]
    fn the_line_has_the_fields_that_parsers_look_for() {
        let line = decode_line(&Sample::of(&status(5, 10, 10, 100)), &status(7, 50, 50, 300));
        assert_eq!(
            line,
            "Decode batch, #running-req: 3, #token: 777, token usage: 0.25, cuda graph: True, \
             gen throughput (token/s): 100.00, #queue-req: 2, #decode-step: 40, #eager-step: 0"
        );
    }

    #[test]
    fn one_eager_step_makes_the_line_say_false() {
        let line = decode_line(&Sample::of(&status(5, 10, 10, 100)), &status(7, 50, 49, 300));
        assert!(line.contains("cuda graph: False"), "{line}");
        assert!(line.ends_with("#eager-step: 1"), "{line}");
    }

    /// A load that had ended when its line was due once read as steps of no request, and a check
    /// that followed the log found no batch size in it.
    #[test]
    fn the_line_tells_the_batch_of_a_load_that_has_ended() {
        let now = EngineStatus { running: 0, decoded: 7, ..status(7, 50, 50, 300) };
        let line = decode_line(&Sample::of(&status(5, 10, 10, 100)), &now);
        assert!(line.starts_with("Decode batch, #running-req: 7, "), "{line}");
    }

    #[test]
    fn a_rate_needs_two_samples_and_the_history_is_bounded() {
        let load = Load::default();
        assert_eq!((load.tokens_per_second(), load.minute_ago()), (0.0, Sample::default()));
        for second in 1..=400 {
            load.push(Sample::of(&status(second, 0, 0, 50 * second)));
        }
        assert_eq!(load.tokens_per_second(), 50.0);
        assert_eq!(load.history().len(), SAMPLES_MAX);
        assert_eq!(load.minute_ago().at, Micros::from_millis(341_000));
    }
}
