//! Worker threads for the operators: a fork-join of about a microsecond between operators of a step, and no cost at all when idle.
//!
//! Workers spin briefly for the next job and then park. A caller never waits for a worker that has not joined its job, so a
//! machine with more runnable threads than cores slows down instead of stalling.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a worker looks for the next job before it parks: longer than the serial parts of a step, shorter than anyone's idle.
const SPIN: Duration = Duration::from_micros(150);
/// Spins between two looks at the clock, or between two yields of a caller that waits for its workers' last tasks.
const SPINS_A_LOOK: u32 = 64;

/// The gate's low bits count workers inside the job, bit 16 says that it is open, the rest numbers the job.
const OPEN: u64 = 1 << 16;
const INSIDE: u64 = OPEN - 1;
const NEXT_JOB: u64 = OPEN << 1;

thread_local! {
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
}

type Task<'a> = &'a (dyn Fn(usize, usize) + Sync);

#[derive(Clone, Copy)]
struct Job {
    task: Task<'static>,
    n: usize,
}

struct Shared {
    gate: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    next: AtomicUsize,
    panicked: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
    asleep: Vec<AtomicBool>,
}

// SAFETY: `job` is written only by the caller that holds `Pool::turn`, while the gate is closed and nobody is inside; it is read
// only by workers that entered through the open gate. Everything else is atomic or behind a lock.
unsafe impl Sync for Shared {}

/// A fixed set of workers, the caller among them.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<Thread>,
    handles: Vec<JoinHandle<()>>,
    turn: Mutex<()>,
}

