//! Worker threads for the operators.

/// A fixed set of workers, the caller among them.
pub struct Pool {
    workers: usize,
}

impl Pool {
    /// A pool of `workers` threads (at least one).
    pub fn new(workers: usize) -> Self {
        Self { workers: workers.max(1) }
    }

    /// Threads that run tasks, the caller included.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Runs `task(index, worker)` for every index below `n`; indices are handed out in ascending order, each once; returns when all are done.
    pub fn run(&self, n: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        let next = std::sync::atomic::AtomicUsize::new(0);
        let work = |worker: usize| loop {
            let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if i >= n {
                break;
            }
            task(i, worker);
        };
        if self.workers == 1 || n <= 1 {
            return work(0);
        }
        std::thread::scope(|s| {
            for w in 1..self.workers {
                s.spawn(move || work(w));
            }
            work(0);
        });
    }
}
