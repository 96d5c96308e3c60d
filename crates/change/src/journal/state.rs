//! The states of a change and the moves between them.

use core::fmt;

/// Where a change stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// What is asked for, what is there, and what is predicted.
    Proposed,
    /// Nothing speaks against it, and the baseline is measured.
    Checked,
    /// Every file that will be written has a byte-exact copy.
    BackedUp,
    /// The new setting is there beside the old one: a staged generation, an edited file.
    Staged,
    /// What was staged is what was asked for, and has shown that it is right.
    Proven,
    /// Production runs with it.
    Flipped,
    /// The watch window has closed and every gate was passed.
    Watched,
    /// It stays, also over a restart.
    Kept,
    /// The old setting runs, which was verified.
    RolledBack,
    /// Whether the old setting runs or the new one is not known; an operator closed it.
    Closed,
}

impl State {
    /// Every state in order.
    pub const ALL: [State; 10] = [
        State::Proposed,
        State::Checked,
        State::BackedUp,
        State::Staged,
        State::Proven,
        State::Flipped,
        State::Watched,
        State::Kept,
        State::RolledBack,
        State::Closed,
    ];

    /// The word in the journal.
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Proposed => "proposed",
            State::Checked => "checked",
            State::BackedUp => "backed_up",
            State::Staged => "staged",
            State::Proven => "proven",
            State::Flipped => "flipped",
            State::Watched => "watched",
            State::Kept => "kept",
            State::RolledBack => "rolled_back",
            State::Closed => "closed",
        }
    }

    /// The state of a word.
    pub fn parse(word: &str) -> Option<State> {
        State::ALL.into_iter().find(|s| s.as_str() == word)
    }

    /// One step on, or back from anything that is not over, or closed.
    pub fn may_become(self, next: State) -> bool {
        match next {
            State::RolledBack | State::Closed => !self.is_over(),
            next => !self.is_over() && next as u8 == self as u8 + 1,
        }
    }

    /// True where nothing is left to be done.
    pub const fn is_over(self) -> bool {
        matches!(self, State::Kept | State::RolledBack | State::Closed)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_goes_one_state_at_a_time_or_back() {
        let legal = State::ALL.iter().flat_map(|a| State::ALL.iter().map(move |b| (*a, *b)));
        let legal: Vec<_> = legal.filter(|(a, b)| a.may_become(*b)).collect();
        // Seven steps on; each of the seven states that are not over may go back or be closed.
        assert_eq!(legal.len(), 7 + 7 + 7);
        assert!(State::Watched.may_become(State::Kept));
        assert!(!State::Flipped.may_become(State::Kept), "nothing is kept unwatched");
        for s in State::ALL {
            assert_eq!(State::parse(s.as_str()), Some(s));
        }
    }
}
