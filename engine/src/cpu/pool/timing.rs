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

/// A few hundred nanoseconds on an idle machine; on a slow one, or one with a single core, no more than a thread's start.
#[test]
fn run_takes_under_50_microseconds_or_the_start_of_a_thread() {
    let pool = ThreadPool::new(Some(2));
    pool.run(|_| {});
    let starts = least(200, || thread::spawn(|| ()).join().unwrap());
    let runs = least(20_000, || pool.run(|_| {}));
    println!("run {runs:?}, a thread {starts:?}");
    assert!(runs < starts.max(Duration::from_micros(50)), "run {runs:?}, a thread {starts:?}");
}
