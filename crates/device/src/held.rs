//! What a device holds by number: arenas, which are here, lent or nowhere, and executables in them.

use crate::port::{ArenaId, DeviceError, ExecId};

/// The bytes of an arena.
pub trait ArenaBytes {
    /// How many there are.
    fn arena_bytes(&self) -> u64;
}

/// An executable, which is in one arena.
pub trait InArena {
    /// Its arena.
    fn arena(&self) -> ArenaId;

    /// Names the arena's place in the device, where that is known after the capture only.
    fn house_in(&mut self, arena: ArenaId);
}

/// A place for an arena.
enum Place<A> {
    /// Nothing: the next arena comes here.
    Vacant,
    /// An arena.
    Here(A),
    /// An arena of this size, which is lent.
    Lent(u64),
}

/// Arenas and executables; a number is given again once what had it is gone.
pub struct Held<A, E> {
    // Dropped before the arenas that they lie in.
    execs: Vec<Option<E>>,
    arenas: Vec<Place<A>>,
}

impl<A, E> Default for Held<A, E> {
    fn default() -> Self {
        Held { arenas: Vec::new(), execs: Vec::new() }
    }
}

impl<A: ArenaBytes, E: InArena> Held<A, E> {
    /// Gives an arena the first vacant place.
    pub fn house(&mut self, arena: A) -> ArenaId {
        let at = first_free(&mut self.arenas, |p| matches!(p, Place::Vacant), || Place::Vacant);
        self.arenas[at] = Place::Here(arena);
        ArenaId(at as u32)
    }

    /// True where the arena's bytes are here.
    ///
    /// # Panics
    /// On a number that no arena ever had.
    pub fn has(&self, arena: ArenaId) -> bool {
        matches!(self.arenas[arena.0 as usize], Place::Here(_))
    }

    /// The arena.
    ///
    /// # Panics
    /// When it is not here.
    pub fn arena(&self, arena: ArenaId) -> &A {
        match self.arenas.get(arena.0 as usize) {
            Some(Place::Here(bytes)) => bytes,
            _ => panic!("an arena id comes from `arena` and is used until `free_arena`"),
        }
    }

    /// Hands the arena out and keeps its place.
    ///
    /// # Panics
    /// When it is not here.
    pub fn lend(&mut self, arena: ArenaId) -> A {
        let lent = Place::Lent(self.arena(arena).arena_bytes());
        match core::mem::replace(&mut self.arenas[arena.0 as usize], lent) {
            Place::Here(bytes) => bytes,
            Place::Vacant | Place::Lent(_) => unreachable!("`arena` has just found it"),
        }
    }

    /// Takes in an arena with what was captured in it: one that was lent at its place `home`, a new
    /// one at a vacant place.
    ///
    /// # Panics
    /// When the arena of `home` was not lent.
    pub fn install(
        &mut self,
        home: Option<ArenaId>,
        arena: A,
        execs: Vec<E>,
    ) -> (ArenaId, Vec<ExecId>) {
        let id = match home {
            None => self.house(arena),
            Some(home) => {
                let place = &mut self.arenas[home.0 as usize];
                assert!(matches!(place, Place::Lent(_)), "a lent arena comes back to its place");
                *place = Place::Here(arena);
                home
            }
        };
        let number = |mut exec: E| {
            exec.house_in(id);
            self.register(exec)
        };
        (id, execs.into_iter().map(number).collect())
    }

    /// The arena's place is free for another one.
    ///
    /// # Errors
    /// An executable is in it.
    pub fn free(&mut self, arena: ArenaId) -> Result<(), DeviceError> {
        if self.execs.iter().flatten().any(|e| e.arena() == arena) {
            return Err(DeviceError::State {
                asked: "to free an arena",
                state: "still running executables in it",
            });
        }
        self.vacate(arena);
        Ok(())
    }

