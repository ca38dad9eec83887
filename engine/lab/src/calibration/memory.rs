//! Read bandwidth of this machine's memory, which limits decoding.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::StdRng};

use thermocline_base::error::Result;
use thermocline_cpu::{ThreadPool, prefetch};
use thermocline_formats::format::anonymous;

/// Bytes per chunk that a worker reads at a time.
const CHUNK: usize = 1 << 20;
/// Parallel streams per chunk. A single stream does not keep enough reads in flight.
const STREAMS: usize = 4;
/// Rows that a worker reads at a time.
const ROWS: usize = 128;
/// Rows to prefetch ahead of the current row, as in the kernels. Without prefetching, the measured
/// limit would be below the kernels' speed.
const ROWS_AHEAD: usize = 4;
/// Rows whose both ends are prefetched ahead of the current row.
const ENDS_AHEAD: usize = 28;
/// Byte that fills the memory. It is not zero, because untouched zero pages would all be the same
/// page, which stays in the cache.
const FILLING: u8 = 0x9e;

/// Measures sequential reads of `bytes` of memory by all workers, the best of `rounds`, in bytes
/// per second. `bytes` should be many times the size of the last cache. 1 GiB is enough on any
/// desktop.
pub fn read_bandwidth(pool: &ThreadPool, bytes: usize, rounds: usize) -> f64 {
    let memory = vec![FILLING; bytes.max(64)];
    let passes = (0..rounds.max(1)).map(|_| read_sequentially(pool, &memory));
    bytes as f64 / passes.fold(f64::INFINITY, f64::min)
}

/// Returns the bytes of the first processor's last cache, if the system reports them.
pub(super) fn last_cache_bytes() -> Option<usize> {
    let caches = std::fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let sizes =
        caches.flatten().filter_map(|cache| cache_bytes(&std::fs::read_to_string(cache.path().join("size")).ok()?));
    sizes.max()
}

/// Parses a cache's size, like `32768K`.
fn cache_bytes(text: &str) -> Option<usize> {
    text.trim().strip_suffix('K')?.parse::<usize>().ok()?.checked_mul(1 << 10)
}

/// Page size of the measured memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// Small pages, as in a mapped file.
    Small,
    /// Large pages if the system supports them, as in a file read into memory.
    Large,
}

/// Memory to read between the runs of a benchmark, because on a shared host the limit changes with
/// the load of other machines.
pub struct ReadProbe {
    memory: ProbedMemory,
    /// Passes over rows so far. Each pass reads other rows, because earlier rows may be in a cache.
    pass: usize,
}

/// The memory, by page size.
enum ProbedMemory {
    Small(Vec<u8>),
    Large(memmap2::MmapMut),
}

impl std::fmt::Debug for ReadProbe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadProbe").field("bytes", &self.bytes().len()).finish_non_exhaustive()
    }
}

impl ReadProbe {
    /// Allocates `bytes` of memory, which should be many times the size of the last cache.
    ///
    /// # Errors
    /// [`Error::Memory`](thermocline_base::error::Error::Memory) if the allocation fails.
    pub fn new(kind: MemoryKind, bytes: usize) -> Result<Self> {
        let bytes = bytes.max(64);
        let memory = match kind {
            MemoryKind::Small => ProbedMemory::Small(vec![FILLING; bytes]),
            MemoryKind::Large => {
                let mut memory = anonymous(bytes, "bandwidth measurement")?;
                memory.fill(FILLING);
                ProbedMemory::Large(memory)
            }
        };
        Ok(ReadProbe { memory, pass: 0 })
    }

    fn bytes(&self) -> &[u8] {
        match &self.memory {
            ProbedMemory::Small(bytes) => bytes,
            ProbedMemory::Large(bytes) => bytes,
        }
    }

    /// Returns the bytes per second of sequential reads by all workers: the median of the passes
    /// within `time`.
    pub fn sequential(&self, pool: &ThreadPool, time: Duration) -> f64 {
        let memory = self.bytes();
        memory.len() as f64 / median_pass(time, || read_sequentially(pool, memory))
    }

