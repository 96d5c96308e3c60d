//! The prefix index: a radix tree over runs of whole pages, keyed by adapter as well.
//!
//! A node *is* a page: its edge is the page's `PAGE_TOKENS` tokens, its id the page's id, so the
//! tree needs no memory but what is taken at start. Edges are found through a chained hash over
//! (parent, adapter, tokens) and always compared in full: a hash collision costs a comparison,
//! never a wrong answer.
//!
//! A sequence that reads a node reads all its ancestors, so a node's readers never outnumber its
//! parent's and every node without readers can be given up, leaves first.

use crate::PageStates;
use crate::lru::Lru;
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_flow::{PageId, RequestId, Token};

/// An immutable copy of a slot's state at a page boundary, kept by the engine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SnapshotId(pub u32);

const NONE: u32 = 0;

#[derive(Clone, Copy, Default, Debug)]
struct Node {
    present: bool,
    /// The page of the run before this one; 0 where this is a prompt's first.
    parent: u32,
    adapter: u32,
    children: u32,
    /// Next in the hash chain; 0 ends it.
    next: u32,
    bucket: u32,
    snapshot: Option<SnapshotId>,
}

/// The tree, its LRU order and its counts.
#[derive(Debug)]
pub(crate) struct PrefixIndex {
    nodes: Vec<Node>,
    /// `PAGE_TOKENS` tokens a page.
    tokens: Vec<Token>,
    /// Heads of the hash chains; a power of two of them.
    heads: Vec<u32>,
    pub lru: Lru,
    tick: u64,
    present: u32,
    /// Nodes without readers.
    idle: u32,
}

const PAGE: usize = PAGE_TOKENS as usize;

