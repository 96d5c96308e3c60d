//! A judge of small plans that walks through every interleaving of some steps, of one plan or of
//! several that share an arena.
//!
//! It knows nothing of happens-before: it simulates lanes that start ops, let them pass their
//! wait and end them, in every order that lanes and edges allow, over a memory whose every byte
//! remembers which buffer's value it holds and from which step. It shares no code with `prove`.

use lockstep_plan::{Access, BufferKind, EdgeKind, LaneId, Packing, StepPlan};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};

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

/// One step of the sequence that is walked through.
struct Step<'a> {
    plan: &'a StepPlan,
    touches: Vec<Vec<Touch>>,
    /// Pairs of transients that share a byte.
    pairs: Vec<(usize, usize)>,
    /// Where its ops and pairs begin in a state.
    first_op: usize,
    first_pair: usize,
}

pub struct Oracle<'a> {
    steps: Vec<Step<'a>>,
    memory_bytes: usize,
    verdict: Cell<Verdict>,
}

/// Value of a byte that nothing has written.
const NOTHING: (u8, u8) = (u8::MAX, u8::MAX);

/// The bytes that an indexed access really touches: by op, write and index.
type Exact<'a> = &'a dyn Fn(usize, bool, usize) -> Vec<u64>;

impl<'a> Oracle<'a> {
    /// Three steps of one plan. `exact` gives, for an indexed access, the bytes that it really
    /// touches; without it, it touches all.
    pub fn new(plan: &'a StepPlan, packing: &Packing, exact: Option<Exact>) -> Oracle<'a> {
        Oracle::sequence(&[(plan, packing); STEPS], exact)
    }

    /// A step of each of these plans, one after the other, in one arena.
    pub fn sequence(steps: &[(&'a StepPlan, &Packing)], exact: Option<Exact>) -> Oracle<'a> {
        // Weights and state lie behind the arena, by name.
        let mut end = steps.iter().map(|(_, p)| p.arena_bytes() as usize).max().unwrap_or(0);
        let mut named: HashMap<&str, usize> = HashMap::new();
        let (mut first_op, mut first_pair) = (0, 0);
        let mut out = Vec::new();
        for (plan, packing) in steps {
            let base: Vec<usize> = plan
                .buffer_ids()
                .map(|id| match packing.offset(id) {
                    Some(offset) => offset as usize,
                    None => *named.entry(&plan.buffer(id).name).or_insert_with(|| {
                        end += plan.buffer(id).bytes as usize;
                        end - plan.buffer(id).bytes as usize
                    }),
                })
                .collect();
            let touches = (0..plan.ops.len()).map(|o| touches(plan, &base, o, exact)).collect();
            let pairs = pairs(plan, &base);
            let counts = (plan.ops.len(), pairs.len());
            out.push(Step { plan, touches, pairs, first_op, first_pair });
            first_op += counts.0;
            first_pair += counts.1;
        }
        Oracle { steps: out, memory_bytes: end, verdict: Cell::default() }
    }

    /// Walks through everything; `first` stops at the first thing seen. Also says how many states
    /// it went through.
    pub fn judge(self, first: bool) -> (Verdict, usize) {
        let ops = self.steps.iter().map(|s| s.plan.ops.len()).sum();
        let start = State {
            progress: vec![WAITING; ops],
            memory: vec![NOTHING; self.memory_bytes],
            early: vec![false; self.steps.iter().map(|s| s.pairs.len()).sum()],
        };
        let mut seen = HashSet::from([start.clone()]);
        let mut todo = vec![start];
        let mut states = 0;
        while let Some(state) = todo.pop() {
            states += 1;
            for step in 0..self.steps.len() {
                for op in 0..self.steps[step].plan.ops.len() {
                    if let Some(next) = self.advance(&state, step, op)
                        && !seen.contains(&next)
                    {
                        seen.insert(next.clone());
                        todo.push(next);
                    }
                }
            }
            if first && !self.verdict.get().is_clean() {
                break;
            }
        }
        (self.verdict.get(), states)
    }

    fn at(&self, state: &State, step: usize, op: usize) -> u8 {
        state.progress[self.steps[step].first_op + op]
    }

    fn advance(&self, state: &State, step: usize, op: usize) -> Option<State> {
        let may = match self.at(state, step, op) {
            WAITING => self.may_start(state, step, op),
            STARTED => self.steps[step].plan.edges.iter().all(|e| {
                let waits = e.to.index() == op && matches!(e.kind, EdgeKind::Programmatic { .. });
                !waits || self.at(state, step, e.from.index()) == ENDED
            }),
            PAST_WAIT => true,
            _ => false,
        };
        if !may {
            return None;
        }
        let mut next = state.clone();
        let progress = &mut next.progress[self.steps[step].first_op + op];
        *progress += 1;
        match *progress {
            STARTED => self.begin(&mut next, step, op, true),
            PAST_WAIT => self.begin(&mut next, step, op, false),
            _ => self.end(&mut next, step, op),
        }
        Some(next)
    }

    fn may_start(&self, state: &State, step: usize, op: usize) -> bool {
        let plan = self.steps[step].plan;
        let lane = plan.ops[op].lane;
        let neighbour = (0..op).rev().find(|o| plan.ops[*o].lane == lane);
        let mut lane_order = true;
        for e in plan.edges.iter().filter(|e| e.to.index() == op) {
            let from = e.from.index();
            let ok = match e.kind {
                EdgeKind::Event => self.at(state, step, from) == ENDED,
                EdgeKind::Programmatic { .. } => {
                    lane_order &= neighbour != Some(from);
                    self.at(state, step, from) != WAITING
                }
                EdgeKind::NextStep => self.earlier_step_is_done(state, step, from),
            };
            if !ok {
                return false;
            }
        }
        if lane_order && neighbour.is_some_and(|o| self.at(state, step, o) != ENDED) {
            return false;
        }
        lane == LaneId::HOST || step == 0 || self.all_ended(state, step - 1, false)
    }

    /// An edge from the step before: from that very op where it ran the same plan, else from all
    /// of its side in all earlier steps.
    fn earlier_step_is_done(&self, state: &State, step: usize, from: usize) -> bool {
        if step == 0 {
            return true;
        }
        if std::ptr::eq(self.steps[step - 1].plan, self.steps[step].plan) {
            return self.at(state, step - 1, from) == ENDED;
        }
        let host = self.steps[step].plan.ops[from].lane == LaneId::HOST;
        (0..step).all(|s| self.all_ended(state, s, host))
    }

    fn all_ended(&self, state: &State, step: usize, host: bool) -> bool {
        let plan = self.steps[step].plan;
        let on_side = |o: &usize| (plan.ops[*o].lane == LaneId::HOST) == host;
        (0..plan.ops.len()).filter(on_side).all(|o| self.at(state, step, o) == ENDED)
    }

    /// The accesses that become possible: compare with everything that runs, look at what is
    /// read, and note which buffers are given bytes too early.
    fn begin(&self, state: &mut State, step: usize, op: usize, before_wait: bool) {
        let this = &self.steps[step];
        for touch in this.touches[op].iter().filter(|t| t.before_wait == before_wait) {
            for (s, other) in self.steps.iter().enumerate() {
                for o in (0..other.plan.ops.len()).filter(|o| (s, *o) != (step, op)) {
                    let active = |t: &&Touch| match self.at(state, s, o) {
                        STARTED => t.before_wait,
                        PAST_WAIT => true,
                        _ => false,
                    };
                    let clash = |t: &Touch| {
                        (t.write || touch.write) && t.bytes.iter().any(|b| touch.bytes.contains(b))
                    };
                    if other.touches[o].iter().filter(active).any(clash) {
                        self.saw(|v| v.race = true);
                    }
                }
            }
            if !touch.write {
                let carried = !this.plan.buffers[touch.buffer].kind.in_arena();
                let right = (touch.buffer as u8, step as u8);
                if !carried && touch.bytes.iter().any(|b| state.memory[*b] != right) {
                    self.saw(|v| v.corrupt = true);
                }
            } else if !touch.bytes.is_empty() {
                self.taken_early(state, step, touch.buffer);
            }
        }
    }

    fn taken_early(&self, state: &mut State, step: usize, taker: usize) {
        let this = &self.steps[step];
        for (i, (a, b)) in this.pairs.iter().enumerate().filter(|(_, (_, b))| *b == taker) {
            let mut users = (0..this.plan.ops.len())
                .filter(|o| this.touches[*o].iter().any(|t| t.buffer == *a && !t.bytes.is_empty()));
            let alive = users.any(|o| self.at(state, step, o) != ENDED);
            state.early[this.first_pair + i] |= alive;
            let back = this.pairs.iter().position(|p| *p == (*b, *a)).unwrap();
            if state.early[this.first_pair + i] && state.early[this.first_pair + back] {
                self.saw(|v| v.shared_alive = true);
            }
        }
    }

    fn saw(&self, what: impl Fn(&mut Verdict)) {
        let mut verdict = self.verdict.get();
        what(&mut verdict);
        self.verdict.set(verdict);
    }

    fn end(&self, state: &mut State, step: usize, op: usize) {
        for touch in self.steps[step].touches[op].iter().filter(|t| t.write) {
            for b in &touch.bytes {
                state.memory[*b] = (touch.buffer as u8, step as u8);
            }
        }
    }
}

/// What an op touches, byte by byte.
fn touches(plan: &StepPlan, base: &[usize], o: usize, exact: Option<Exact>) -> Vec<Touch> {
    let op = &plan.ops[o];
    let mut out = Vec::new();
    for (list, write) in [(&op.reads, false), (&op.writes, true)] {
        for (i, access) in list.iter().enumerate() {
            let buffer = access.buffer().index();
            let bytes: Vec<u64> = match (access, exact) {
                (Access::Static { span, .. }, _) => (span.offset..span.offset + span.len).collect(),
                (Access::Indexed { .. }, Some(f)) => f(o, write, i),
                (Access::Indexed { .. }, None) => (0..plan.buffers[buffer].bytes).collect(),
            };
            let masked = |e: &lockstep_plan::Edge| match e.kind {
                EdgeKind::Programmatic { before_wait: m } if e.to.index() == o => {
                    (if write { m.writes } else { m.reads }) >> i & 1 == 1
                }
                _ => false,
            };
            let before_wait = plan.edges.iter().any(masked);
            let bytes = bytes.iter().map(|x| base[buffer] + *x as usize).collect();
            out.push(Touch { buffer, bytes, write, before_wait });
        }
    }
    out
}

/// Pairs of transients with a byte in common, both ways round.
fn pairs(plan: &StepPlan, base: &[usize]) -> Vec<(usize, usize)> {
    let transient = |i: &usize| plan.buffers[*i].kind == BufferKind::Transient;
    let place = |i: usize| base[i]..base[i] + plan.buffers[i].bytes as usize;
    let all = 0..plan.buffers.len();
    let mut pairs = Vec::new();
    for a in all.clone().filter(transient) {
        for b in all.clone().filter(transient).filter(|b| *b != a) {
            if place(a).any(|x| place(b).contains(&x)) {
                pairs.push((a, b));
            }
        }
    }
    pairs
}
