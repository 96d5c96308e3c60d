//! Pinned threads that walk a program's ops together.
//!
//! Ops run in order; the tasks of one op run in any order on any thread. A thread claims tasks
//! from one word that holds (op, next task), so nobody waits for a thread that has claimed
//! nothing: one that sleeps, or that the kernel took off its core, holds up no op, and the caller
//! can finish a short program before the others have woken. Which thread runs which task changes
//! no bits, because tasks write disjoint bytes and reductions are inside tasks.
//!
//! No lock and no allocation between `execute` and its return, unless a task panics.

use core::cell::{Cell, UnsafeCell};
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Threads of a pool, at most.
pub const THREADS_MAX: u32 = 1024;
/// Tasks of one op, at most: claims may run past the end by a chunk a thread.
pub const TASKS_MAX: u32 = 1 << 30;

/// Looks at the claim word before a waiting thread gives its core away.
const SPINS_BEFORE_YIELD: u32 = 2000;
/// How long an idle thread spins for the next program before it sleeps: about the time that the
/// host needs between two steps.
const IDLE_SPIN: Duration = Duration::from_micros(200);

/// What a pool can walk.
pub trait Program: Sync {
    /// Ops, run in the order 0, 1, ...
    fn ops(&self) -> u32;

    /// Tasks of an op, at most [`TASKS_MAX`]; the same at every call during one `execute`.
    fn tasks(&self, op: u32) -> u32;

    /// Runs one task.
    ///
    /// # Safety
    /// All tasks of earlier ops have completed and are visible; each (op, task) runs once a walk;
    /// no other call with this `thread` runs meanwhile; `op`, `task` and `thread` are in range.
    unsafe fn run(&self, op: u32, task: u32, thread: u32);
}

/// Why a pool could not be made or does not run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PoolError {
    /// Not in `1..=THREADS_MAX`.
    Threads { found: u32 },
    /// The operating system gave no thread.
    Spawn { thread: u32, kind: std::io::ErrorKind },
    /// This task panicked in this walk; the pool refuses further work.
    TaskPanicked { op: u32, task: u32, message: String },
    /// A task panicked in an earlier walk.
    Poisoned { op: u32, task: u32, message: String },
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::Threads { found } => {
                write!(f, "a pool of {found} threads was asked for; it takes 1 to {THREADS_MAX}")
            }
            PoolError::Spawn { thread, kind } => {
                write!(f, "kernel thread {thread} could not be started ({kind}); use fewer threads")
            }
            PoolError::TaskPanicked { op, task, message } => {
                write!(f, "task {task} of op {op} panicked: {message}")
            }
            PoolError::Poisoned { op, task, message } => write!(
                f,
                "the kernel threads refuse work since task {task} of op {op} panicked: {message}"
            ),
        }
    }
}

impl core::error::Error for PoolError {}

impl PoolError {
    /// The op whose task panicked.
    pub fn op(&self) -> Option<u32> {
        match self {
            PoolError::TaskPanicked { op, .. } | PoolError::Poisoned { op, .. } => Some(*op),
            PoolError::Threads { .. } | PoolError::Spawn { .. } => None,
        }
    }
}

/// Keeps what one thread writes often off the lines that others read.
#[repr(align(128))]
struct Line<T>(T);

struct Shared {
    threads: u32,
    /// op << 32 | next unclaimed task.
    claim: Line<AtomicU64>,
    /// Completed tasks of the current op, but for those not yet reported.
    done: Line<AtomicU32>,
    /// Counts walks; idle threads watch it.
    epoch: Line<AtomicU32>,
    /// Threads other than the caller that may hold `program`.
    active: Line<AtomicU32>,
    /// True while `program` may be followed.
    open: AtomicBool,
    stop: AtomicBool,
    failed: AtomicBool,
    failure: Mutex<Option<(u32, u32, String)>>,
    parked: Vec<Line<AtomicBool>>,
    program: UnsafeCell<Option<*const (dyn Program + 'static)>>,
}

// SAFETY: `program` is written by the caller only while no thread is active, and read only by
// active threads while `open`; `Program` is `Sync`. Everything else is atomic or locked.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Threads that run programs, the caller of [`Pool::execute`] among them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<(Thread, Option<JoinHandle<()>>)>,
    cpus: Vec<usize>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} threads)", self.shared.threads)
    }
}

