//! A judge of small plans that walks through every interleaving of three steps.
//!
//! It knows nothing of happens-before: it simulates lanes that start ops, let them pass their
//! wait and end them, in every order that lanes and edges allow, over a memory whose every byte
//! remembers which buffer's value it holds and from which step. It shares no code with `prove`.

use lockstep_plan::{Access, BufferKind, EdgeKind, LaneId, Packing, StepPlan};
use std::cell::Cell;
use std::collections::HashSet;

/// Three, so that the claim that two steps are enough for a proof is itself under test.
const STEPS: usize = 3;

/// What some interleaving showed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Verdict {
    /// Two ops ran at once and touched common bytes, one of them writing.
    pub race: bool,
    /// A read found bytes that are not its buffer's value of this step.
    pub corrupt: bool,
    /// Two buffers held common bytes at once, by contract 2's rule of lifetimes.
    pub shared_alive: bool,
}

impl Verdict {
    pub fn is_clean(&self) -> bool {
        *self == Verdict::default()
    }
}

/// How far an op has come.
const WAITING: u8 = 0;
const STARTED: u8 = 1;
const PAST_WAIT: u8 = 2;
const ENDED: u8 = 3;

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    /// Per step and op.
    progress: Vec<u8>,
    /// Per byte of arena and state: buffer and step of the value in it.
    memory: Vec<(u8, u8)>,
    /// Per step and pair of buffers: a write of the second began before the first was dead.
    early: Vec<bool>,
}

/// One access, flattened.
struct Touch {
    buffer: usize,
    bytes: Vec<usize>,
    write: bool,
    before_wait: bool,
}

pub struct Oracle<'a> {
    plan: &'a StepPlan,
    touches: Vec<Vec<Touch>>,
    /// Pairs of transients that share a byte.
    pairs: Vec<(usize, usize)>,
    memory_bytes: usize,
    verdict: Cell<Verdict>,
    pub states: usize,
}

/// Value of a byte that nothing has written.
const NOTHING: (u8, u8) = (u8::MAX, u8::MAX);

