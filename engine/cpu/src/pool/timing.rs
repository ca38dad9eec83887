//! The duration of a join.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::ThreadPool;

/// The shortest of many rounds of `work`.
fn least(rounds: usize, work: impl Fn()) -> Duration {
    let times = (0..rounds).map(|_| {
        let started = Instant::now();
        work();
        started.elapsed()
    });
    times.min().unwrap()
}

/// A join takes a few hundred nanoseconds if each thread has a processor. If both threads share a
/// processor, a join costs two thread switches. The start of a thread costs these as well, and
/// more.
#[test]
fn run_takes_less_than_the_start_of_a_thread() {
    let pool = ThreadPool::new(Some(2));
    pool.run(|_| {});
    let starts = least(200, || thread::spawn(|| ()).join().unwrap());
    let runs = least(20_000, || pool.run(|_| {}));
    println!("run {runs:?}, a thread {starts:?}");
    assert!(runs < starts, "run {runs:?}, a thread {starts:?}");
}
