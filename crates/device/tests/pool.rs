//! The thread pool under stress: every task once, ops in order, panics reported, clean ends.

use core::sync::atomic::{AtomicU32, Ordering};
use lockstep_device::cpu::pool::{Pool, PoolError, Program, THREADS_MAX};
use std::sync::Mutex;

/// Counts every task, and checks in each that the op before it was complete.
struct Counted {
    tasks: Vec<u32>,
    runs: Vec<Vec<AtomicU32>>,
    walks: AtomicU32,
    busy: Vec<AtomicU32>,
}

impl Counted {
    fn new(tasks: Vec<u32>, threads: u32) -> Counted {
        let counters = |n: u32| (0..n).map(|_| AtomicU32::new(0)).collect::<Vec<_>>();
        Counted {
            runs: tasks.iter().map(|&n| counters(n)).collect(),
            walks: AtomicU32::new(0),
            busy: counters(threads),
            tasks,
        }
    }
}

impl Program for Counted {
    fn ops(&self) -> u32 {
        self.tasks.len() as u32
    }

    fn tasks(&self, op: u32) -> u32 {
        self.tasks[op as usize]
    }

    unsafe fn run(&self, op: u32, task: u32, thread: u32) {
        let busy = &self.busy[thread as usize];
        assert_eq!(busy.swap(1, Ordering::Relaxed), 0, "thread {thread} is in two tasks");
        let walk = self.walks.load(Ordering::Relaxed);
        if let Some(before) = self.runs[..op as usize].iter().rev().find(|r| !r.is_empty()) {
            // Relaxed on purpose: the pool's own ordering has to make these visible.
            assert!(before.iter().all(|r| r.load(Ordering::Relaxed) == walk + 1));
        }
        let mine = &self.runs[op as usize][task as usize];
        assert_eq!(mine.load(Ordering::Relaxed), walk);
        mine.store(walk + 1, Ordering::Relaxed);
        busy.store(0, Ordering::Relaxed);
    }
}

/// A small generator, so that shapes differ from run to run of the loop but not of the test.
fn next(seed: &mut u64) -> u32 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as u32
}

#[test]
fn every_task_runs_once_after_the_op_before_it() {
    let mut seed = 7;
    for threads in 1..=4 {
        let mut pool = Pool::new(threads, threads % 2 == 0).unwrap();
        for _ in 0..20 {
            let ops = next(&mut seed) % 40;
            let tasks = (0..ops).map(|_| match next(&mut seed) % 4 {
                0 => 1,
                1 => next(&mut seed) % 3,
                2 => next(&mut seed) % 20,
                _ => next(&mut seed) % 300,
            });
            let program = Counted::new(tasks.collect(), threads);
            for walk in 0..50 {
                program.walks.store(walk, Ordering::Relaxed);
                pool.execute(&program).unwrap();
                let complete = |r: &AtomicU32| r.load(Ordering::Relaxed) == walk + 1;
                assert!(program.runs.iter().flatten().all(complete), "{threads} threads");
            }
        }
    }
}

#[test]
fn workers_that_went_to_sleep_wake_up_again() {
    let mut pool = Pool::new(3, false).unwrap();
    let program = Counted::new(vec![64; 8], 3);
    for walk in 0..20 {
        program.walks.store(walk, Ordering::Relaxed);
        pool.execute(&program).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

struct Meet {
    met: Mutex<Vec<u32>>,
    threads: u32,
    arrived: AtomicU32,
}

impl Program for Meet {
    fn ops(&self) -> u32 {
        1
    }

    fn tasks(&self, _: u32) -> u32 {
        self.threads
    }

    unsafe fn run(&self, _: u32, _: u32, thread: u32) {
        self.met.lock().unwrap().push(thread);
        self.arrived.fetch_add(1, Ordering::SeqCst);
        while self.arrived.load(Ordering::SeqCst) < self.threads {
            std::thread::yield_now();
        }
    }
}

/// A pool in which one thread did all the work would pass every other test here.
#[test]
fn all_threads_take_part() {
    for threads in 1..=4 {
        let mut pool = Pool::new(threads, false).unwrap();
        let program = Meet { met: Mutex::new(Vec::new()), threads, arrived: AtomicU32::new(0) };
        pool.execute(&program).unwrap();
        let mut met = program.met.into_inner().unwrap();
        met.sort_unstable();
        assert_eq!(met, (0..threads).collect::<Vec<_>>());
    }
}

struct Faulty(AtomicU32);

impl Program for Faulty {
    fn ops(&self) -> u32 {
        3
    }

    fn tasks(&self, _: u32) -> u32 {
        50
    }

    unsafe fn run(&self, op: u32, task: u32, _: u32) {
        assert!((op, task) != (1, 17), "seventeen is broken");
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_panic_is_an_error_and_poisons_the_pool() {
    for threads in 1..=4 {
        let mut pool = Pool::new(threads, false).unwrap();
        let program = Faulty(AtomicU32::new(0));
        let message = "seventeen is broken".to_string();
        let first = PoolError::TaskPanicked { op: 1, task: 17, message: message.clone() };
        assert_eq!(pool.execute(&program), Err(first));
        let ran = program.0.load(Ordering::Relaxed);
        assert!((50..100).contains(&ran), "{ran} tasks ran: op 2 must not have");
        let later = PoolError::Poisoned { op: 1, task: 17, message };
        assert_eq!(pool.execute(&program), Err(later));
        assert_eq!(program.0.load(Ordering::Relaxed), ran);
    }
}

#[test]
fn thread_counts_outside_the_range_are_refused() {
    for found in [0, THREADS_MAX + 1] {
        assert_eq!(Pool::new(found, true).unwrap_err(), PoolError::Threads { found });
    }
}

/// Not an assertion (the machine may be busy): prints what an op costs beyond its work.
#[test]
fn cost_of_an_op_is_printed() {
    for threads in 1..=2 {
        for tasks in [1, 2, 8] {
            let mut pool = Pool::new(threads, true).unwrap();
            let program = Empty(tasks);
            pool.execute(&program).unwrap();
            let start = std::time::Instant::now();
            for _ in 0..100 {
                pool.execute(&program).unwrap();
            }
            let ns = start.elapsed().as_nanos() / (100 * 1000);
            println!("{threads} threads, {tasks} tasks an op: {ns} ns an op");
        }
    }
}

struct Empty(u32);

impl Program for Empty {
    fn ops(&self) -> u32 {
        1000
    }

    fn tasks(&self, _: u32) -> u32 {
        self.0
    }

    unsafe fn run(&self, _: u32, _: u32, _: u32) {}
}
