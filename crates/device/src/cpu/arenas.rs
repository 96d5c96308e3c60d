//! Where the device's arenas are: here, lent, or nowhere.

use super::slab::Slab;
use crate::port::ArenaId;

/// A place for an arena.
enum Place {
    /// Nothing: the next arena comes here.
    Vacant,
    /// An arena.
    Here(Slab),
    /// An arena of this size, which is lent.
    Lent(u64),
}

/// Arenas by number; a number is given again once its arena has gone.
#[derive(Default)]
pub struct Arenas(Vec<Place>);

impl Arenas {
    /// Gives an arena the first vacant place.
    pub fn house(&mut self, slab: Slab) -> ArenaId {
        let vacant = self.0.iter().position(|p| matches!(p, Place::Vacant));
        let at = vacant.unwrap_or(self.0.len());
        if at == self.0.len() {
            self.0.push(Place::Vacant);
        }
        self.0[at] = Place::Here(slab);
        ArenaId(at as u32)
    }

    /// True where the arena's bytes are here.
    pub fn has(&self, arena: ArenaId) -> bool {
        matches!(self.0[arena.0 as usize], Place::Here(_))
    }

    /// The arena's bytes.
    ///
    /// # Panics
    /// When it is not here.
    pub fn slab(&self, arena: ArenaId) -> &Slab {
        match self.0.get(arena.0 as usize) {
            Some(Place::Here(slab)) => slab,
            _ => panic!("an arena id comes from `arena` and is used until `free_arena`"),
        }
    }

    /// Hands the arena's bytes out and keeps its place.
    ///
    /// # Panics
    /// When it is not here.
    pub fn lend(&mut self, arena: ArenaId) -> Slab {
        let lent = Place::Lent(self.slab(arena).len() as u64);
        match core::mem::replace(&mut self.0[arena.0 as usize], lent) {
            Place::Here(slab) => slab,
            Place::Vacant | Place::Lent(_) => unreachable!("`slab` has just found it"),
        }
    }

    /// A lent arena is here again.
    ///
    /// # Panics
    /// When it was not lent.
    pub fn give_back(&mut self, arena: ArenaId, slab: Slab) {
        let place = &mut self.0[arena.0 as usize];
        assert!(matches!(place, Place::Lent(_)), "a lent arena comes back to its place");
        *place = Place::Here(slab);
    }

    /// The place is free for another arena; the bytes, where they were here, are the caller's.
    pub fn vacate(&mut self, arena: ArenaId) -> Option<Slab> {
        match core::mem::replace(&mut self.0[arena.0 as usize], Place::Vacant) {
            Place::Here(slab) => Some(slab),
            Place::Vacant | Place::Lent(_) => None,
        }
    }

    /// How many there are, the lent ones included, and their bytes.
    pub fn count(&self) -> (u32, u64) {
        let bytes = |place: &Place| match place {
            Place::Vacant => None,
            Place::Here(slab) => Some(slab.len() as u64),
            Place::Lent(bytes) => Some(*bytes),
        };
        let all = self.0.iter().filter_map(bytes);
        all.fold((0, 0), |(n, sum), bytes| (n + 1, sum + bytes))
    }
}
