//! Fits items into as few bytes as it can, given which pairs must not overlap.
//!
//! Placing each item at the lowest free offset is optimal for *some* order of the items (that of
//! the offsets of an optimal packing), so the search is over orders: a few that are usually good,
//! then moves of the items at the top, within a budget of counted work. Deterministic.

use std::collections::HashMap;

/// Something to place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    /// The caller's name for it.
    pub id: usize,
    pub bytes: u64,
    pub align: u32,
}

/// Where the items went.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fitted {
    pub offsets: Vec<u64>,
    pub bytes: u64,
}

/// Comparisons that a search may spend, some milliseconds' worth: a server packs dozens of plans
/// before it answers.
const SEARCH_BUDGET: u64 = 1_500_000;

/// The next multiple of `align`; saturates, for `prove` to refuse.
pub(crate) fn align_up(at: u64, align: u32) -> u64 {
    let align = u64::from(align.max(1));
    at.div_ceil(align).saturating_mul(align)
}

/// Packs `items`; stops early where it reaches `least`, which no packing can beat.
pub(crate) fn fit(items: &[Item], interferes: &dyn Fn(usize, usize) -> bool, least: u64) -> Fitted {
    let mut search = Search::new(items, interferes);
    let mut orders: Vec<Vec<u32>> = Vec::new();
    let listed: Vec<u32> = (0..items.len() as u32).collect();
    let by = |key: &dyn Fn(u32) -> (u64, u64)| {
        let mut order = listed.clone();
        order.sort_by_key(|i| core::cmp::Reverse(key(*i)));
        order
    };
    let bytes = |i: u32| items[i as usize].bytes;
    let degree: Vec<u64> =
        listed.iter().map(|i| search.neighbours[*i as usize].len() as u64).collect();
    let crowd = |i: u32| {
        search.neighbours[i as usize].iter().fold(0u64, |sum, j| sum.saturating_add(bytes(*j)))
    };
    orders.push(by(&|i| (bytes(i), degree[i as usize])));
    orders.push(by(&|i| (crowd(i), bytes(i))));
    orders.push(by(&|i| (bytes(i).saturating_mul(degree[i as usize] + 1), bytes(i))));
    orders.push(listed.clone());
    let mut best = (Fitted { offsets: Vec::new(), bytes: u64::MAX }, Vec::new());
    for order in orders {
        let fitted = search.place(&order);
        if best.1.is_empty() || fitted.bytes < best.0.bytes {
            best = (fitted, order);
        }
    }
    // Within one percent of what cannot be beaten is good enough to stop.
    let enough = least.saturating_add(least / 100);
    if best.0.bytes > enough && best.0.bytes < u64::MAX {
        search.improve(&mut best, enough);
    }
    if items.is_empty() { Fitted::default() } else { best.0 }
}

struct Search<'a> {
    items: &'a [Item],
    /// Per item: those it must not overlap.
    neighbours: Vec<Vec<u32>>,
    spent: u64,
}

impl<'a> Search<'a> {
    fn new(items: &'a [Item], interferes: &dyn Fn(usize, usize) -> bool) -> Search<'a> {
        let mut neighbours = vec![Vec::new(); items.len()];
        for i in 0..items.len() {
            for j in 0..i {
                if interferes(items[i].id, items[j].id) {
                    neighbours[i].push(j as u32);
                    neighbours[j].push(i as u32);
                }
            }
        }
        Search { items, neighbours, spent: 0 }
    }

    /// Each item in turn at the lowest offset that its placed neighbours leave free.
    fn place(&mut self, order: &[u32]) -> Fitted {
        let mut offsets = vec![u64::MAX; self.items.len()];
        let mut bytes = 0;
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for &i in order {
            let item = self.items[i as usize];
            taken.clear();
            for &j in &self.neighbours[i as usize] {
                let lo = offsets[j as usize];
                if lo != u64::MAX {
                    taken.push((lo, lo.saturating_add(self.items[j as usize].bytes)));
                }
            }
            self.spent += self.neighbours[i as usize].len() as u64 + 1;
            taken.sort_unstable();
            let mut at = 0u64;
            for &(lo, hi) in &taken {
                if at.saturating_add(item.bytes) <= lo {
                    break;
                }
                at = at.max(align_up(hi, item.align));
            }
            offsets[i as usize] = at;
            bytes = bytes.max(at.saturating_add(item.bytes));
        }
        Fitted { offsets, bytes }
    }

    /// Moves items that reach the top, or random ones, to an earlier place in the order; keeps
    /// what is no worse. Small sets see nearly every order.
    fn improve(&mut self, best: &mut (Fitted, Vec<u32>), least: u64) {
        let n = best.1.len();
        let mut seen: HashMap<u64, ()> = HashMap::new();
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % below.max(1) as u64) as usize
        };
        let (mut current, mut order) = best.clone();
        let mut stale = 0;
        while self.spent < SEARCH_BUDGET && best.0.bytes > least && stale < 2000 {
            let top = |i: &u32| {
                let i = *i as usize;
                current.offsets[i].saturating_add(self.items[i].bytes) == current.bytes
            };
            let at_top: Vec<usize> = (0..n).filter(|p| top(&order[*p])).collect();
            let from = if next(3) < 2 { at_top[next(at_top.len())] } else { next(n) };
            let to = next(n);
            let mut trial = order.clone();
            let moved = trial.remove(from);
            trial.insert(to, moved);
            stale += 1;
            if seen.insert(fingerprint(&trial), ()).is_some() {
                continue;
            }
            let fitted = self.place(&trial);
            if fitted.bytes <= current.bytes || next(64) == 0 {
                (current, order) = (fitted, trial);
            }
            if current.bytes < best.0.bytes {
                *best = (current.clone(), order.clone());
                stale = 0;
            }
        }
    }
}

fn fingerprint(order: &[u32]) -> u64 {
    order.iter().fold(0xcbf2_9ce4_8422_2325, |h, i| {
        (h ^ u64::from(*i)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17)
    })
}
