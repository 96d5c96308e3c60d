//! Grammars at work, away from the step thread.
//!
//! What a client sent as a grammar decides how long it takes to move past a token and to find what
//! may follow: microseconds for most, hundreds of milliseconds for some. The step thread therefore
//! never waits for a grammar longer than [`PATIENCE_MICROS`]: a sampled token is handed to a
//! worker, the sequence is held, and it takes part in steps again once its next mask is there.

use crate::handle::Command;
use lockstep_flow::{MaskError, Micros, RequestId, Token, TokenMask};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Threads that move grammars on. A grammar that takes its whole time holds one of them.
const WORKERS: usize = 4;

/// Address space of a worker's stack: grammars recurse as deep as they nest.
const STACK_BYTES: usize = 256 << 20;

/// How long a step waits for masks that were begun after the last one: ordinary ones are there by
/// then, so that their sequences stay in one batch.
const PATIENCE_MICROS: u64 = 2_000;

/// A sequence's grammar and the mask of its next token.
#[derive(Debug)]
pub struct Guide {
    /// The grammar, before the next token.
    pub grammar: Box<dyn TokenMask>,
    /// One bit a token of the vocabulary.
    pub words: Box<[u32]>,
}

impl Guide {
    /// The guide of a sequence that begins.
    ///
    /// # Errors
    /// What the grammar says of its first mask.
    pub fn begin(mut grammar: Box<dyn TokenMask>, vocab: u32) -> Result<Guide, MaskError> {
        let mut words = vec![0; vocab.div_ceil(32) as usize].into_boxed_slice();
        grammar.fill(&mut words)?;
        Ok(Guide { grammar, words })
    }

    fn advance(&mut self, token: Token) -> Result<Verdict, MaskError> {
        self.grammar.accept(token)?;
        if self.grammar.is_complete() {
            return Ok(Verdict::Complete);
        }
        self.grammar.fill(&mut self.words)?;
        Ok(Verdict::Next)
    }
}

/// What a grammar says of a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The mask of the next one is there.
    Next,
    /// Nothing but the end may follow.
    Complete,
}

/// What comes back from a worker.
#[derive(Debug)]
pub struct Done {
    /// Whose.
    pub request: RequestId,
    /// To go on with.
    pub guide: Guide,
    /// The verdict, or why there is none.
    pub verdict: Result<Verdict, MaskError>,
}

#[derive(Debug)]
enum Task {
    Advance(RequestId, Guide, Token),
    /// A grammar can hold a hundred megabytes: giving them back takes a while too.
    Retire(#[allow(dead_code, reason = "dropped, which is the work")] Guide),
}

/// What is to be done. The step thread puts tasks in without taking memory.
#[derive(Debug)]
struct Queue {
    tasks: Mutex<Tasks>,
    wake: Condvar,
}

#[derive(Debug)]
struct Tasks {
    waiting: VecDeque<Task>,
    over: bool,
}

impl Queue {
    /// A worker that panics while it holds the lock has changed nothing.
    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, task: Task) {
        self.tasks().waiting.push_back(task);
        self.wake.notify_one();
    }

    /// Turns the waiting work of `request` into the drop of its grammar.
    fn give_up(&self, request: RequestId) {
        let mut tasks = self.tasks();
        let its = |task: &Task| matches!(task, Task::Advance(id, ..) if *id == request);
        let Some(at) = tasks.waiting.iter().position(its) else { return };
        if let Some(Task::Advance(_, guide, _)) = tasks.waiting.remove(at) {
            tasks.waiting.push_back(Task::Retire(guide));
        }
    }

    /// The next task; `None` where there will be none.
    fn take(&self) -> Option<Task> {
        let mut tasks = self.tasks();
        while tasks.waiting.is_empty() && !tasks.over {
            tasks = self.wake.wait(tasks).unwrap_or_else(PoisonError::into_inner);
        }
        tasks.waiting.pop_front().filter(|_| !tasks.over)
    }
}

/// The workers, as the step thread sees them; its drop ends them.
#[derive(Debug)]
pub struct Masks {
    replies: Sender<Command>,
    queue: Arc<Queue>,
    /// Started when the first grammar comes.
    workers: usize,
    /// Grammars that are with the workers, and since when.
    away: Vec<(RequestId, Micros)>,
}

impl Masks {
    /// No thread runs yet. What is done comes back as [`Command::Masked`]. `live_max` grammars can
    /// be under way at once.
    pub fn new(replies: Sender<Command>, live_max: usize) -> Masks {
        // One task to move on, and one to be dropped, for each.
        let waiting = VecDeque::with_capacity(2 * live_max);
        let tasks = Mutex::new(Tasks { waiting, over: false });
        let queue = Arc::new(Queue { tasks, wake: Condvar::new() });
        Masks { replies, queue, workers: 0, away: Vec::with_capacity(live_max) }
    }

