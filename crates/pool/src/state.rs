//! The states of a page, and the only ways from one to another.

use crate::PoolError;
use core::fmt;
use lockstep_flow::{Micros, PageId, RequestId};

/// A handoff of pages to or from another process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TransferId(pub u64);

/// What ends a quarantine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// The completion of this lease, and so of all before it.
    Lease(u64),
    /// A peer that might still write is known to be quiet from then on.
    Time(Micros),
    /// The pool has no other page to give: the audit found other bytes in it than it closed with.
    Needed,
}

/// Who holds a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageState {
    /// Nobody; on the free list.
    Free,
    /// One running request, which alone may write it.
    Owned(RequestId),
    /// The prefix index, and so many running sequences that read it; nobody writes it.
    Shared(u32),
    /// A transfer: a peer may read or write it.
    InFlight(TransferId),
    /// Nobody any more, but somebody may still touch it.
    Quarantined(Until),
    /// Page 0: padded rows write here.
    Reserved,
}

impl fmt::Display for PageState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PageState::Free => write!(f, "free"),
            PageState::Owned(r) => write!(f, "owned by request {r}"),
            PageState::Shared(n) => write!(f, "shared by {n} sequences"),
            PageState::InFlight(t) => write!(f, "in flight in transfer {}", t.0),
            PageState::Quarantined(Until::Lease(g)) => {
                write!(f, "quarantined until lease {g} completes")
            }
            PageState::Quarantined(Until::Time(t)) => {
                write!(f, "quarantined until {} us", t.0)
            }
            PageState::Quarantined(Until::Needed) => write!(f, "set aside by the audit"),
            PageState::Reserved => write!(f, "reserved"),
        }
    }
}

/// The state of every page. Each method is one legal move; anything else is refused and changes
/// nothing.
#[derive(Debug)]
pub struct PageStates {
    states: Vec<PageState>,
}

impl PageStates {
    /// `pages` pages: the first reserved, the others free.
    pub fn new(pages: u32) -> PageStates {
        let mut states = vec![PageState::Free; pages as usize];
        if let Some(first) = states.first_mut() {
            *first = PageState::Reserved;
        }
        PageStates { states }
    }

    /// The state of `page`; a page that does not exist counts as reserved.
    pub fn get(&self, page: PageId) -> PageState {
        self.states.get(page.index()).copied().unwrap_or(PageState::Reserved)
    }

    /// Pages, the reserved one included.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// True for a table of no pages.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    fn go(
        &mut self,
        page: PageId,
        to: &'static str,
        next: impl FnOnce(PageState) -> Option<PageState>,
    ) -> Result<PageState, PoolError> {
        let from = self.get(page);
        let next = next(from).ok_or(PoolError::IllegalMove { page, from, to })?;
        self.states[page.index()] = next;
        Ok(next)
    }

    /// Free -> Owned.
    pub fn take(&mut self, page: PageId, by: RequestId) -> Result<PageState, PoolError> {
        self.go(page, "owned", |s| (s == PageState::Free).then_some(PageState::Owned(by)))
    }

    /// Owned by `by` -> Shared by that one sequence.
    pub fn share(&mut self, page: PageId, by: RequestId) -> Result<PageState, PoolError> {
        self.go(page, "shared", |s| (s == PageState::Owned(by)).then_some(PageState::Shared(1)))
    }

    /// One more reader of a shared page.
    pub fn acquire(&mut self, page: PageId) -> Result<PageState, PoolError> {
        self.go(page, "read by one more", |s| match s {
            PageState::Shared(n) => n.checked_add(1).map(PageState::Shared),
            _ => None,
        })
    }

    /// One reader fewer of a shared page.
    pub fn release(&mut self, page: PageId) -> Result<PageState, PoolError> {
        self.go(page, "read by one fewer", |s| match s {
            PageState::Shared(n) => n.checked_sub(1).map(PageState::Shared),
            _ => None,
        })
    }

    /// Shared by none -> Free, or Quarantined where a step in flight may still read it.
    pub fn evict(&mut self, page: PageId, until: Option<Until>) -> Result<PageState, PoolError> {
        self.go(page, "evicted", |s| (s == PageState::Shared(0)).then(|| vacant(until)))
    }

    /// Owned by `by` -> Free, or Quarantined where a step in flight may still touch it.
    pub fn retire(
        &mut self,
        page: PageId,
        by: RequestId,
        until: Option<Until>,
    ) -> Result<PageState, PoolError> {
        self.go(page, "given up", |s| (s == PageState::Owned(by)).then(|| vacant(until)))
    }

    /// Free -> Quarantined: it failed, and is given to somebody only where there is no other.
    pub fn set_aside(&mut self, page: PageId) -> Result<PageState, PoolError> {
        self.go(page, "set aside", |s| {
            (s == PageState::Free).then_some(PageState::Quarantined(Until::Needed))
        })
    }

    /// Quarantined -> Free: what it waited for has happened.
    pub fn settle(&mut self, page: PageId) -> Result<PageState, PoolError> {
        self.go(page, "free", |s| matches!(s, PageState::Quarantined(_)).then_some(PageState::Free))
    }

    /// Owned by `by` -> InFlight: a peer has been told of it.
    pub fn send(
        &mut self,
        page: PageId,
        by: RequestId,
        transfer: TransferId,
    ) -> Result<PageState, PoolError> {
        self.go(page, "in flight", |s| {
            (s == PageState::Owned(by)).then_some(PageState::InFlight(transfer))
        })
    }

    /// InFlight in `transfer` -> Owned: the transfer is over and has been verified.
    pub fn land(
        &mut self,
        page: PageId,
        transfer: TransferId,
        by: RequestId,
    ) -> Result<PageState, PoolError> {
        self.go(page, "landed", |s| {
            (s == PageState::InFlight(transfer)).then_some(PageState::Owned(by))
        })
    }

    /// InFlight in `transfer` -> Quarantined: it failed, and the peer may still write.
    pub fn quarantine(
        &mut self,
        page: PageId,
        transfer: TransferId,
        until: Until,
    ) -> Result<PageState, PoolError> {
        self.go(page, "quarantined", |s| {
            (s == PageState::InFlight(transfer)).then_some(PageState::Quarantined(until))
        })
    }

    #[cfg(any(test, feature = "lab"))]
    pub(crate) fn force(&mut self, page: PageId, state: PageState) {
        self.states[page.index()] = state;
    }
}

