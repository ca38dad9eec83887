//! The time of a join.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::ThreadPool;

/// The least time of many rounds of `work`.
fn least(rounds: usize, work: impl Fn()) -> Duration {
    let times = (0..rounds).map(|_| {
        let started = Instant::now();
        work();
        started.elapsed()
    });
    times.min().unwrap()
}

/// A few hundred nanoseconds where each thread has a processor. Where both share one, a join is two changes of the thread that runs,
/// which a start is too, with more to it.
#[test]
fn run_takes_less_than_the_start_of_a_thread() {
    let pool = ThreadPool::new(Some(2));
    pool.run(|_| {});
    let starts = least(200, || thread::spawn(|| ()).join().unwrap());
    let runs = least(20_000, || pool.run(|_| {}));
    println!("run {runs:?}, a thread {starts:?}");
    assert!(runs < starts, "run {runs:?}, a thread {starts:?}");
}
