//! The workers, and the joins that they run.

use std::{
    any::Any,
    cell::{Cell, UnsafeCell},
    fmt,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    prefetch::{PrefetchRange, Prefetcher},
    work_ranges::{DisjointItems, Padded, WorkRanges},
};

/// How long a worker spins for the next join before it parks. Longer than the operations between
/// two products of one token (norms, rope, sampling), far shorter than a person notices.
const SPIN: Duration = Duration::from_micros(300);

type JoinTask<'a> = dyn Fn(usize) + Sync + 'a;

thread_local! {
    /// Set while this thread runs a task of some pool. A nested [`ThreadPool::run`] then runs on
    /// this thread alone.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The state of the current join, in one word so that entering and closing the join are ordered. It
/// has the join's number, the numbers of active and finished workers, and whether the join is
/// closed to workers that have not begun.
mod gate {
    pub const ACTIVE: u64 = 1;
    pub const DONE: u64 = 1 << 15;
    pub const CLOSED: u64 = 1 << 30;
    const COUNT: u64 = (1 << 15) - 1;

    pub fn open(epoch: u32) -> u64 {
        u64::from(epoch) << 32
    }

    pub fn epoch(gate: u64) -> u32 {
        (gate >> 32) as u32
    }

    pub fn active(gate: u64) -> usize {
        (gate & COUNT) as usize
    }

    pub fn done(gate: u64) -> usize {
        ((gate / DONE) & COUNT) as usize
    }
}

/// [`PoolState::spins_per_yield`] if every thread can have its own processor. It still yields,
/// because other programs use this machine too.
const SPINS_PER_YIELD: u32 = 1 << 12;

/// Most threads in a pool, limited by the counts in a [`gate`].
const MOST_THREADS: usize = 1 << 12;

struct PoolState {
    /// See [`gate`]. Its epoch changes exactly once per join, after `task` is set.
    gate: Padded<AtomicU64>,
    /// Set once, before the last change of the epoch.
    stop: AtomicBool,
    /// Spins of a waiting thread before it yields its processor. 1 if there are more threads than
    /// processors, because the awaited thread may need this processor.
    spins_per_yield: u32,
    /// Per worker: true if it is parked or about to park.
    parked: Vec<Padded<AtomicBool>>,
    /// The current join's task. Only valid for the caller and for workers that have entered the
    /// join.
    task: UnsafeCell<Option<*const JoinTask<'static>>>,
    /// Per worker: the bytes it will read in the next join.
    prefetch: Vec<Padded<PrefetchRange>>,
    /// First panic of a worker in the current join.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `task` is the only part that is not `Sync`. The holder of the pool's lock writes it while
// no worker reads it: no worker is active in the previous join and none can enter it. Workers read
// it only after they entered its join (release / acquire on `gate`). The task it points to is
// `Sync`.
unsafe impl Sync for PoolState {}
// SAFETY: as above. The pointer is only dereferenced while the join that set it is in progress.
unsafe impl Send for PoolState {}

/// A fixed set of workers that run one join at a time. The caller is one of them.
///
/// Joins of several threads queue. A join from inside a task runs on the calling thread alone.
pub struct ThreadPool {
    shared: Arc<PoolState>,
    workers: Vec<JoinHandle<()>>,
    /// Locked by the caller of a join. Contains the caller's prefetching.
    join: Mutex<Prefetcher>,
}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadPool").field("threads", &self.threads()).finish()
    }
}

/// Number of logical processors that this process may use.
fn processors() -> usize {
    thread::available_parallelism().map_or(1, |n| n.get())
}

/// Number of physical cores that this process may use.
fn physical_cores() -> usize {
    num_cpus::get_physical().clamp(1, processors())
}

