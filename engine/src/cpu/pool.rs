//! Worker threads with cheap joins.

/// A fixed set of workers that run one job at a time, the caller being one of them.
#[derive(Debug)]
pub struct ThreadPool {
    threads: usize,
}

impl ThreadPool {
    /// A pool of `threads` workers (the caller included); default: one per physical core.
    pub fn new(threads: Option<usize>) -> Self {
        let threads =
            threads.or_else(|| std::thread::available_parallelism().ok().map(|n| n.get())).unwrap_or(1).max(1);
        ThreadPool { threads }
    }

    /// Number of workers, the caller included.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `task(worker)` once on every worker and returns when all are done.
    pub fn run(&self, task: impl Fn(usize) + Sync) {
        std::thread::scope(|scope| {
            for worker in 1..self.threads {
                let task = &task;
                scope.spawn(move || task(worker));
            }
            task(0);
        });
    }
}
