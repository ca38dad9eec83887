//! How fast this machine reads memory: the limit of decoding.

use std::{hint::black_box, time::Instant};

use crate::cpu::ThreadPool;

/// Bytes of one chunk a worker reads at a time.
const CHUNK: usize = 1 << 20;

/// Best of `rounds` sequential reads of `bytes` of memory by all workers, in bytes per second.
///
/// `bytes` should be many times the last cache; 1 GiB is enough on any desktop.
pub fn read_bandwidth(pool: &ThreadPool, bytes: usize, rounds: usize) -> f64 {
    let words = (bytes / 8).max(1);
    // Not zero: untouched zero pages would all be the same page, which stays in the cache.
    let buffer: Vec<u64> = vec![0x9e37_79b9_7f4a_7c15; words];
    let mut best = f64::INFINITY;
    for _ in 0..rounds.max(1) {
        let started = Instant::now();
        pool.for_each_chunk(words, CHUNK / 8, |_, range| {
            let mut lanes = [0u64; 32];
            for chunk in buffer[range].as_chunks::<32>().0 {
                for (lane, word) in lanes.iter_mut().zip(chunk) {
                    *lane ^= word;
                }
            }
            black_box(lanes);
        });
        best = best.min(started.elapsed().as_secs_f64());
    }
    (words * 8) as f64 / best
}