    /// Takes an arena out with all that is in it; the bytes only where they are here.
    pub fn uninstall(&mut self, arena: ArenaId) -> (Vec<E>, Option<A>) {
        let of_it = |e: &mut Option<E>| e.take_if(|e| e.arena() == arena);
        let execs = self.execs.iter_mut().filter_map(of_it).collect();
        (execs, self.vacate(arena))
    }

    fn vacate(&mut self, arena: ArenaId) -> Option<A> {
        match core::mem::replace(&mut self.arenas[arena.0 as usize], Place::Vacant) {
            Place::Here(bytes) => Some(bytes),
            Place::Vacant | Place::Lent(_) => None,
        }
    }

    /// Gives an executable the first vacant number.
    pub fn register(&mut self, exec: E) -> ExecId {
        let at = first_free(&mut self.execs, Option::is_none, || None);
        self.execs[at] = Some(exec);
        ExecId(at as u32)
    }

    /// An executable.
    ///
    /// # Panics
    /// When there is none of this number.
    pub fn exec(&self, exec: ExecId) -> &E {
        let found = self.execs.get(exec.0 as usize).and_then(Option::as_ref);
        found.expect("an executable id comes from capture and is used until release")
    }

    /// The same, to be changed.
    ///
    /// # Panics
    /// When there is none of this number.
    pub fn exec_mut(&mut self, exec: ExecId) -> &mut E {
        let found = self.execs.get_mut(exec.0 as usize).and_then(Option::as_mut);
        found.expect("an executable id comes from capture and is used until release")
    }

    /// Drops an executable.
    ///
    /// # Panics
    /// On a number that no executable ever had.
    pub fn release(&mut self, exec: ExecId) {
        self.execs[exec.0 as usize] = None;
    }

    /// How many arenas there are, the lent ones included, and their bytes.
    pub fn arenas(&self) -> (u32, u64) {
        let bytes = |place: &Place<A>| match place {
            Place::Vacant => None,
            Place::Here(arena) => Some(arena.arena_bytes()),
            Place::Lent(bytes) => Some(*bytes),
        };
        let all = self.arenas.iter().filter_map(bytes);
        all.fold((0, 0), |(n, sum), bytes| (n + 1, sum + bytes))
    }

    /// How many executables there are.
    pub fn execs(&self) -> u32 {
        self.execs.iter().flatten().count() as u32
    }
}

/// The first free place of a list, which is made longer by one where all are taken.
fn first_free<T>(all: &mut Vec<T>, free: impl Fn(&T) -> bool, vacant: fn() -> T) -> usize {
    let at = all.iter().position(free).unwrap_or(all.len());
    if at == all.len() {
        all.push(vacant());
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bytes(u64);
    impl ArenaBytes for Bytes {
        fn arena_bytes(&self) -> u64 {
            self.0
        }
    }

    #[derive(Debug, PartialEq)]
    struct In(ArenaId);
    impl InArena for In {
        fn arena(&self) -> ArenaId {
            self.0
        }

        fn house_in(&mut self, arena: ArenaId) {
            self.0 = arena;
        }
    }

    #[test]
    fn numbers_are_given_again_and_a_lent_arena_comes_back_to_its_own() {
        let mut held = Held::default();
        let [a, b] = [held.house(Bytes(1)), held.house(Bytes(20))];
        let x = held.register(In(a));
        assert!(held.free(a).is_err(), "an executable is in it");
        held.release(x);
        let lent = held.lend(b);
        assert!(!held.has(b) && held.arenas() == (2, 21));
        assert!(held.free(a).is_ok());
        assert_eq!(held.install(None, Bytes(300), vec![In(b)]), (a, vec![x]));
        assert_eq!(held.exec(x), &In(a));
        assert_eq!(held.install(Some(b), lent, vec![]), (b, vec![]));
        let (execs, bytes) = held.uninstall(a);
        assert_eq!((execs, bytes.map(|b| b.0)), (vec![In(a)], Some(300)));
        assert_eq!((held.arenas(), held.execs()), ((1, 20), 0));
    }
}
