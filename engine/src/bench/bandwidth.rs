//! How fast this machine reads memory: the limit of decoding.

use std::{hint::black_box, time::Instant};

use crate::cpu::ThreadPool;

/// Bytes of one chunk a worker reads at a time.
const CHUNK: usize = 1 << 20;
/// Streams it is read in side by side.
const STREAMS: usize = 4;

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
            // Several streams at once: one alone does not keep enough reads in flight.
            let chunk = &buffer[range];
            let stream = (chunk.len() / STREAMS).max(1);
            let mut streams = chunk.chunks(stream);
            let parts: [&[u64]; STREAMS] = std::array::from_fn(|_| streams.next().unwrap_or_default());
            let mut sums = [[0u64; 8]; STREAMS];
            for at in 0..stream / 8 {
                for (sum, part) in sums.iter_mut().zip(parts) {
                    if let Some(line) = part.as_chunks::<8>().0.get(at) {
                        sum.iter_mut().zip(line).for_each(|(sum, word)| *sum ^= word);
                    }
                }
            }
            black_box(sums);
        });
        best = best.min(started.elapsed().as_secs_f64());
    }
    (words * 8) as f64 / best
}
