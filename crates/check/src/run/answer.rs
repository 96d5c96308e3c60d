//! A judged answer.

use crate::judge::{Reply, Verdict};

/// A judged answer.
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    /// Which wave; 0 is the calibration.
    pub wave: u32,
    /// Whose.
    pub session: u32,
    /// To which of the session's requests.
    pub step: usize,
    /// Its place among all answers of the run, by when they were asked for.
    pub order: u32,
    /// Requests of this client in flight when it was asked for, itself included.
    pub in_flight: u32,
    /// Whether it was streamed.
    pub streamed: bool,
    /// Whether it counts: the model can do this alone, or its answer alone is known to the letter.
    pub is_evidence: bool,
    /// What it was.
    pub verdict: Verdict,
    /// The answer, where it was not right.
    pub reply: Option<Reply>,
    /// Milliseconds from the start of the load to the request.
    pub asked_ms: u64,
    /// Milliseconds from the request to the end of the answer.
    pub took_ms: u64,
}

/// Answers by class.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// Right.
    pub ok: u64,
    /// Plausible and wrong.
    pub wrong: u64,
    /// Damaged.
    pub corrupted: u64,
    /// HTTP or protocol.
    pub errors: u64,
    /// Not in time.
    pub timeouts: u64,
    /// The server was full.
    pub refused: u64,
}

impl Tally {
    /// Of these answers.
    pub fn of<'a>(answers: impl IntoIterator<Item = &'a Answer>) -> Tally {
        let mut tally = Tally::default();
        answers.into_iter().for_each(|a| tally.count(&a.verdict));
        tally
    }

    /// Counts one.
    pub fn count(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Ok => self.ok += 1,
            Verdict::Wrong(_) => self.wrong += 1,
            Verdict::Corrupted(_) => self.corrupted += 1,
            Verdict::Error { .. } => self.errors += 1,
            Verdict::Timeout => self.timeouts += 1,
            Verdict::Refused => self.refused += 1,
            Verdict::Aborted => {}
        }
    }

    /// Answers that could be judged.
    pub fn judged(&self) -> u64 {
        self.ok + self.wrong + self.corrupted
    }
}
