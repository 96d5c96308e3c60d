//! Runs plans of [`OpKind::Mix`] ops byte by byte, in any order and on threads.

use lockstep_plan::explore::{Extension, LaneItem, POISON, StepOp, Threaded};
use lockstep_plan::mix::{MixIn, mix64, spans};
use lockstep_plan::{Access, BufferId, OpKind, Packing, Span, StepPlan};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// What can be seen from outside: what the host read, by step and output, and state at the end.
pub type Seen = (Vec<(u32, u32, Vec<u8>)>, Vec<Vec<u8>>);

pub struct Machine<'a> {
    /// What the ops really touch, which a lying plan does not say.
    truth: &'a StepPlan,
    base: Vec<usize>,
    memory: Vec<AtomicU8>,
    host_read: Mutex<Vec<(u32, u32, Vec<u8>)>>,
}

impl<'a> Machine<'a> {
    pub fn new(truth: &'a StepPlan, packing: &Packing) -> Machine<'a> {
        let mut end = packing.arena_bytes() as usize;
        let base: Vec<usize> = truth
            .buffer_ids()
            .map(|id| match packing.offset(id) {
                Some(offset) => offset as usize,
                None => {
                    end += truth.buffer(id).bytes as usize;
                    end - truth.buffer(id).bytes as usize
                }
            })
            .collect();
        // Weights and state begin with bytes of their own.
        let memory: Vec<AtomicU8> =
            (0..end).map(|i| AtomicU8::new(mix64(i as u64) as u8)).collect();
        Machine { truth, base, memory, host_read: Mutex::new(Vec::new()) }
    }

    fn cells(&self, span: Span) -> &[AtomicU8] {
        let at = self.base[span.buffer.index()] + span.offset as usize;
        &self.memory[at..at + span.len as usize]
    }

    fn read(&self, span: Span) -> Vec<u8> {
        self.cells(span).iter().map(|c| c.load(Relaxed)).collect()
    }

    fn write(&self, span: Span, bytes: &[u8]) {
        self.cells(span).iter().zip(bytes).for_each(|(c, b)| c.store(*b, Relaxed));
    }

    fn whole(&self, buffer: BufferId) -> Span {
        Span { buffer, offset: 0, len: self.truth.buffer(buffer).bytes }
    }

    fn spans(&self, access: &Access) -> Vec<Span> {
        let table = match access {
            Access::Static { .. } => Vec::new(),
            Access::Indexed { via, .. } => self.read(self.whole(*via)),
        };
        spans(&self.truth.buffers, access, &table)
    }

    /// Runs one op. Inputs are a function of step and buffer, small enough to be table entries.
    fn run(&self, o: StepOp) {
        let op = self.truth.op(o.op);
        match &op.kind {
            OpKind::HostWrite { input } => {
                let span = self.whole(*input);
                let word =
                    |i: u64| mix64(u64::from(o.step) << 40 ^ u64::from(input.0) << 20 ^ i) % 4;
                let bytes: Vec<u8> =
                    (0..span.len).map(|i| if i % 4 == 0 { word(i) as u8 } else { 0 }).collect();
                self.write(span, &bytes);
            }
            OpKind::HostRead { output } => {
                let bytes = self.read(self.whole(*output));
                self.host_read.lock().unwrap().push((o.step, output.0, bytes));
            }
            OpKind::Mix { seed } => {
                let mut input = MixIn::new(*seed);
                for access in &op.reads {
                    self.spans(access).into_iter().for_each(|s| input.read(&self.read(s)));
                }
                let targets: Vec<Span> = op.writes.iter().flat_map(|a| self.spans(a)).collect();
                let mut output = input.finish();
                for span in targets {
                    let mut bytes = vec![0; span.len as usize];
                    output.write(&mut bytes);
                    self.write(span, &bytes);
                }
            }
            other => panic!("the interpreter does not run {}", other.kernel()),
        }
    }

    fn seen(&self) -> Seen {
        let mut read = self.host_read.lock().unwrap().clone();
        read.sort();
        let state = self.truth.buffer_ids().filter(|id| !self.truth.buffer(*id).kind.in_arena());
        (read, state.map(|id| self.read(self.whole(id))).collect())
    }

    /// Runs an order with poison.
    pub fn explore(&self, plan: &StepPlan, packing: &Packing, extension: &Extension) -> Seen {
        let poisons = extension.poisons(plan, packing);
        let mut next = poisons.iter().peekable();
        for i in 0..=extension.order.len() {
            while let Some(p) = next.next_if(|p| p.before == i) {
                for cell in &self.memory[p.arena.start as usize..p.arena.end as usize] {
                    cell.store(POISON, Relaxed);
                }
            }
            if let Some(o) = extension.order.get(i) {
                self.run(*o);
            }
        }
        self.seen()
    }

    /// Runs one thread a lane.
    pub fn threaded(&self, threaded: &Threaded) -> Seen {
        let events: Vec<AtomicBool> =
            (0..threaded.events).map(|_| AtomicBool::new(false)).collect();
        std::thread::scope(|scope| {
            for lane in &threaded.lanes {
                scope.spawn(|| lane.iter().for_each(|item| self.item(*item, &events)));
            }
        });
        self.seen()
    }

    fn item(&self, item: LaneItem, events: &[AtomicBool]) {
        match item {
            LaneItem::Wait(event) => {
                while !events[event as usize].load(SeqCst) {
                    std::thread::yield_now();
                }
            }
            LaneItem::Delay { micros } => {
                let until = Instant::now() + Duration::from_micros(micros.into());
                while Instant::now() < until {
                    std::thread::yield_now();
                }
            }
            LaneItem::Run(o) => self.run(o),
            LaneItem::Record(event) => events[event as usize].store(true, SeqCst),
        }
    }
}

/// Program order, the yardstick.
pub fn program_order(truth: &StepPlan, packing: &Packing, steps: u32) -> Seen {
    let order = Extension::program_order(truth, steps);
    Machine::new(truth, packing).explore(truth, packing, &order)
}

/// A random order by seed.
pub fn explored(plan: &StepPlan, truth: &StepPlan, packing: &Packing, seed: u64) -> Seen {
    let order = Extension::random(plan, 3, seed).expect("lanes do not wait for each other");
    Machine::new(truth, packing).explore(plan, packing, &order)
}