fn vacant(until: Option<Until>) -> PageState {
    until.map_or(PageState::Free, PageState::Quarantined)
}

#[cfg(test)]
mod tests {
    use super::*;

    const R: RequestId = RequestId(7);
    const OTHER: RequestId = RequestId(8);
    const T: TransferId = TransferId(3);

    fn all_states() -> Vec<PageState> {
        vec![
            PageState::Free,
            PageState::Owned(R),
            PageState::Owned(OTHER),
            PageState::Shared(0),
            PageState::Shared(1),
            PageState::Shared(u32::MAX),
            PageState::InFlight(T),
            PageState::InFlight(TransferId(4)),
            PageState::Quarantined(Until::Lease(1)),
            PageState::Quarantined(Until::Time(Micros(5))),
            PageState::Quarantined(Until::Needed),
            PageState::Reserved,
        ]
    }

    /// The whole table of moves: what each one accepts, and that a refusal changes nothing.
    #[test]
    fn every_move_is_taken_from_its_own_states_only() {
        type Move = fn(&mut PageStates) -> Result<PageState, PoolError>;
        let p = PageId(1);
        let moves: Vec<(Move, Vec<PageState>)> = vec![
            (|s| s.take(PageId(1), R), vec![PageState::Free]),
            (|s| s.share(PageId(1), R), vec![PageState::Owned(R)]),
            (|s| s.acquire(PageId(1)), vec![PageState::Shared(0), PageState::Shared(1)]),
            (|s| s.release(PageId(1)), vec![PageState::Shared(1), PageState::Shared(u32::MAX)]),
            (|s| s.evict(PageId(1), None), vec![PageState::Shared(0)]),
            (|s| s.retire(PageId(1), R, Some(Until::Lease(9))), vec![PageState::Owned(R)]),
            (|s| s.set_aside(PageId(1)), vec![PageState::Free]),
            (
                |s| s.settle(PageId(1)),
                vec![
                    PageState::Quarantined(Until::Lease(1)),
                    PageState::Quarantined(Until::Time(Micros(5))),
                    PageState::Quarantined(Until::Needed),
                ],
            ),
            (|s| s.send(PageId(1), R, T), vec![PageState::Owned(R)]),
            (|s| s.land(PageId(1), T, R), vec![PageState::InFlight(T)]),
            (|s| s.quarantine(PageId(1), T, Until::Time(Micros(9))), vec![PageState::InFlight(T)]),
        ];
        for (n, (step, from)) in moves.iter().enumerate() {
            for state in all_states() {
                let mut states = PageStates::new(3);
                states.force(p, state);
                let result = step(&mut states);
                assert_eq!(result.is_ok(), from.contains(&state), "move {n} from {state}");
                match result {
                    Ok(next) => assert_eq!(states.get(p), next),
                    Err(_) => assert_eq!(states.get(p), state),
                }
            }
        }
    }

    #[test]
    fn a_page_out_of_range_never_moves() {
        let mut states = PageStates::new(2);
        let e = states.take(PageId(9), R).unwrap_err();
        assert_eq!(e.to_string(), "page 9 is reserved and cannot become owned");
        assert!(states.take(PageId(0), R).is_err());
    }
}
