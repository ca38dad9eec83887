//! The limit of a token's speed: the memory bandwidth around each repetition. On a shared machine it changes by the second, so a
//! repetition is compared with the bandwidth right before and right after it.

use std::time::Duration;

use serde::Serialize;

use thermocline_base::error::Result;
use thermocline_cpu::ThreadPool;
use thermocline_lab::calibration::{MemoryKind, ReadProbe};

/// Bytes of the memory that is read, many times any desktop's last cache.
const BYTES: usize = 512 << 20;
/// Time of one measurement of one kind of reads.
const TIME: Duration = Duration::from_millis(60);

/// Memory bandwidth around one repetition, in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BandwidthLimit {
    /// Sequential reads.
    pub read_bandwidth: f64,
    /// Reads of scattered rows of single neurons, as many and as long as the repetition's; null where it had none.
    pub scattered_bandwidth: Option<f64>,
    /// The time that reading a token's bytes takes at least, rows of single neurons at `scattered_bandwidth` and all else at
    /// `read_bandwidth`, as a fraction of the time it took; null for prompts.
    #[serde(rename = "bandwidth_share")]
    pub bandwidth_fraction: Option<f64>,
}

impl BandwidthLimit {
    /// The mean of the limits before and after a repetition.
    pub fn mean_with(self, after: BandwidthLimit) -> BandwidthLimit {
        let rows = self.scattered_bandwidth.zip(after.scattered_bandwidth).map(|(a, b)| (a + b) / 2.0);
        BandwidthLimit {
            read_bandwidth: (self.read_bandwidth + after.read_bandwidth) / 2.0,
            scattered_bandwidth: rows.or(self.scattered_bandwidth).or(after.scattered_bandwidth),
            bandwidth_fraction: None,
        }
    }

    /// Sets `bandwidth_fraction` for a token of `seconds` that reads `bytes`, `scattered` of them as rows.
    pub fn set_bandwidth_fraction(&mut self, seconds: f64, bytes: u64, scattered: u64) {
        let rows = self.scattered_bandwidth.map_or(0.0, |rate| scattered as f64 / rate);
        let in_order = bytes - if self.scattered_bandwidth.is_some() { scattered.min(bytes) } else { 0 };
        self.bandwidth_fraction = Some((in_order as f64 / self.read_bandwidth + rows) / seconds);
    }
}

/// The median; `None` without values.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    Some((sorted[(sorted.len() - 1) / 2] + upper) / 2.0)
}

/// Measures memory bandwidth.
#[derive(Debug)]
pub(super) struct LimitProbe {
    probe: ReadProbe,
    time: Duration,
}

impl LimitProbe {
    pub fn new(kind: MemoryKind) -> Result<Self> {
        Ok(LimitProbe { probe: ReadProbe::new(kind, BYTES)?, time: TIME })
    }

    /// The bandwidth of sequential reads, and of scattered `rows`: bytes of a row, and the fraction of rows that is read.
    pub fn measure(&mut self, pool: &ThreadPool, rows: Option<(usize, f64)>) -> BandwidthLimit {
        BandwidthLimit {
            read_bandwidth: self.probe.sequential(pool, self.time),
            scattered_bandwidth: rows.map(|(bytes, fraction)| self.probe.rows(pool, bytes, fraction, self.time)),
            bandwidth_fraction: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_fraction_weighs_sequential_and_scattered_reads() {
        let limit = |read_bandwidth, scattered_bandwidth| BandwidthLimit {
            read_bandwidth,
            scattered_bandwidth,
            bandwidth_fraction: None,
        };
        let mut between = limit(30.0, Some(10.0)).mean_with(limit(50.0, Some(30.0)));
        assert_eq!(between, limit(40.0, Some(20.0)));
        // 80 in order and 20 as rows: 2 s and 1 s of 6.
        between.set_bandwidth_fraction(6.0, 100, 20);
        assert_eq!(between.bandwidth_fraction, Some(0.5));
        // Scattered reads may be measured after the repetition only.
        let mut half = limit(50.0, None).mean_with(limit(50.0, Some(10.0)));
        assert_eq!(half.scattered_bandwidth, Some(10.0));
        half.scattered_bandwidth = None;
        half.set_bandwidth_fraction(4.0, 100, 20);
        assert_eq!(half.bandwidth_fraction, Some(0.5));
    }

    #[test]
    fn median_of_even_and_odd_counts() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