fn hash_of(parent: u32, adapter: u32, run: &[Token]) -> u64 {
    let mut h = (u64::from(parent) << 32 | u64::from(adapter)) ^ 0x9e37_79b9_7f4a_7c15;
    for t in run {
        h = (h ^ u64::from(t.0)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        h ^= h >> 32;
    }
    h
}

impl PrefixIndex {
    pub fn new(pages: u32) -> PrefixIndex {
        let n = pages as usize;
        PrefixIndex {
            nodes: vec![Node::default(); n],
            tokens: vec![Token(0); n * PAGE],
            heads: vec![NONE; n.next_power_of_two()],
            lru: Lru::new(pages),
            tick: 0,
            present: 0,
            idle: 0,
        }
    }

    pub fn idle(&self) -> u32 {
        self.idle
    }

    pub fn contains(&self, page: PageId) -> bool {
        self.nodes[page.index()].present
    }

    pub fn snapshot(&self, page: PageId) -> Option<SnapshotId> {
        self.nodes[page.index()].snapshot
    }

    pub fn set_snapshot(&mut self, page: PageId, snapshot: SnapshotId) -> Option<SnapshotId> {
        assert!(self.contains(page), "page {page} is not in the index");
        self.nodes[page.index()].snapshot.replace(snapshot)
    }

    fn bucket_of(&self, parent: u32, adapter: u32, run: &[Token]) -> u32 {
        (hash_of(parent, adapter, run) & (self.heads.len() as u64 - 1)) as u32
    }

    fn run(&self, page: u32) -> &[Token] {
        &self.tokens[page as usize * PAGE..][..PAGE]
    }

    /// The child of `parent` (0: of the root) whose edge is `run`, one whole page of tokens.
    pub fn child(&self, parent: PageId, adapter: u32, run: &[Token]) -> Option<PageId> {
        assert_eq!(run.len(), PAGE, "an edge is a whole page");
        let mut at = self.heads[self.bucket_of(parent.0, adapter, run) as usize];
        while at != NONE {
            let node = &self.nodes[at as usize];
            if node.parent == parent.0 && node.adapter == adapter && self.run(at) == run {
                return Some(PageId(at));
            }
            at = node.next;
        }
        None
    }

    /// Adds a node whose page has just become Shared(1). `parent` is its path's last node.
    pub fn insert(&mut self, page: PageId, parent: PageId, adapter: u32, run: &[Token]) {
        assert!(!self.contains(page), "page {page} is in the index already");
        assert!(parent.0 == NONE || self.contains(parent), "page {parent} is not in the index");
        let bucket = self.bucket_of(parent.0, adapter, run);
        self.tokens[page.index() * PAGE..][..PAGE].copy_from_slice(run);
        let next = core::mem::replace(&mut self.heads[bucket as usize], page.0);
        self.nodes[page.index()] = Node {
            present: true,
            parent: parent.0,
            adapter,
            children: 0,
            next,
            bucket,
            snapshot: None,
        };
        self.present += 1;
        if parent.0 != NONE {
            let node = &mut self.nodes[parent.index()];
            node.children += 1;
            assert!(!self.lru.contains(parent.0), "a node without readers took a child");
        }
    }

    /// A reader came: the page had `readers_before`.
    pub fn acquired(&mut self, page: PageId, readers_before: u32) {
        if readers_before == 0 {
            self.idle -= 1;
            if self.nodes[page.index()].children == 0 {
                self.lru.remove(page.0);
            }
        }
    }

    /// A reader left: the page has `readers` now.
    pub fn released(&mut self, page: PageId, readers: u32) {
        if readers == 0 {
            self.idle += 1;
            self.tick += 1;
            self.lru.touch(page.0, self.tick);
            if self.nodes[page.index()].children == 0 {
                self.lru.insert(page.0);
            }
        }
    }

    /// `page` and the nodes below it, leaves first.
    pub fn subtree(&self, page: PageId) -> Vec<PageId> {
        let mut found = Vec::new();
        for (i, node) in self.nodes.iter().enumerate() {
            let (mut at, mut depth) = (i as u32, 0u32);
            while node.present && at != page.0 && at != NONE {
                (at, depth) = (self.nodes[at as usize].parent, depth + 1);
            }
            if node.present && at == page.0 {
                found.push((core::cmp::Reverse(depth), PageId(i as u32)));
            }
        }
        found.sort_unstable();
        found.into_iter().map(|(_, page)| page).collect()
    }

    /// Takes out the leaf `page`, which nobody reads; returns its snapshot. Its parent may have
    /// become a leaf that nobody reads, and is then next in its own turn.
    pub fn remove(&mut self, page: PageId, states: &PageStates) -> Option<SnapshotId> {
        let node = self.nodes[page.index()];
        assert!(node.present && node.children == 0, "page {page} is no leaf");
        self.lru.remove(page.0);
        self.unchain(page.0, node.bucket, node.next);
        self.nodes[page.index()] = Node::default();
        self.present -= 1;
        self.idle -= 1;
        if node.parent != NONE {
            let parent = &mut self.nodes[node.parent as usize];
            parent.children -= 1;
            let idle = states.get(PageId(node.parent)) == crate::PageState::Shared(0);
            if parent.children == 0 && idle {
                self.lru.insert(node.parent);
            }
        }
        node.snapshot
    }

    fn unchain(&mut self, page: u32, bucket: u32, next: u32) {
        if self.heads[bucket as usize] == page {
            self.heads[bucket as usize] = next;
            return;
        }
        let mut at = self.heads[bucket as usize];
        while at != NONE {
            let after = self.nodes[at as usize].next;
            if after == page {
                self.nodes[at as usize].next = next;
                return;
            }
            at = after;
        }
        panic!("page {page} is not in its hash chain");
    }

    /// Checks the tree against the states; words for the first thing that does not hold.
    pub fn fault(&self, states: &PageStates) -> Option<(PageId, &'static str)> {
        use crate::PageState::Shared;
        let mut children = vec![0u32; self.nodes.len()];
        let (mut present, mut idle) = (0, 0);
        for (i, node) in self.nodes.iter().enumerate() {
            let page = PageId(i as u32);
            let readers = match states.get(page) {
                Shared(n) => Some(n),
                _ => None,
            };
            if node.present != readers.is_some() {
                return Some((page, "is shared and not in the prefix index, or the other way"));
            }
            let Some(readers) = readers else { continue };
            present += 1;
            idle += u32::from(readers == 0);
            if node.parent != NONE {
                children[node.parent as usize] += 1;
                match states.get(PageId(node.parent)) {
                    Shared(n) if n >= readers => {}
                    _ => return Some((page, "has more readers than its parent in the index")),
                }
                if self.nodes[node.parent as usize].adapter != node.adapter {
                    return Some((page, "has another adapter than its parent"));
                }
            }
            let evictable = readers == 0 && node.children == 0;
            if evictable != self.lru.contains(page.0) {
                return Some((page, "is evictable and not listed so, or the other way"));
            }
            if self.child(PageId(node.parent), node.adapter, self.run(page.0)) != Some(page) {
                return Some((page, "cannot be found by its own tokens"));
            }
        }
        if let Some(i) = (0..children.len()).find(|&i| children[i] != self.nodes[i].children) {
            return Some((PageId(i as u32), "counts its children wrongly"));
        }
        if present != self.present || idle != self.idle || !self.lru.is_consistent() {
            return Some((PageId(0), "the prefix index counts its nodes wrongly"));
        }
        None
    }
}

/// A page's owner, where it has one.
pub(crate) fn owner(state: crate::PageState) -> Option<RequestId> {
    match state {
        crate::PageState::Owned(r) => Some(r),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a single hash chain every lookup collides with every node: only the comparison of
    /// parent, adapter and all tokens tells them apart.
    #[test]
    fn colliding_edges_are_told_apart_by_parent_adapter_and_every_token() {
        let mut states = PageStates::new(200);
        let mut index = PrefixIndex::new(200);
        index.heads = vec![NONE; 1];
        let run: Vec<Token> = (0..PAGE_TOKENS).map(Token).collect();
        let mut edges = Vec::new();
        for adapter in 0..2 {
            for at in 0..PAGE {
                let mut other = run.clone();
                other[at] = Token(999);
                edges.push((PageId(0), adapter, other));
            }
            edges.push((PageId(0), adapter, run.clone()));
        }
        // The same edges again, below one of them in each adapter.
        for (parent, adapter) in [(PageId(1), 0), (PageId(PAGE_TOKENS + 2), 1)] {
            edges.push((parent, adapter, run.clone()));
        }
        for (i, (parent, adapter, run)) in edges.iter().enumerate() {
            let page = PageId(i as u32 + 1);
            assert_eq!(index.child(*parent, *adapter, run), None);
            states.force(page, crate::PageState::Shared(1));
            index.insert(page, *parent, *adapter, run);
        }
        for (i, (parent, adapter, run)) in edges.iter().enumerate() {
            assert_eq!(index.child(*parent, *adapter, run), Some(PageId(i as u32 + 1)));
        }
        assert_eq!(index.fault(&states), None);
        assert_eq!(index.child(PageId(0), 2, &run), None);
        // Out of the middle of the chain, in any order.
        for i in (0..edges.len()).rev().step_by(2).chain((0..edges.len()).step_by(2)) {
            let page = PageId(i as u32 + 1);
            let (parent, adapter, run) = &edges[i];
            if index.child(*parent, *adapter, run).is_none() || index.nodes[i + 1].children > 0 {
                continue;
            }
            states.force(page, crate::PageState::Shared(0));
            index.released(page, 0);
            index.remove(page, &states);
            states.force(page, crate::PageState::Free);
            assert_eq!(index.child(*parent, *adapter, run), None);
            assert_eq!(index.fault(&states), None);
        }
    }
}
