//! What the model can do alone: the same requests, one at a time, before the load.

use crate::judge::{Reply, Verdict};
use std::collections::HashMap;

/// A request that the model gets right in fewer of its calibrations than this proves nothing.
const RIGHT_SHARE_MIN: f64 = 0.8;

/// One request's calibrations.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Trials {
    /// Answers that could be judged.
    pub tries: u32,
    /// Right ones.
    pub right: u32,
    /// The first right one, else the first.
    pub reply: Option<Reply>,
    is_right: bool,
}

/// What an answer under load is held against.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Basis<'a> {
    /// The model can do this: the answer alone was right.
    Right(&'a Reply),
    /// The model cannot do this, or not reliably; this is what it says alone.
    Weak(&'a Reply),
    /// Nothing came alone.
    None,
}

/// All calibrations of a run.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Calibration {
    trials: HashMap<(u32, usize), Trials>,
    /// Judged again after a right first pass: what a fair second look says of the base rate.
    repeated: u64,
    repeated_wrong: u64,
}

impl Calibration {
    /// Takes a calibration's verdict on a request.
    pub fn take(&mut self, session: u32, step: usize, verdict: &Verdict, reply: Option<&Reply>) {
        if !verdict.is_answer() {
            return;
        }
        let right = *verdict == Verdict::Ok;
        let trials = self.trials.entry((session, step)).or_default();
        if trials.tries > 0 && trials.is_right {
            self.repeated += 1;
            self.repeated_wrong += u64::from(!right);
        }
        trials.tries += 1;
        trials.right += u32::from(right);
        if right && !trials.is_right || trials.reply.is_none() {
            trials.reply = reply.cloned();
            trials.is_right = right;
        }
    }

    /// What an answer to this request is held against.
    pub fn basis(&self, session: u32, step: usize) -> Basis<'_> {
        let Some(trials) = self.trials.get(&(session, step)) else { return Basis::None };
        let Some(reply) = &trials.reply else { return Basis::None };
        let share = f64::from(trials.right) / f64::from(trials.tries.max(1));
        if trials.is_right && share >= RIGHT_SHARE_MIN {
            Basis::Right(reply)
        } else {
            Basis::Weak(reply)
        }
    }

    /// Requests that were answered.
    pub fn requests(&self) -> u64 {
        self.trials.len() as u64
    }

    /// Requests that the model can do.
    pub fn reliable(&self) -> u64 {
        let is = |(session, step): &&(u32, usize)| {
            matches!(self.basis(*session, *step), Basis::Right(_))
        };
        self.trials.keys().filter(is).count() as u64
    }

    /// Wrong ones among second and later passes over requests whose first pass was right, and how
    /// many such there were: the rate at which the model fails alone what it can do.
    pub fn base_rate(&self) -> (u64, u64) {
        (self.repeated_wrong, self.repeated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::Wrong;

    fn reply(text: &str) -> Reply {
        Reply { text: text.into(), ..Reply::default() }
    }

    #[test]
    fn four_of_five_is_reliable_and_three_of_four_is_not() {
        let wrong = Verdict::Wrong(Wrong::Length);
        let mut c = Calibration::default();
        for right in [true, true, false, true] {
            let verdict = if right { Verdict::Ok } else { wrong.clone() };
            c.take(1, 0, &verdict, Some(&reply(if right { "a" } else { "b" })));
        }
        assert_eq!(c.basis(1, 0), Basis::Weak(&reply("a")));
        c.take(1, 0, &Verdict::Ok, Some(&reply("a")));
        assert_eq!(c.basis(1, 0), Basis::Right(&reply("a")));
        assert_eq!((c.requests(), c.reliable(), c.base_rate()), (1, 1, (1, 4)));
    }

    #[test]
    fn what_did_not_answer_is_no_calibration() {
        let mut c = Calibration::default();
        c.take(1, 0, &Verdict::Timeout, None);
        assert_eq!((c.basis(1, 0), c.requests()), (Basis::None, 0));
        c.take(1, 0, &Verdict::Wrong(Wrong::Length), Some(&reply("x")));
        assert_eq!(c.basis(1, 0), Basis::Weak(&reply("x")));
        c.take(1, 0, &Verdict::Ok, Some(&reply("y")));
        assert_eq!(c.basis(1, 0), Basis::Weak(&reply("y")), "one of two");
    }
}