impl Pool {
    /// Starts `threads - 1` threads; the caller of [`Pool::execute`] is the remaining one.
    ///
    /// With `pin`, and where the process may use at least `threads` CPUs, thread i stays on the
    /// i-th of them (the caller: [`Pool::pin_caller`]). Pinning that fails is not an error.
    pub fn new(threads: u32, pin: bool) -> Result<Pool, PoolError> {
        if threads == 0 || threads > THREADS_MAX {
            return Err(PoolError::Threads { found: threads });
        }
        let cpus = if pin { allowed_cpus() } else { Vec::new() };
        let cpus = if cpus.len() >= threads as usize { cpus } else { Vec::new() };
        let shared = Arc::new(Shared {
            threads,
            claim: Line(AtomicU64::new(0)),
            done: Line(AtomicU32::new(0)),
            epoch: Line(AtomicU32::new(0)),
            active: Line(AtomicU32::new(0)),
            open: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            parked: (0..threads).map(|_| Line(AtomicBool::new(false))).collect(),
            program: UnsafeCell::new(None),
        });
        let mut pool = Pool { shared, workers: Vec::new(), cpus };
        for thread in 1..threads {
            let (shared, cpu) = (pool.shared.clone(), pool.cpus.get(thread as usize).copied());
            let work = move || {
                if let Some(cpu) = cpu {
                    pin_current(cpu);
                }
                shared.serve(thread);
            };
            let handle = thread::Builder::new()
                .name(format!("kernel-{thread}"))
                .spawn(work)
                .map_err(|e| PoolError::Spawn { thread, kind: e.kind() })?;
            pool.workers.push((handle.thread().clone(), Some(handle)));
        }
        Ok(pool)
    }

    /// Participants, the caller included.
    pub fn threads(&self) -> u32 {
        self.shared.threads
    }

    /// Keeps the current thread on the first CPU, where the pool pins; true where it worked.
    pub fn pin_caller(&self) -> bool {
        self.cpus.first().is_some_and(|&cpu| pin_current(cpu))
    }

    /// Walks the program and returns when all of it has run.
    ///
    /// # Errors
    /// A task that panics ends the walk early (tasks that had been claimed may still run) and
    /// poisons the pool: this and every later call give an error.
    pub fn execute(&mut self, program: &dyn Program) -> Result<(), PoolError> {
        if let Some((op, task, message)) = self.shared.failure() {
            return Err(PoolError::Poisoned { op, task, message });
        }
        if self.shared.threads == 1 {
            self.shared.walk_alone(program);
        } else {
            self.walk_together(program);
        }
        match self.shared.failure() {
            None => Ok(()),
            Some((op, task, message)) => Err(PoolError::TaskPanicked { op, task, message }),
        }
    }

