//! The order of eviction: an indexed binary heap of page ids, oldest use first, ties by page id.
//!
//! A plain heap cannot drop a page that is read again; this one knows where each page is. All its
//! memory is taken at start.

const ABSENT: u32 = u32::MAX;

/// The pages that may be evicted now, least recently used first.
#[derive(Debug)]
pub(crate) struct Lru {
    /// Heap order; `heap[0]` is the next to go.
    heap: Vec<u32>,
    /// By page: its index in `heap`.
    places: Vec<u32>,
    /// By page: when it was last used, in ticks of the pool.
    used: Vec<u64>,
}

impl Lru {
    pub fn new(pages: u32) -> Lru {
        let n = pages as usize;
        Lru { heap: Vec::with_capacity(n), places: vec![ABSENT; n], used: vec![0; n] }
    }

    pub fn contains(&self, page: u32) -> bool {
        self.places[page as usize] != ABSENT
    }

    pub fn first(&self) -> Option<u32> {
        self.heap.first().copied()
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    pub fn used(&self, page: u32) -> u64 {
        self.used[page as usize]
    }

    /// Notes a use of a page that is not in the heap.
    pub fn touch(&mut self, page: u32, tick: u64) {
        assert!(!self.contains(page), "a page in use cannot be evictable");
        self.used[page as usize] = tick;
    }

    pub fn insert(&mut self, page: u32) {
        assert!(!self.contains(page), "page {page} is evictable already");
        self.places[page as usize] = self.heap.len() as u32;
        self.heap.push(page);
        self.up(self.heap.len() - 1);
    }

    pub fn remove(&mut self, page: u32) {
        let at = self.places[page as usize];
        assert!(at != ABSENT, "page {page} is not evictable");
        let at = at as usize;
        self.places[page as usize] = ABSENT;
        let last = self.heap.pop().expect("it holds at least this page");
        if at < self.heap.len() {
            self.heap[at] = last;
            self.places[last as usize] = at as u32;
            self.up(at);
            self.down(at);
        }
    }

    fn before(&self, a: u32, b: u32) -> bool {
        (self.used(a), a) < (self.used(b), b)
    }

    fn swap(&mut self, i: usize, j: usize) {
        self.heap.swap(i, j);
        self.places[self.heap[i] as usize] = i as u32;
        self.places[self.heap[j] as usize] = j as u32;
    }

    fn up(&mut self, mut i: usize) {
        while i > 0 && self.before(self.heap[i], self.heap[(i - 1) / 2]) {
            self.swap(i, (i - 1) / 2);
            i = (i - 1) / 2;
        }
    }

    fn down(&mut self, mut i: usize) {
        loop {
            let left = 2 * i + 1;
            let Some(&l) = self.heap.get(left) else { return };
            let child = match self.heap.get(left + 1) {
                Some(&r) if self.before(r, l) => left + 1,
                _ => left,
            };
            if !self.before(self.heap[child], self.heap[i]) {
                return;
            }
            self.swap(i, child);
            i = child;
        }
    }

    /// True where the heap is a heap and the places agree with it.
    pub fn is_consistent(&self) -> bool {
        let present = self.places.iter().filter(|p| **p != ABSENT).count();
        present == self.heap.len()
            && self.heap.iter().enumerate().all(|(i, &page)| {
                self.places[page as usize] == i as u32
                    && (i == 0 || !self.before(page, self.heap[(i - 1) / 2]))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a sorted list: any mix of inserts, removals and pops comes out in order.
        #[test]
        fn behaves_as_a_sorted_set(ops in proptest::collection::vec((0u32..40, 0u8..3), 0..300)) {
            let mut lru = Lru::new(40);
            let mut model: Vec<(u64, u32)> = Vec::new();
            for (tick, (page, op)) in ops.into_iter().enumerate() {
                match op {
                    0 if !lru.contains(page) => {
                        let tick = (tick as u64 * 7919) % 13;
                        lru.touch(page, tick);
                        lru.insert(page);
                        model.push((tick, page));
                    }
                    1 if lru.contains(page) => {
                        lru.remove(page);
                        model.retain(|m| m.1 != page);
                    }
                    _ => {
                        let least = model.iter().min().copied();
                        prop_assert_eq!(lru.first(), least.map(|m| m.1));
                        if let Some((_, page)) = least {
                            lru.remove(page);
                            model.retain(|m| m.1 != page);
                        }
                    }
                }
                prop_assert!(lru.is_consistent());
                prop_assert_eq!(lru.len(), model.len());
            }
        }
    }
}
