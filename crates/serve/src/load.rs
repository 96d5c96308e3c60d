//! Rates: what a status becomes when two of them are compared, and the line that shows it.

use crate::Engine;
use lockstep_flow::EngineStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval};

/// Output tokens a second over the last tick; 0 where nothing was produced in it.
#[derive(Default, Debug)]
pub struct Throughput(AtomicU64);

impl Throughput {
    /// The present rate.
    pub fn tokens_per_second(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, rate: f64) {
        self.0.store(rate.to_bits(), Ordering::Relaxed);
    }
}

const TICK: Duration = Duration::from_secs(1);

/// Keeps the rate current and prints the decode line. Runs until it is dropped.
pub async fn watch(engine: Arc<dyn Engine>, rate: Arc<Throughput>, log_every: Duration) {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut last, mut at) = (engine.status(), Instant::now());
    let (mut printed, mut printed_at) = (last.clone(), at);
    loop {
        tick.tick().await;
        let (now, now_at) = (engine.status(), Instant::now());
        let seconds = now_at.duration_since(at).as_secs_f64();
        if seconds < TICK.as_secs_f64() / 2.0 {
            continue;
        }
        rate.set(per_second(&last, &now, seconds));
        if !log_every.is_zero() && now_at.duration_since(printed_at) >= log_every {
            let seconds = now_at.duration_since(printed_at).as_secs_f64();
            if now.counters.decode_steps > printed.counters.decode_steps {
                tracing::info!("{}", decode_line(&printed, &now, seconds));
            }
            (printed, printed_at) = (now.clone(), now_at);
        }
        (last, at) = (now, now_at);
    }
}

fn per_second(before: &EngineStatus, now: &EngineStatus, seconds: f64) -> f64 {
    let tokens = now.counters.generated_tokens.saturating_sub(before.counters.generated_tokens);
    tokens as f64 / seconds.max(1e-9)
}

/// The line that parsers of SGLang's log read. Where that samples one step, this covers all since
/// the last line: `cuda graph` is True only where every decode step replayed a captured bucket.
fn decode_line(before: &EngineStatus, now: &EngineStatus, seconds: f64) -> String {
    let steps = now.counters.decode_steps - before.counters.decode_steps;
    let captured = now.counters.decode_steps_captured - before.counters.decode_steps_captured;
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
        now.running,
        if captured == steps { "True" } else { "False" },
        per_second(before, now, seconds),
        now.queued,
        steps - captured,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_flow::status::{Counters, SubPoolUse};

    fn status(steps: u64, captured: u64, tokens: u64) -> EngineStatus {
        EngineStatus {
            running: 3,
            queued: 2,
            pools: vec![SubPoolUse {
                name: "full".into(),
                page_tokens: 32,
                pages_total: 100,
                pages_used: 25,
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
        let line = decode_line(&status(10, 10, 100), &status(50, 50, 300), 2.0);
        assert_eq!(
            line,
            "Decode batch, #running-req: 3, #token: 777, token usage: 0.25, cuda graph: True, \
             gen throughput (token/s): 100.00, #queue-req: 2, #decode-step: 40, #eager-step: 0"
        );
    }

    #[test]
    fn one_eager_step_makes_the_line_say_false() {
        let line = decode_line(&status(10, 10, 100), &status(50, 49, 300), 2.0);
        assert!(line.contains("cuda graph: False"), "{line}");
        assert!(line.ends_with("#eager-step: 1"), "{line}");
    }
}