    /// Returns the bytes per second of reads of scattered rows of `row_bytes`, in ascending order.
    /// `fraction` is the fraction of the memory's rows that are read.
    pub fn rows(&mut self, pool: &ThreadPool, row_bytes: usize, fraction: f64, time: Duration) -> f64 {
        let row_bytes = row_bytes.clamp(64, self.bytes().len());
        let all = self.bytes().len() / row_bytes;
        let mut rng = StdRng::seed_from_u64(1);
        let rows_read: Vec<usize> = (0..all).filter(|_| rng.random_bool(fraction.clamp(0.0, 1.0))).collect();
        let mut pass = self.pass;
        let memory = self.bytes();
        let seconds = median_pass(time, || {
            // Starts far from the rows of the last pass, which may have been prefetched.
            pass += 1;
            let shift = pass.wrapping_mul(all / 7 + 3);
            let at = |row: usize| (rows_read[row] + shift) % all * row_bytes;
            let started = Instant::now();
            let of = |row: usize| &memory[at(row)..][..row_bytes];
            pool.for_each_chunk(rows_read.len(), ROWS, |_, range| {
                let mut sum = [0_u8; 64];
                for row in range {
                    let ahead = |rows: usize| of((row + rows).min(rows_read.len() - 1));
                    let (later, ends) = (ahead(ROWS_AHEAD), ahead(ENDS_AHEAD).as_ptr_range());
                    prefetch(ends.start);
                    prefetch(ends.end.wrapping_sub(1));
                    for (line, later) in of(row).as_chunks::<64>().0.iter().zip(later.as_chunks::<64>().0) {
                        prefetch(later.as_ptr());
                        sum.iter_mut().zip(line).for_each(|(sum, byte)| *sum ^= byte);
                    }
                }
                black_box(sum);
            });
            started.elapsed().as_secs_f64()
        });
        self.pass = pass;
        (rows_read.len() * row_bytes) as f64 / seconds
    }
}

/// Returns the median of the seconds that `pass` returns. Repeats it for `time`, at least three
/// times.
fn median_pass(time: Duration, mut pass: impl FnMut() -> f64) -> f64 {
    let started = Instant::now();
    let mut seconds = Vec::new();
    while seconds.len() < 3 || started.elapsed() < time {
        seconds.push(pass());
    }
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// Returns the seconds of one sequential read of `memory`.
fn read_sequentially(pool: &ThreadPool, memory: &[u8]) -> f64 {
    let started = Instant::now();
    pool.for_each_chunk(memory.len(), CHUNK, |_, range| {
        let chunk = &memory[range];
        let mut streams = chunk.chunks((chunk.len() / STREAMS).max(1));
        let mut sums = [[0_u8; 64]; STREAMS];
        add_streams(&mut sums, std::array::from_fn(|_| streams.next().unwrap_or_default()));
        black_box(sums);
    });
    started.elapsed().as_secs_f64()
}

/// Reads whole cache lines, alternating between the streams.
fn add_streams(sums: &mut [[u8; 64]; STREAMS], streams: [&[u8]; STREAMS]) {
    let lines = streams.map(|stream| stream.as_chunks::<64>().0);
    for at in 0..lines[0].len() {
        for (sum, lines) in sums.iter_mut().zip(lines) {
            if let Some(line) = lines.get(at) {
                sum.iter_mut().zip(line).for_each(|(sum, byte)| *sum ^= byte);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_probe_measures_sequential_and_scattered_reads() {
        let pool = ThreadPool::new(Some(2));
        let time = Duration::from_millis(1);
        for kind in [MemoryKind::Small, MemoryKind::Large] {
            let mut probe = ReadProbe::new(kind, 1 << 20).unwrap();
            for rate in
                [probe.sequential(&pool, time), probe.rows(&pool, 2304, 0.1, time), probe.rows(&pool, 1, 1.0, time)]
            {
                assert!(rate.is_finite() && rate > 0.0, "{rate}");
            }
            // A row longer than the memory covers all of it.
            assert!(probe.rows(&pool, 2 << 20, 1.0, time) > 0.0);
        }
        assert!(read_bandwidth(&pool, 1 << 20, 2) > 0.0);
    }

    #[test]
    fn cache_sizes_are_read_in_kibibytes() {
        assert_eq!((cache_bytes("32768K\n"), cache_bytes("48K")), (Some(32 << 20), Some(48 << 10)));
        assert_eq!((cache_bytes(""), cache_bytes("32M"), cache_bytes("K")), (None, None, None));
        assert!(last_cache_bytes().is_none_or(|bytes| bytes > 1 << 10));
    }

    #[test]
    fn median_pass_ignores_the_slowest_and_the_quickest() {
        let mut times = [5.0, 1.0, 3.0].into_iter().cycle();
        assert_eq!(median_pass(Duration::ZERO, || times.next().unwrap_or(0.0)), 3.0);
    }
}