impl ThreadPool {
    /// Creates a pool of `threads` workers, the caller included. Default: one per physical core.
    /// The pool has fewer workers if the system refuses to start threads.
    pub fn new(threads: Option<usize>) -> Self {
        let wanted = threads.unwrap_or_else(physical_cores).clamp(1, MOST_THREADS);
        let shared = Arc::new(PoolState {
            gate: Padded(AtomicU64::new(gate::CLOSED)),
            stop: AtomicBool::new(false),
            spins_per_yield: if wanted > processors() { 1 } else { SPINS_PER_YIELD },
            parked: (0..wanted).map(|_| Padded::default()).collect(),
            task: UnsafeCell::new(None),
            prefetch: (0..wanted).map(|_| Padded::default()).collect(),
            panic: Mutex::new(None),
        });
        let mut workers = Vec::with_capacity(wanted - 1);
        for worker in 1..wanted {
            let shared = Arc::clone(&shared);
            let spawned = thread::Builder::new().name(format!("cpu-{worker}")).spawn(move || work(&shared, worker));
            match spawned {
                Ok(handle) => workers.push(handle),
                Err(error) => {
                    tracing::warn!("only {worker} of {wanted} threads started: {error}");
                    break;
                }
            }
        }
        ThreadPool { shared, workers, join: Mutex::default() }
    }

    /// Number of workers, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Sets the bytes `range(worker)` that every worker will read in the next join, from the front.
    /// Waiting workers prefetch them. Replaces the previous ranges.
    pub(crate) fn prefetch<'a>(&self, range: impl Fn(usize) -> &'a [u8]) {
        if !self.workers.is_empty() {
            self.shared.prefetch.iter().enumerate().for_each(|(worker, to)| to.0.set(range(worker)));
        }
    }

    /// Runs `task(worker)` once on every worker and returns when all are done.
    ///
    /// # Panics
    /// If a task panics. The panic is passed on after all workers are done.
    pub fn run(&self, task: impl Fn(usize) + Sync) {
        if self.workers.is_empty() || INSIDE.get() {
            return (0..self.threads()).for_each(task);
        }
        self.join(&task, |gate| gate::done(gate) == self.workers.len());
    }

    /// Runs `task(worker)` on the caller and on every worker that begins before the caller is done.
    /// It does not wait for a worker that the system has suspended. On a busy machine that wait
    /// would cost a time slice per join.
    pub(crate) fn run_on_the_free(&self, task: impl Fn(usize) + Sync) {
        if self.workers.is_empty() || INSIDE.get() {
            return task(0);
        }
        self.join(&task, |gate| {
            if gate & gate::CLOSED == 0 {
                return gate::active(self.shared.gate.0.fetch_or(gate::CLOSED, Ordering::AcqRel)) == 0;
            }
            gate::active(gate) == 0
        });
    }

    /// Runs one join. It ends when `is_over` returns true for the gate. No worker may then be
    /// active or able to enter.
    fn join(&self, task: &JoinTask<'_>, is_over: impl Fn(u64) -> bool) {
        let mut prefetcher = self.join.lock();
        let shared = &*self.shared;
        let pointer: *const JoinTask<'_> = task;
        // SAFETY: only the lifetime changes. Workers dereference the pointer only while they are
        // active in this join. This function returns (or unwinds) only when no worker is active and
        // none can enter.
        let pointer = unsafe { std::mem::transmute::<*const JoinTask<'_>, *const JoinTask<'static>>(pointer) };
        // SAFETY: the previous join is over, and the locked `prefetcher` excludes other callers, so
        // no thread reads `task` now.
        unsafe { *shared.task.get() = Some(pointer) };
        self.start_join();

        let own = catch_unwind(AssertUnwindSafe(|| inside(|| task(0))));
        let mut spins = 0u32;
        while !is_over(shared.gate.0.load(Ordering::Acquire)) {
            spins = spins.wrapping_add(1);
            let prefetched = prefetcher.step(&shared.prefetch[0].0);
            if spins.is_multiple_of(shared.spins_per_yield) {
                thread::yield_now();
            } else if !prefetched {
                std::hint::spin_loop();
            }
        }
        let others = shared.panic.lock().take();
        drop(prefetcher);
        if let Some(panic) = own.err().or(others) {
            resume_unwind(panic);
        }
    }

    /// Calls `task(worker, item)` once for every item, on any free worker. Every worker starts with
    /// its own contiguous range, front to back. When done, it takes items from the back of the
    /// other workers' ranges.
    ///
    /// # Panics
    /// See [`ThreadPool::run`].
    pub fn for_each<T: Send>(&self, items: &mut [T], task: impl Fn(usize, &mut T) + Sync) {
        let (n, items) = (items.len(), DisjointItems::new(items));
        // SAFETY: the ranges have length 1 and cover every index below `n` once.
        self.for_each_chunk(n, 1, |worker, at| task(worker, unsafe { items.get(at.start) }));
    }

    /// Calls `task(worker, range)` for consecutive ranges of at most `chunk` indices that cover
    /// `0..n`.
    ///
    /// # Panics
    /// See [`ThreadPool::run`].
    pub fn for_each_chunk(&self, n: usize, chunk: usize, task: impl Fn(usize, Range<usize>) + Sync) {
        let chunk = chunk.max(1);
        let chunks = n.div_ceil(chunk);
        let range = |at: usize| at * chunk..n.min((at + 1) * chunk);
        if chunks <= 1 || self.threads() == 1 {
            return (0..chunks).for_each(|at| task(0, range(at)));
        }
        let ranges = WorkRanges::new(chunks, self.threads());
        self.run_on_the_free(|worker| {
            while let Some(at) = ranges.next(worker) {
                task(worker, range(at));
            }
        });
    }

    /// Starts a join after `task` or `stop` is set. The caller holds the lock, or is dropping the
    /// pool.
    fn start_join(&self) {
        let epoch = gate::epoch(self.shared.gate.0.load(Ordering::Relaxed)).wrapping_add(1);
        // Sequentially consistent with the worker's `parked` store and `gate` load: either the
        // worker sees the new epoch and does not park, or this thread sees `parked` and wakes it.
        self.shared.gate.0.store(gate::open(epoch), Ordering::SeqCst);
        for (handle, parked) in self.workers.iter().zip(&self.shared.parked[1..]) {
            if parked.0.load(Ordering::SeqCst) {
                handle.thread().unpark();
            }
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.start_join();
        for handle in self.workers.drain(..) {
            // A worker catches the panics of its tasks, so its result is always `Ok`.
            let _ = handle.join();
        }
    }
}