impl<'a> Oracle<'a> {
    /// `exact` gives, for an indexed access, the bytes that it really touches; without it, it
    /// touches all.
    pub fn new(
        plan: &'a StepPlan,
        packing: &Packing,
        exact: Option<&dyn Fn(usize, bool, usize) -> Vec<u64>>,
    ) -> Oracle<'a> {
        // Weights and state lie behind the arena.
        let mut base = Vec::new();
        let mut end = packing.arena_bytes() as usize;
        for id in plan.buffer_ids() {
            match packing.offset(id) {
                Some(offset) => base.push(offset as usize),
                None => {
                    base.push(end);
                    end += plan.buffer(id).bytes as usize;
                }
            }
        }
        let touches = (0..plan.ops.len())
            .map(|o| {
                let op = &plan.ops[o];
                let mut out = Vec::new();
                for (list, write) in [(&op.reads, false), (&op.writes, true)] {
                    for (i, access) in list.iter().enumerate() {
                        let b = access.buffer().index();
                        let bytes: Vec<u64> = match access {
                            Access::Static { span, .. } => {
                                (span.offset..span.offset + span.len).collect()
                            }
                            Access::Indexed { .. } => match exact {
                                Some(f) => f(o, write, i),
                                None => (0..plan.buffers[b].bytes).collect(),
                            },
                        };
                        let masked = |e: &lockstep_plan::Edge| match e.kind {
                            EdgeKind::Programmatic { before_wait: m } if e.to.index() == o => {
                                (if write { m.writes } else { m.reads }) >> i & 1 == 1
                            }
                            _ => false,
                        };
                        out.push(Touch {
                            buffer: b,
                            bytes: bytes.iter().map(|x| base[b] + *x as usize).collect(),
                            write,
                            before_wait: plan.edges.iter().any(masked),
                        });
                    }
                }
                out
            })
            .collect();
        let transient = |i: usize| plan.buffers[i].kind == BufferKind::Transient;
        let place = |i: usize| base[i]..base[i] + plan.buffers[i].bytes as usize;
        let mut pairs = Vec::new();
        for a in (0..plan.buffers.len()).filter(|a| transient(*a)) {
            for b in (0..plan.buffers.len()).filter(|b| transient(*b) && *b != a) {
                if place(a).any(|x| place(b).contains(&x)) {
                    pairs.push((a, b));
                }
            }
        }
        let verdict = Cell::default();
        Oracle { plan, touches, pairs, memory_bytes: end, verdict, states: 0 }
    }

    /// Walks through everything; `first` stops at the first thing seen.
    pub fn judge(mut self, first: bool) -> (Verdict, usize) {
        let ops = self.plan.ops.len();
        let start = State {
            progress: vec![WAITING; STEPS * ops],
            memory: vec![NOTHING; self.memory_bytes],
            early: vec![false; STEPS * self.pairs.len()],
        };
        let mut seen = HashSet::from([start.clone()]);
        let mut todo = vec![start];
        while let Some(state) = todo.pop() {
            self.states += 1;
            for instance in 0..STEPS * ops {
                if let Some(next) = self.advance(&state, instance)
                    && !seen.contains(&next)
                {
                    seen.insert(next.clone());
                    todo.push(next);
                }
            }
            if first && !self.verdict.get().is_clean() {
                break;
            }
        }
        (self.verdict.get(), self.states)
    }

    fn advance(&self, state: &State, instance: usize) -> Option<State> {
        let ops = self.plan.ops.len();
        let (step, op) = (instance / ops, instance % ops);
        let may = match state.progress[instance] {
            WAITING => self.may_start(state, step, op),
            STARTED => self.plan.edges.iter().all(|e| {
                let waits = e.to.index() == op && matches!(e.kind, EdgeKind::Programmatic { .. });
                !waits || state.progress[step * ops + e.from.index()] == ENDED
            }),
            PAST_WAIT => true,
            _ => false,
        };
        if !may {
            return None;
        }
        let mut next = state.clone();
        next.progress[instance] += 1;
        match next.progress[instance] {
            STARTED => self.begin(&mut next, step, op, true),
            PAST_WAIT => self.begin(&mut next, step, op, false),
            _ => self.end(&mut next, step, op),
        }
        Some(next)
    }

    fn may_start(&self, state: &State, step: usize, op: usize) -> bool {
        let plan = self.plan;
        let ops = plan.ops.len();
        let at = |step: usize, op: usize| state.progress[step * ops + op];
        let lane = plan.ops[op].lane;
        let neighbour = (0..op).rev().find(|o| plan.ops[*o].lane == lane);
        let mut lane_order = true;
        for e in plan.edges.iter().filter(|e| e.to.index() == op) {
            let from = e.from.index();
            let ok = match e.kind {
                EdgeKind::Event => at(step, from) == ENDED,
                EdgeKind::Programmatic { .. } => {
                    lane_order &= neighbour != Some(from);
                    at(step, from) != WAITING
                }
                EdgeKind::NextStep => step == 0 || at(step - 1, from) == ENDED,
            };
            if !ok {
                return false;
            }
        }
        if lane_order && neighbour.is_some_and(|o| at(step, o) != ENDED) {
            return false;
        }
        let device = |o: usize| plan.ops[o].lane != LaneId::HOST;
        !device(op)
            || step == 0
            || (0..ops).filter(|o| device(*o)).all(|o| at(step - 1, o) == ENDED)
    }

    /// The accesses that become possible: compare with everything that runs, look at what is
    /// read, and note which buffers are given bytes too early.
    fn begin(&self, state: &mut State, step: usize, op: usize, before_wait: bool) {
        let ops = self.plan.ops.len();
        for touch in self.touches[op].iter().filter(|t| t.before_wait == before_wait) {
            for other in 0..STEPS * ops {
                let active = |t: &&Touch| match state.progress[other] {
                    STARTED => t.before_wait,
                    PAST_WAIT => true,
                    _ => false,
                };
                if other != step * ops + op
                    && self.touches[other % ops].iter().filter(active).any(|t| {
                        (t.write || touch.write) && t.bytes.iter().any(|b| touch.bytes.contains(b))
                    })
                {
                    self.saw(Verdict { race: true, ..self.verdict.get() });
                }
            }
            if !touch.write {
                let carried = !self.plan.buffers[touch.buffer].kind.in_arena();
                let right = (touch.buffer as u8, step as u8);
                if !carried && touch.bytes.iter().any(|b| state.memory[*b] != right) {
                    self.saw(Verdict { corrupt: true, ..self.verdict.get() });
                }
            } else if !touch.bytes.is_empty() {
                self.taken_early(state, step, touch.buffer);
            }
        }
    }

    fn taken_early(&self, state: &mut State, step: usize, taker: usize) {
        let ops = self.plan.ops.len();
        let n = self.pairs.len();
        for (i, (a, b)) in self.pairs.iter().enumerate().filter(|(_, (_, b))| *b == taker) {
            let mut users = (0..ops)
                .filter(|o| self.touches[*o].iter().any(|t| t.buffer == *a && !t.bytes.is_empty()));
            state.early[step * n + i] |= users.any(|o| state.progress[step * ops + o] != ENDED);
            let back = self.pairs.iter().position(|p| *p == (*b, *a)).unwrap();
            if state.early[step * n + i] && state.early[step * n + back] {
                self.saw(Verdict { shared_alive: true, ..self.verdict.get() });
            }
        }
    }

    fn saw(&self, verdict: Verdict) {
        self.verdict.set(verdict);
    }

    fn end(&self, state: &mut State, step: usize, op: usize) {
        for touch in self.touches[op].iter().filter(|t| t.write) {
            for b in &touch.bytes {
                state.memory[*b] = (touch.buffer as u8, step as u8);
            }
        }
    }
}
