//! How fast this machine reads memory: the limit of decoding.

use std::{hint::black_box, time::Instant};

use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::{cpu::ThreadPool, error::Result, format::anonymous};

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

/// Pages of the memory that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// As a mapped file has them.
    Small,
    /// Large, where the system has them: as a file read into memory has them.
    Large,
}

/// Rows a worker takes at a time.
const ROWS: usize = 32;

/// Best of `rounds` reads of random rows, ascending, by all workers, in bytes per second: the share `share` of rows of
/// `row_bytes` that lie side by side in `bytes` of memory.
///
/// # Errors
/// [`Error::Memory`](crate::Error::Memory) if there is no such memory.
pub fn scattered_bandwidth(
    pool: &ThreadPool,
    kind: MemoryKind,
    bytes: usize,
    row_bytes: usize,
    share: f64,
    rounds: usize,
) -> Result<f64> {
    let row_bytes = row_bytes.clamp(64, bytes.max(64));
    let memory = match kind {
        MemoryKind::Small => Memory::Small(vec![0x9e; bytes.max(row_bytes)]),
        MemoryKind::Large => {
            let mut memory = anonymous(bytes.max(row_bytes), "bandwidth measurement")?;
            memory.fill(0x9e);
            Memory::Large(memory)
        }
    };
    let data = memory.bytes();
    let mut rng = StdRng::seed_from_u64(1);
    let rows: Vec<usize> = (0..data.len() / row_bytes).filter(|_| rng.random_bool(share.clamp(0.0, 1.0))).collect();
    let mut best = f64::INFINITY;
    for _ in 0..rounds.max(1) {
        let started = Instant::now();
        pool.for_each_chunk(rows.len(), ROWS, |_, range| {
            // Several rows at once, for the same reason.
            let mut sums = [[0_u8; 64]; STREAMS];
            for rows in rows[range].chunks(STREAMS) {
                let parts: [&[u8]; STREAMS] =
                    std::array::from_fn(|i| rows.get(i).map_or(&[][..], |row| &data[row * row_bytes..][..row_bytes]));
                for at in 0..row_bytes / 64 {
                    for (sum, part) in sums.iter_mut().zip(parts) {
                        if let Some(line) = part.as_chunks::<64>().0.get(at) {
                            sum.iter_mut().zip(line).for_each(|(sum, byte)| *sum ^= byte);
                        }
                    }
                }
            }
            black_box(sums);
        });
        best = best.min(started.elapsed().as_secs_f64());
    }
    Ok((rows.len() * row_bytes) as f64 / best)
}

/// What is read.
enum Memory {
    Small(Vec<u8>),
    Large(memmap2::MmapMut),
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Small(bytes) => bytes,
            Memory::Large(bytes) => bytes,
        }
    }
}