/// Main loop of a worker thread.
fn work(shared: &PoolState, worker: usize) {
    let (mut seen, mut prefetcher) = (0, Prefetcher::default());
    loop {
        seen = wait(shared, worker, seen, &mut prefetcher);
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        let enter = |gate| (gate::epoch(gate) == seen && gate & gate::CLOSED == 0).then_some(gate + gate::ACTIVE);
        if shared.gate.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, enter).is_err() {
            continue; // the others did it without this worker
        }
        // SAFETY: this worker has entered the task's join and has not left it, so the task is set
        // and alive.
        let task = unsafe { (*shared.task.get()).map(|task| &*task) };
        if let Some(task) = task
            && let Err(panic) = catch_unwind(AssertUnwindSafe(|| inside(|| task(worker))))
        {
            shared.panic.lock().get_or_insert(panic);
        }
        shared.gate.0.fetch_add(gate::DONE - gate::ACTIVE, Ordering::AcqRel);
    }
}

/// Waits until the epoch is not `seen` and returns it.
fn wait(shared: &PoolState, worker: usize, seen: u32, prefetcher: &mut Prefetcher) -> u32 {
    let changed = |ordering| {
        let epoch = gate::epoch(shared.gate.0.load(ordering));
        (epoch != seen).then_some(epoch)
    };
    let (started, turns) = (Instant::now(), shared.spins_per_yield.min(256));
    loop {
        for _ in 0..turns {
            if let Some(epoch) = changed(Ordering::Acquire) {
                return epoch;
            }
            if !prefetcher.step(&shared.prefetch[worker].0) {
                std::hint::spin_loop();
            }
        }
        if started.elapsed() >= SPIN {
            break;
        }
        if shared.spins_per_yield == 1 {
            thread::yield_now();
        }
    }
    let parked = &shared.parked[worker].0;
    loop {
        parked.store(true, Ordering::SeqCst);
        if let Some(epoch) = changed(Ordering::SeqCst) {
            parked.store(false, Ordering::SeqCst);
            return epoch;
        }
        thread::park();
    }
}