impl Pool {
    /// A pool of `workers` threads (at least one; the caller is one of them). Threads the system will not give are done without.
    pub fn new(workers: usize) -> Self {
        let extra = workers.clamp(1, INSIDE as usize) - 1;
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            panicked: Mutex::new(None),
            stop: AtomicBool::new(false),
            asleep: (0..extra).map(|_| AtomicBool::new(false)).collect(),
        });
        let mut handles = Vec::with_capacity(extra);
        for worker in 1..=extra {
            let shared = Arc::clone(&shared);
            let spawned = std::thread::Builder::new().name(format!("kernel-{worker}")).spawn(move || shared.work(worker));
            match spawned {
                Ok(handle) => handles.push(handle),
                Err(error) => {
                    tracing::warn!(%error, threads = worker, "no more worker threads");
                    break;
                }
            }
        }
        let threads = handles.iter().map(|h| h.thread().clone()).collect();
        Self { shared, threads, handles, turn: Mutex::new(()) }
    }

    /// Threads that run tasks, the caller included.
    pub fn workers(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `task(index, worker)` for every index below `n`; indices are handed out in ascending order, each once; returns when all are done.
    ///
    /// A panic in a task is passed on to the caller after the tasks that had begun have ended; the others are left out.
    ///
    /// # Panics
    /// When called from within a task: a job cannot wait for its own workers.
    pub fn run(&self, n: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        assert!(!IN_TASK.get(), "Pool::run was called from within a task");
        if self.threads.is_empty() || n <= 1 {
            let _inside = Inside::enter();
            return (0..n).for_each(|i| task(i, 0));
        }
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: the lifetime is stretched only until `close`, which returns when no worker can touch the task any more;
        // nothing between here and there unwinds (tasks run under catch_unwind).
        let task = unsafe { std::mem::transmute::<Task<'_>, Task<'static>>(task) };
        // SAFETY: this thread holds the turn and the gate is closed with nobody inside (the last `close` waited for that).
        unsafe { *shared.job.get() = Some(Job { task, n }) };
        shared.next.store(0, Ordering::Relaxed);
        shared.gate.fetch_add(NEXT_JOB + OPEN, Ordering::SeqCst);
        for (asleep, thread) in shared.asleep.iter().zip(&self.threads) {
            if asleep.load(Ordering::SeqCst) && asleep.swap(false, Ordering::SeqCst) {
                thread.unpark();
            }
        }
        shared.tasks(Job { task, n }, 0);
        shared.close();
        let panicked = shared.panicked.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(turn);
        if let Some(payload) = panicked {
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for handle in self.handles.drain(..) {
            handle.thread().unpark();
            // A worker cannot panic outside catch_unwind; there is nothing to report if it did.
            let _ended = handle.join();
        }
    }
}

/// Marks this thread as inside a task for as long as it lives.
struct Inside;

impl Inside {
    fn enter() -> Self {
        IN_TASK.set(true);
        Inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        IN_TASK.set(false);
    }
}

impl Shared {
    fn work(&self, worker: usize) {
        let mut seen = 0;
        while let Some(job) = self.enter(&mut seen, worker) {
            self.tasks(job, worker);
            self.gate.fetch_sub(1, Ordering::Release);
        }
    }

    /// Takes indices until none is left; panics are kept for the caller.
    fn tasks(&self, job: Job, worker: usize) {
        let run = || {
            let _inside = Inside::enter();
            loop {
                let i = self.next.fetch_add(1, Ordering::Relaxed);
                if i >= job.n {
                    break;
                }
                (job.task)(i, worker);
            }
        };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(run)) {
            self.next.store(job.n, Ordering::Relaxed);
            self.panicked.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
        }
    }

    /// Waits for a job not seen yet and joins it; None at the pool's end.
    fn enter(&self, seen: &mut u64, worker: usize) -> Option<Job> {
        let mut idle = None;
        let mut spins = 0;
        loop {
            let gate = self.gate.load(Ordering::SeqCst);
            if gate & OPEN != 0 && gate / NEXT_JOB != *seen {
                if self.gate.compare_exchange_weak(gate, gate + 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    *seen = gate / NEXT_JOB;
                    // SAFETY: the gate was open as this worker went in, so the caller wrote the job before and waits for us.
                    return unsafe { *self.job.get() };
                }
                continue;
            }
            if self.stop.load(Ordering::SeqCst) {
                return None;
            }
            spins += 1;
            if spins < SPINS_A_LOOK {
                std::hint::spin_loop();
                continue;
            }
            spins = 0;
            if idle.get_or_insert_with(Instant::now).elapsed() > SPIN {
                self.sleep(*seen, worker);
                idle = None;
            }
        }
    }

    fn sleep(&self, seen: u64, worker: usize) {
        let asleep = &self.asleep[worker - 1];
        asleep.store(true, Ordering::SeqCst);
        // A job published before the flag was up would not wake us: look once more.
        let gate = self.gate.load(Ordering::SeqCst);
        let missed = gate & OPEN != 0 && gate / NEXT_JOB != seen;
        if !missed && !self.stop.load(Ordering::SeqCst) {
            std::thread::park();
        }
        asleep.store(false, Ordering::SeqCst);
    }

    /// Shuts the gate and waits for the workers inside.
    fn close(&self) {
        let mut gate = self.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while gate & INSIDE != 0 {
            spins += 1;
            if spins < SPINS_A_LOOK * 8 {
                std::hint::spin_loop();
            } else {
                // A worker in its last task may have lost its core to somebody: offer ours.
                spins = 0;
                std::thread::yield_now();
            }
            gate = self.gate.load(Ordering::Acquire);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_runs_once_whatever_the_workers() {
        for workers in [1, 2, 3, 16] {
            let pool = Pool::new(workers);
            for n in [0, 1, 2, 7, 1000] {
                let hits: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
                pool.run(n, &|i, worker| {
                    assert!(worker < workers);
                    hits[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1), "{workers} workers, {n} tasks");
            }
        }
    }

    #[test]
    fn many_short_jobs_on_more_workers_than_cores_end() {
        let pool = Pool::new(16);
        let sum = AtomicUsize::new(0);
        for _ in 0..2_000 {
            pool.run(16, &|i, _| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
        }
        assert_eq!(sum.into_inner(), 2_000 * 120);
    }

    #[test]
    fn jobs_after_workers_parked_still_use_them() {
        let pool = Pool::new(2);
        for _ in 0..5 {
            std::thread::sleep(SPIN * 10);
            let both = std::sync::Barrier::new(2);
            // Ends only if two threads take part.
            pool.run(2, &|_, _| {
                both.wait();
            });
        }
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3);
        for bad in [0, 5, 99] {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(100, &|i, _| assert_ne!(i, bad, "task {i}"));
            }));
            assert!(result.is_err());
            let ran = AtomicUsize::new(0);
            pool.run(10, &|_, _| {
                ran.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(ran.into_inner(), 10);
        }
    }

    #[test]
    fn a_job_within_a_task_is_refused() {
        for workers in [1, 3] {
            let pool = Pool::new(workers);
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(4, &|_, _| pool.run(2, &|_, _| {}));
            }));
            assert!(result.is_err());
            pool.run(4, &|_, _| {});
        }
    }

    #[test]
    fn callers_on_several_threads_take_turns() {
        let pool = Pool::new(2);
        let sum = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..200 {
                        pool.run(8, &|i, _| {
                            sum.fetch_add(i, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 4 * 200 * 28);
    }
}
