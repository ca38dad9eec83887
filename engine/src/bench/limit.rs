//! The limit of a token's speed: the memory bandwidth around each repetition. On a shared machine
//! the bandwidth changes every second. Each repetition is therefore compared with the bandwidth
//! measured right before and right after it.

use std::time::Duration;

use serde::Serialize;

use thermocline_base::error::Result;
use thermocline_cpu::ThreadPool;
use thermocline_lab::calibration::{MemoryKind, ReadProbe};

/// Bytes of the memory that the probe reads: many times the last-level cache of any desktop.
const BYTES: usize = 512 << 20;
/// Time of one bandwidth measurement, per kind of read.
const TIME: Duration = Duration::from_millis(60);

/// Memory bandwidth around one repetition, in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BandwidthLimit {
    /// Bandwidth of sequential reads.
    pub read_bandwidth: f64,
    /// Bandwidth of reads of scattered single-neuron rows, with the repetition's row length and
    /// number of rows. Null if the repetition read no such rows.
    pub scattered_bandwidth: Option<f64>,
    /// Shortest possible time to read a token's bytes, as a fraction of the measured time.
    /// Single-neuron rows count at `scattered_bandwidth`, all other bytes at `read_bandwidth`. Null
    /// for prompts.
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

    /// Sets `bandwidth_fraction` for a token that took `seconds` and read `bytes`, of which
    /// `scattered` bytes were scattered rows.
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

    /// Measures the bandwidth of sequential reads and of scattered `rows`. `rows` holds the bytes
    /// of a row and the fraction of rows that is read.
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
        // 80 sequential bytes take 2 s and 20 scattered bytes take 1 s, of 6 s in all.
        between.set_bandwidth_fraction(6.0, 100, 20);
        assert_eq!(between.bandwidth_fraction, Some(0.5));
        // A half-sum may lack one side: scattered reads are sometimes measured only after the
        // repetition.
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