    /// Sees to it that workers run.
    pub fn wake(&mut self) {
        if self.workers == 0 {
            self.workers = (0..WORKERS).filter(|n| self.start(*n)).count();
        }
    }

    fn start(&self, n: usize) -> bool {
        let (queue, replies) = (Arc::clone(&self.queue), self.replies.clone());
        let run = move || {
            while let Some(task) = queue.take() {
                work(task, &replies);
            }
        };
        let thread = std::thread::Builder::new().name(format!("mask-{n}"));
        thread.stack_size(STACK_BYTES).spawn(run).is_ok()
    }

    /// Has a worker move a grammar past `token` and find what may follow.
    pub fn advance(&mut self, request: RequestId, guide: Guide, token: Token, now: Micros) {
        self.away.push((request, now));
        self.give(Task::Advance(request, guide, token));
    }

    /// Drops a guide that nobody needs any more.
    pub fn retire(&mut self, guide: Guide) {
        self.give(Task::Retire(guide));
    }

    /// Gives up the work on a grammar whose request has ended: what still waits for a worker is
    /// dropped instead of done, so that it does not stand before the work of others.
    pub fn forget(&mut self, request: RequestId) {
        let before = self.away.len();
        self.returned(request);
        if self.away.len() < before {
            self.queue.give_up(request);
        }
    }

    /// Notes that a grammar has come back.
    pub fn returned(&mut self, request: RequestId) {
        self.away.retain(|(id, _)| *id != request);
    }

    /// Are any with the workers?
    pub fn any_away(&self) -> bool {
        !self.away.is_empty()
    }

    /// How long a step that could be planned now still waits for masks.
    pub fn patience(&self, now: Micros) -> Option<Micros> {
        let youngest = self.away.iter().map(|(_, since)| since.0).max()?;
        let left = (youngest + PATIENCE_MICROS).checked_sub(now.0)?;
        (left > 0).then_some(Micros(left))
    }

    /// Where no worker could be started, the request ends with words: the step thread has neither
    /// the time nor the stack for a grammar.
    fn give(&self, task: Task) {
        if self.workers > 0 {
            return self.queue.put(task);
        }
        if let Task::Advance(request, guide, _) = task {
            let what = "no thread could be started to follow it".into();
            let verdict = Err(MaskError::Engine { what });
            let _ = self.replies.send(Command::Masked(Box::new(Done { request, guide, verdict })));
        }
    }
}

impl Drop for Masks {
    fn drop(&mut self) {
        self.queue.tasks().over = true;
        self.queue.wake.notify_all();
    }
}

fn work(task: Task, replies: &Sender<Command>) {
    let Task::Advance(request, mut guide, token) = task else { return };
    let verdict = catch_unwind(AssertUnwindSafe(|| guide.advance(token)));
    let panicked = |_| Err(MaskError::Engine { what: "it panicked".into() });
    let verdict = verdict.unwrap_or_else(panicked);
    // A step loop that has ended has told every client already.
    let _ = replies.send(Command::Masked(Box::new(Done { request, guide, verdict })));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[derive(Debug)]
    struct Anything;

    impl TokenMask for Anything {
        fn fill(&mut self, words: &mut [u32]) -> Result<(), MaskError> {
            words.fill(u32::MAX);
            Ok(())
        }

        fn accept(&mut self, _: Token) -> Result<(), MaskError> {
            Ok(())
        }

        fn is_complete(&mut self) -> bool {
            false
        }
    }

    fn guide() -> Guide {
        Guide::begin(Box::new(Anything), 64).unwrap()
    }

    /// A client with many slow grammars that went away left its work standing before that of
    /// others, half a minute of it.
    #[test]
    fn work_of_requests_that_have_ended_is_dropped_and_not_done() {
        let (sender, _replies) = mpsc::channel();
        let mut masks = Masks::new(sender, 4);
        // Counted as running, so that tasks are queued and none is taken.
        masks.workers = 1;
        for id in [1, 2, 3] {
            masks.advance(RequestId(id), guide(), Token(7), Micros(0));
        }
        masks.forget(RequestId(2));
        masks.forget(RequestId(9));
        assert_eq!(masks.away.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [1, 3]);
        let tasks = masks.queue.tasks();
        let waits = |t: &Task| match t {
            Task::Advance(id, ..) => Some(id.0),
            Task::Retire(_) => None,
        };
        assert_eq!(tasks.waiting.iter().map(waits).collect::<Vec<_>>(), [Some(1), Some(3), None]);
    }

    /// Grammars ran on the step thread, silently, where no worker could be started.
    #[test]
    fn without_a_worker_a_grammar_ends_with_words() {
        let (sender, replies) = mpsc::channel();
        let mut masks = Masks::new(sender, 4);
        masks.advance(RequestId(1), guide(), Token(7), Micros(0));
        let Ok(Command::Masked(done)) = replies.try_recv() else { panic!("no answer") };
        assert!(matches!(done.verdict, Err(MaskError::Engine { .. })), "{:?}", done.verdict);
    }
}
