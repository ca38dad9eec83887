//! Measured seconds of passes with drafts.

use std::time::Duration;

use super::{MOST_DRAFTS, running_mean::RunningMean};

/// Number of latest passes that the mean of a number of drafts represents.
const REPRESENTED: f64 = 4.0;
/// Largest ratio of a time to the mean before it. Longer times are interruptions by other programs.
const LONGEST: f64 = 3.0;
/// The time of a number of drafts is measured again if its latest measurement is this many passes
/// old. The earlier mean then counts as one pass, and a shorter time replaces it.
const STALE: u64 = 64;
/// Number of passes after which a number of drafts that was measured only once is measured again.
const STALE_FIRST: u64 = 8;
/// Number of passes after which the measured time of a number of drafts is no longer used.
const FORGOTTEN: u64 = 192;
/// Cost of a draft as a fraction of a pass without drafts, while no pass with drafts is measured.
const GUESS: f64 = 0.1;

/// The mean seconds of a pass, by its number of drafts. A running mean follows the length of the
/// context without a term for it. It also follows the experts of an MoE model, because the whole
/// pass is measured. On a CPU a pass reads every expert that any of its tokens chooses.
#[derive(Debug, Default)]
pub(super) struct PassCosts {
    /// By number of drafts, from 0.
    measured: [MeasuredPass; 1 + MOST_DRAFTS],
    /// Number of measured passes.
    passes: u64,
}

/// Mean seconds of passes with one number of drafts.
#[derive(Debug, Clone, Copy, Default)]
struct MeasuredPass {
    seconds: RunningMean,
    /// Value of [`PassCosts::passes`] at the latest measurement.
    at: u64,
}

impl PassCosts {
    /// Records that a pass with `drafts` took `time`.
    pub fn note(&mut self, drafts: usize, time: Duration) {
        self.passes += 1;
        let is_stale = self.is_stale(drafts);
        let Some(measured) = self.measured.get_mut(drafts) else { return };
        if is_stale {
            measured.seconds.count = measured.seconds.count.min(1.0);
        }
        let time = time.as_secs_f64().max(1e-9);
        let most = measured.seconds.get().map_or(f64::INFINITY, |mean| LONGEST * mean);
        measured.seconds.add_time(time.min(most), REPRESENTED);
        measured.at = self.passes;
    }

    /// Seconds of a pass without drafts; `None` if none was measured.
    pub fn single(&self) -> Option<f64> {
        self.measured[0].seconds.get()
    }

    /// True if the seconds of a pass with `drafts` should be measured again.
    pub fn is_stale(&self, drafts: usize) -> bool {
        let is_first = self.measured.get(drafts).is_some_and(|measured| measured.seconds.count <= 1.0);
        self.age(drafts) >= if is_first { STALE_FIRST } else { STALE }
    }

    /// Number of passes since the latest with `drafts`.
    pub fn age(&self, drafts: usize) -> u64 {
        match self.measured.get(drafts) {
            Some(measured) if measured.seconds.get().is_some() => self.passes - measured.at,
            _ => u64::MAX,
        }
    }

    /// Seconds of a pass by its number of drafts; `None` if no pass without drafts was measured.
    /// Unmeasured numbers lie on the line between their measured neighbours. Beyond the largest
    /// measured number, a draft costs as much as the last measured one or as the mean one,
    /// whichever is cheaper. If that is too little, the next pass corrects it. A cost that is too
    /// high would never be corrected.
    pub fn seconds(&self) -> Option<[f64; 1 + MOST_DRAFTS]> {
        let single = self.single()?;
        let mut seconds = [single; 1 + MOST_DRAFTS];
        // The largest known number of drafts below, and the cost of each draft up to it.
        let (mut known, mut slope) = (0, GUESS * single);
        for drafts in 1..seconds.len() {
            if self.age(drafts) >= FORGOTTEN {
                continue;
            }
            let time = self.measured[drafts].seconds.mean;
            slope = (time - seconds[known]) / (drafts - known) as f64;
            for between in known + 1..drafts {
                seconds[between] = seconds[known] + slope * (between - known) as f64;
            }
            (seconds[drafts], known) = (time, drafts);
        }
        let mean = if known > 0 { (seconds[known] - single) / known as f64 } else { slope };
        let slope = slope.min(mean).max(0.0);
        for beyond in known + 1..seconds.len() {
            seconds[beyond] = seconds[known] + slope * (beyond - known) as f64;
        }
        Some(seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn close(left: f64, right: f64) {
        assert!((left - right).abs() < 1e-9, "{left} {right}");
    }

    #[test]
    fn unknown_costs_lie_between_known_ones() {
        let mut costs = PassCosts::default();
        assert_eq!((costs.single(), costs.seconds()), (None, None));
        costs.note(3, 16 * MS);
        assert_eq!(costs.seconds(), None);
        costs.note(0, 10 * MS);
        let seconds = costs.seconds().unwrap();
        for (drafts, wanted) in [(0, 0.010), (1, 0.012), (2, 0.014), (3, 0.016), (4, 0.018), (16, 0.042)] {
            close(seconds[drafts], wanted);
        }
        costs.note(5, 17 * MS);
        let seconds = costs.seconds().unwrap();
        for (drafts, wanted) in [(3, 0.016), (4, 0.0165), (6, 0.0175)] {
            close(seconds[drafts], wanted);
        }
        // After an expensive step, further drafts cost the mean.
        costs.note(6, 40 * MS);
        close(costs.seconds().unwrap()[8], 0.050);
    }

    #[test]
    fn old_times_of_drafts_are_forgotten() {
        let mut costs = PassCosts::default();
        costs.note(2, 90 * MS);
        (0..FORGOTTEN - 1).for_each(|_| costs.note(0, 10 * MS));
        assert_eq!(costs.age(2), FORGOTTEN - 1);
        close(costs.seconds().unwrap()[2], 0.090);
        costs.note(0, 10 * MS);
        close(costs.seconds().unwrap()[2], 0.012);
    }

    #[test]
    fn shorter_second_times_replace_the_first() {
        let mut costs = PassCosts::default();
        costs.note(0, 20 * MS);
        costs.note(0, 10 * MS);
        close(costs.single().unwrap(), 0.010);
        costs.note(0, 8 * MS);
        costs.note(2, 20 * MS);
        costs.note(2, 30 * MS);
        close(costs.single().unwrap(), 0.009 + 0.001 / 3.0);
        close(costs.seconds().unwrap()[2], 0.025);
    }

    #[test]
    fn interruptions_weigh_little() {
        let mut costs = PassCosts::default();
        costs.note(0, 10 * MS);
        costs.note(0, 10_000 * MS);
        close(costs.single().unwrap(), 0.020);
        (0..40).for_each(|_| costs.note(0, 30 * MS));
        assert!((costs.single().unwrap() - 0.030).abs() < 1e-5);
    }
}
