//! A server that leaves, or becomes another process, while it is asked one request at a time.

use super::answer::{Answer, Tally};
use super::load::Bench;
use crate::client::{Client, Outcome};
use crate::coverage::{Samples, Snapshot, is_restarted};
use crate::stop::Stop;
use core::fmt;
use std::time::Duration;

/// How long a server that went away may take to be there again, to be told from one that stays away.
const RETURN_WAIT: Duration = Duration::from_secs(5);
/// Between two looks.
const EVERY: Duration = Duration::from_millis(250);

/// What became of a server whose answers alone were being gathered.
#[derive(Clone, PartialEq, Debug)]
pub struct Lost {
    /// Where it was.
    pub url: String,
    /// Answers that it had given alone.
    pub answers: u64,
    /// How it is known to be away; `None`: it is there again, as another process.
    pub outcome: Option<Outcome>,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lost { url, answers, outcome } = self;
        let after = match answers {
            0 => "before its first answer".to_owned(),
            1 => "after 1 answer".to_owned(),
            n => format!("after {n} answers"),
        };
        let asked = "while it was asked one request at a time";
        match outcome {
            None => write!(
                f,
                "the server at {url} ended and was started again {asked}, {after}; what one \
                 process answers alone is no measure of the next: its log may say why it ended, \
                 and once it stays up, check it again"
            ),
            Some(outcome @ Outcome::Timeout { .. }) => write!(
                f,
                "the server at {url} answers no more ({outcome}), {after} that it gave one at a \
                 time; its log may say why, and --timeout gives a slow one longer"
            ),
            Some(outcome) => write!(
                f,
                "the server at {url} went away {asked}, {after} ({outcome}); its log may say why \
                 it ended: start it again, and once it stays up, check it again"
            ),
        }
    }
}

/// How a server is away; nothing where it answers.
pub async fn absence(client: &Client) -> Option<Outcome> {
    client.models().await.err().filter(Outcome::is_silent)
}

/// What became of a server that was found to be away after so many answers.
pub async fn away(bench: &Bench, answers: u64) -> Option<Lost> {
    let outcome = bench.lost.get()?.clone();
    let is_back = is_back(&bench.client, &bench.stop).await;
    let url = bench.client.target().to_string();
    Some(Lost { url, answers, outcome: Some(outcome).filter(|_| !is_back) })
}

/// What became of the server, if it is not the one any more that was there at the start: `origin` is
/// what it told then, `now` what it tells now. `alone` are its answers since, but for `earlier` ones.
pub async fn find(
    bench: &Bench,
    earlier: u64,
    alone: &[Answer],
    origin: &Snapshot,
    now: &Snapshot,
) -> Option<Lost> {
    let answers = earlier + Tally::of(alone).judged();
    if let Some(lost) = away(bench, answers).await {
        return Some(lost);
    }
    // Without a request that failed, nobody was away: counts of several servers may be at one address.
    let has_failed = alone.iter().any(|a| !a.verdict.is_answer());
    let has_fallen = origin.grows.zip(now.grows).is_some_and(|(was, is)| is < was);
    let is_new = is_restarted(origin, now, &Samples::default()) || has_fallen;
    let url = bench.client.target().to_string();
    (has_failed && is_new).then_some(Lost { url, answers, outcome: None })
}

/// Whether it answers again before long.
async fn is_back(client: &Client, stop: &Stop) -> bool {
    let answers = async {
        while absence(client).await.is_some() {
            tokio::time::sleep(EVERY).await;
        }
    };
    let in_time = tokio::time::timeout(RETURN_WAIT, answers);
    matches!(stop.unless(in_time).await, Some(Ok(())))
}