    fn walk_together(&mut self, program: &dyn Program) {
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. `open` goes false and `active` reaches 0 before this
        // function returns, so no thread follows the pointer after that.
        let erased = unsafe {
            core::mem::transmute::<*const (dyn Program + '_), *const (dyn Program + 'static)>(
                program,
            )
        };
        // SAFETY: no thread is active: the last walk waited for that, and `open` is false.
        unsafe { *shared.program.get() = Some(erased) };
        shared.done.0.store(0, Ordering::Relaxed);
        shared.claim.0.store(u64::from(next_op(program, 0)) << 32, Ordering::Relaxed);
        shared.open.store(true, Ordering::SeqCst);
        shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        for (i, (worker, _)) in self.workers.iter().enumerate() {
            if shared.parked[i + 1].0.load(Ordering::SeqCst) {
                worker.unpark();
            }
        }
        shared.participate(program, 0);
        shared.open.store(false, Ordering::SeqCst);
        let mut wait = Wait::new();
        while shared.active.0.load(Ordering::SeqCst) != 0 {
            wait.pause();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        for (worker, handle) in &mut self.workers {
            worker.unpark();
            if let Some(handle) = handle.take() {
                // A worker catches its tasks' panics, so this join has nothing to report.
                let _ = handle.join();
            }
        }
    }
}

impl Shared {
    fn failure(&self) -> Option<(u32, u32, String)> {
        if !self.failed.load(Ordering::Acquire) {
            return None;
        }
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn walk_alone(&self, program: &dyn Program) {
        for op in 0..program.ops() {
            self.run_chunk(program, op, 0, program.tasks(op), 0);
        }
    }

    /// A worker's life.
    fn serve(&self, thread: u32) {
        let mut seen = 0;
        loop {
            seen = self.await_walk(seen, thread);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            self.active.0.fetch_add(1, Ordering::SeqCst);
            if self.open.load(Ordering::SeqCst) {
                // SAFETY: this thread is active and the walk is open, so the caller neither
                // changes `program` nor returns until `active` is lowered again.
                let program = unsafe { (*self.program.get()).map(|p| &*p) };
                if let Some(program) = program {
                    self.participate(program, thread);
                }
            }
            self.active.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Returns the walk count once it differs from `seen`.
    fn await_walk(&self, seen: u32, thread: u32) -> u32 {
        let parked = &self.parked[thread as usize].0;
        let start = Instant::now();
        let mut spins = 0u32;
        loop {
            let epoch = self.epoch.0.load(Ordering::SeqCst);
            if epoch != seen {
                return epoch;
            }
            core::hint::spin_loop();
            spins += 1;
            if spins.is_multiple_of(64) && start.elapsed() > IDLE_SPIN {
                // The flag goes up before the last look at the epoch, and the caller changes the
                // epoch before it looks at the flag: one of the two sees the other.
                parked.store(true, Ordering::SeqCst);
                while self.epoch.0.load(Ordering::SeqCst) == seen {
                    thread::park();
                }
                parked.store(false, Ordering::SeqCst);
            }
        }
    }

    fn participate(&self, program: &dyn Program, thread: u32) {
        let ops = program.ops();
        let mut wait = Wait::new();
        let mut word = self.claim.0.load(Ordering::Acquire);
        loop {
            let (op, next) = split(word);
            if op >= ops {
                return;
            }
            let total = program.tasks(op);
            debug_assert!(total <= TASKS_MAX, "op {op} has {total} tasks");
            if next >= total {
                wait.pause();
                word = self.claim.0.load(Ordering::Acquire);
                continue;
            }
            wait = Wait::new();
            let chunk = self.chunk(total, next);
            let (op, start) = split(self.claim.0.fetch_add(u64::from(chunk), Ordering::AcqRel));
            if op >= ops {
                return;
            }
            self.work_on(program, ops, op, start, chunk, thread);
            word = self.claim.0.load(Ordering::Acquire);
        }
    }

    /// Runs the claimed tasks `start..start + chunk` of `op` and goes on claiming from it; where
    /// this thread completes an op, it opens the next one with its first chunk already claimed.
    fn work_on(
        &self,
        program: &dyn Program,
        ops: u32,
        mut op: u32,
        mut start: u32,
        mut chunk: u32,
        thread: u32,
    ) {
        loop {
            let total = program.tasks(op);
            let mut mine = 0;
            while start < total {
                let end = total.min(start + chunk);
                self.run_chunk(program, op, start, end, thread);
                mine += end - start;
                if mine == total || end == total {
                    break;
                }
                chunk = self.chunk(total, end);
                // The op cannot complete before `mine` is reported, so this is still its word.
                start = split(self.claim.0.fetch_add(u64::from(chunk), Ordering::AcqRel)).1;
            }
            if mine == 0 {
                return;
            }
            if mine != total {
                if self.done.0.fetch_add(mine, Ordering::AcqRel) + mine != total {
                    return;
                }
                self.done.0.store(0, Ordering::Relaxed);
            }
            op = next_op(program, op + 1);
            if op >= ops {
                self.claim.0.store(u64::from(op) << 32, Ordering::Release);
                return;
            }
            (start, chunk) = (0, self.chunk(program.tasks(op), 0));
            self.claim.0.store(u64::from(op) << 32 | u64::from(chunk), Ordering::Release);
        }
    }

    /// How many tasks to claim: large bites first, single tasks at the end.
    fn chunk(&self, total: u32, next: u32) -> u32 {
        (total.saturating_sub(next) / (4 * self.threads)).max(1)
    }

    fn run_chunk(&self, program: &dyn Program, op: u32, start: u32, end: u32, thread: u32) {
        if self.failed.load(Ordering::Relaxed) {
            return;
        }
        let task = Cell::new(start);
        let run = || {
            while task.get() < end {
                // SAFETY: claims are disjoint, the op's word was opened after all earlier ops had
                // completed (release and acquire through `done` and `claim`), and `thread` is
                // this thread's own number.
                unsafe { program.run(op, task.get(), thread) };
                task.set(task.get() + 1);
            }
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            let message = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
                (Some(s), _) => (*s).to_string(),
                (_, Some(s)) => s.clone(),
                _ => "a value that is no text".to_string(),
            };
            let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            failure.get_or_insert((op, task.get(), message));
            self.failed.store(true, Ordering::Release);
        }
    }
}

/// The first op from `op` on that has tasks; `ops()` where there is none.
fn next_op(program: &dyn Program, op: u32) -> u32 {
    let ops = program.ops();
    (op..ops).find(|&op| program.tasks(op) > 0).unwrap_or(ops)
}

fn split(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

/// Spins for a while, then gives the core away between looks.
struct Wait(u32);

impl Wait {
    fn new() -> Wait {
        Wait(0)
    }

    fn pause(&mut self) {
        if self.0 < SPINS_BEFORE_YIELD {
            self.0 += 1;
            core::hint::spin_loop();
        } else {
            thread::yield_now();
        }
    }
}

/// The CPUs that this process may run on; empty where the system does not say.
#[cfg(target_os = "linux")]
fn allowed_cpus() -> Vec<usize> {
    // SAFETY: an all-zero set is a valid value, and the call fills at most the size it is given.
    unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return Vec::new();
        }
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect()
    }
}

#[cfg(target_os = "linux")]
fn pin_current(cpu: usize) -> bool {
    // SAFETY: an all-zero set is a valid value, and `cpu` came out of a set of the same size.
    unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) == 0
    }
}

#[cfg(not(target_os = "linux"))]
fn allowed_cpus() -> Vec<usize> {
    Vec::new()
}

#[cfg(not(target_os = "linux"))]
fn pin_current(_: usize) -> bool {
    false
}