/// Runs `f` with this thread marked as inside a task.
fn inside<R>(f: impl FnOnce() -> R) -> R {
    struct Reset(bool);
    impl Drop for Reset {
        fn drop(&mut self) {
            INSIDE.set(self.0);
        }
    }
    let _reset = Reset(INSIDE.replace(true));
    f()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn run_calls_the_task_once_per_worker() {
        for threads in [1, 2, 5] {
            let pool = ThreadPool::new(Some(threads));
            assert_eq!(pool.threads(), threads);
            for _ in 0..50 {
                let counts: Vec<_> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
                pool.run(|worker| {
                    counts[worker].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|n| n.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn for_each_takes_every_item_once() {
        let pool = ThreadPool::new(Some(3));
        for n in [0, 1, 2, 7, 1000] {
            let mut items = vec![0u32; n];
            pool.for_each(&mut items, |_, item| *item += 1);
            assert!(items.iter().all(|n| *n == 1), "{n}");
            let seen: Vec<_> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            pool.for_each_chunk(n, 3, |_, range| {
                for at in range {
                    seen[at].fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(seen.iter().all(|n| n.load(Ordering::Relaxed) == 1), "{n}");
        }
    }

    #[test]
    fn for_each_takes_every_item_once_when_workers_come_late() {
        // Far more workers than processors, and pauses in which they park. Most joins are over
        // before workers begin.
        let pool = ThreadPool::new(Some(16));
        let mut items = vec![0u32; 300];
        for round in 0..500 {
            if round % 50 == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            pool.for_each(&mut items, |_, item| *item += 1);
            pool.run(|_| {});
        }
        assert!(items.iter().all(|n| *n == 500));
    }

    #[test]
    fn run_survives_idle_gaps_and_several_callers() {
        let pool = ThreadPool::new(Some(4));
        let total = AtomicUsize::new(0);
        thread::scope(|scope| {
            for caller in 0..3 {
                let (pool, total) = (&pool, &total);
                scope.spawn(move || {
                    for round in 0..300 {
                        pool.run(|_| {
                            total.fetch_add(1, Ordering::Relaxed);
                        });
                        if (round + caller) % 100 == 0 {
                            thread::sleep(Duration::from_millis(1)); // long enough for workers to park
                        }
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 3 * 300 * 4);
    }

    #[test]
    fn run_within_a_task_runs_in_place() {
        let pool = ThreadPool::new(Some(2));
        let total = AtomicUsize::new(0);
        pool.run(|_| {
            pool.run(|_| {
                total.fetch_add(1, Ordering::Relaxed);
            })
        });
        assert_eq!(total.into_inner(), 4);
    }

    #[test]
    fn run_passes_panics_on_and_the_pool_survives() {
        let pool = ThreadPool::new(Some(3));
        for guilty in 0..3 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(|worker| assert_ne!(worker, guilty, "worker {guilty} fails"));
            }));
            assert!(caught.is_err());
        }
        let total = AtomicUsize::new(0);
        pool.run(|_| {
            total.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(total.into_inner(), 3);
    }

    #[test]
    fn idle_workers_park_and_wake() {
        let pool = ThreadPool::new(Some(2));
        let deadline = Instant::now() + Duration::from_secs(120);
        while !pool.shared.parked[1].0.load(Ordering::SeqCst) {
            assert!(Instant::now() < deadline, "the worker never parks");
            thread::sleep(Duration::from_millis(1));
        }
        let total = AtomicUsize::new(0);
        pool.run(|_| {
            total.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(total.into_inner(), 2);
    }
}
