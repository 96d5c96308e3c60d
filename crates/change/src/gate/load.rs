//! The same load before and after: closed loops of the load generator.

use super::{Load, Measured, sample};
use crate::fault::ChangeError;
use crate::web::Web;
use lockstep_check::bench::{
    Arrivals, Dataset, Point, Progress, Server, Settings, Slo, Workload, sweep,
};

/// Takes greedy answers one at a time, then runs the load. `say` is told of each concurrency.
///
/// # Errors
/// The server cannot be asked at all; requests that fail are counted.
pub fn measure(web: &Web, load: &Load, say: &mut dyn FnMut(&str)) -> Result<Measured, ChangeError> {
    let alone = sample(web, load.tokens)?;
    let points = web.runtime().block_on(points(web, load, say))?;
    Ok(Measured { points, alone })
}

async fn points(
    web: &Web,
    load: &Load,
    say: &mut dyn FnMut(&str),
) -> Result<Vec<Point>, ChangeError> {
    let client = web.client(load.timeout_seconds);
    let server = Server::probe(client, None).await;
    let server = server.map_err(|e| ChangeError::Gate { what: e.to_string() })?;
    let workload = Workload {
        dataset: Dataset::Fixed,
        input_tokens: load.input,
        output_tokens: load.tokens,
        prefix_tokens: 0,
        groups: 1,
        turns: 1,
        context_tokens: server.context_tokens,
    };
    let mut points = Vec::new();
    for &concurrency in &load.concurrency {
        let settings = Settings {
            loads: vec![Arrivals::Closed { concurrency }],
            workload,
            requests: Some(concurrency.saturating_mul(load.rounds)),
            seed: load.seed,
            ci: 0.0,
            repeats_min: load.repeats,
            repeats_max: load.repeats,
            slo: Slo::default(),
            has_warmup: true,
        };
        sweep(&server, &settings, &Progress::default(), |point| {
            say(&said(&point));
            points.push(point);
        })
        .await;
    }
    Ok(points)
}

fn said(point: &Point) -> String {
    let sent = point.extra.as_ref().map_or(0, |e| e.sent);
    let range = point.extra.as_ref().and_then(|e| e.output_throughput.half_width);
    let range = range.map_or(String::new(), |h| format!(" (95%: ± {h:.1})"));
    format!(
        "at {}: {:.1} tokens/s{range}, {} of {sent} answered",
        point.load(),
        point.totals.output_throughput,
        point.totals.completed
    )
}
