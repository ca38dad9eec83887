//! Measures the read bandwidth of this computer's memory, which limits the speed of models that
//! have never run. A timing under load is too low. Therefore timings are repeated while nothing
//! else computes, until two agree.

use std::time::{Duration, Instant};

use egui::Context;
use thermocline_engine::{
    bench::read_bandwidth,
    cpu::{Cpu, CpuOptions},
};

use thermocline_rich_text::background::Background;

/// Bytes read per timing. They exceed the caches of most processors.
const READ: usize = 128 << 20;

/// Passes per timing. The best pass counts.
const PASSES: usize = 3;

/// Pause between two timings. The load of other programs may end meanwhile.
const PAUSE: Duration = Duration::from_millis(700);

/// Maximum number of timings. If no two of them agree, the speed stays unknown.
const MOST: usize = 8;

/// Maximum difference of the best two timings, as a fraction of the best.
const AGREEMENT: f64 = 0.15;

/// Timings of the memory.
#[derive(Debug, Default)]
pub struct MemorySpeed {
    /// Measured bandwidths, in bytes per second.
    timings: Vec<f64>,
    timing: Background<Option<f64>>,
    /// End of the latest timing.
    ended: Option<Instant>,
}

impl MemorySpeed {
    /// Takes a finished timing, and starts the next one unless something else is `busy`.
    pub fn tick(&mut self, ctx: &Context, busy: bool) {
        if let Some(timing) = self.timing.take() {
            // A failed timing would fail again, so there are no more.
            self.timings.resize(if timing.is_some() { self.timings.len() } else { MOST }, 0.0);
            self.timings.extend(timing);
            self.ended = Some(Instant::now());
        }
        if self.is_settled() || self.timing.is_busy() || busy {
            return;
        }
        if self.ended.is_some_and(|ended| ended.elapsed() < PAUSE) {
            ctx.request_repaint_after(PAUSE);
            return;
        }
        // If no thread can start, no speeds are predicted.
        let _ = self.timing.start(ctx, || {
            let cpu = Cpu::new(&CpuOptions::default()).ok()?;
            Some(read_bandwidth(cpu.pool(), READ, PASSES))
        });
    }

    /// The bandwidth in bytes per second, once two timings agree.
    pub fn known(&self) -> Option<f64> {
        let mut timings = self.timings.clone();
        timings.sort_by(|a, b| b.total_cmp(a));
        match timings[..] {
            [best, second, ..] if best > 0.0 && best - second <= AGREEMENT * best => Some(best),
            _ => None,
        }
    }

    /// True once no more timings follow.
    pub fn is_settled(&self) -> bool {
        self.known().is_some() || self.timings.len() >= MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_is_known_once_the_best_two_timings_agree() {
        let mut speed = MemorySpeed::default();
        for (timing, known) in [(4e9, None), (9e9, None), (5e9, None), (9.9e9, Some(9.9e9)), (2e9, Some(9.9e9))] {
            speed.timings.push(timing);
            assert_eq!((speed.known(), speed.is_settled()), (known, known.is_some()), "{:?}", speed.timings);
        }
        let never =
            MemorySpeed { timings: (1..=MOST).map(|n| f64::powi(2.0, n as i32)).collect(), ..MemorySpeed::default() };
        assert!(never.known().is_none() && never.is_settled());
        let failed = MemorySpeed { timings: vec![0.0; MOST], ..MemorySpeed::default() };
        assert!(failed.known().is_none() && failed.is_settled());
    }
}
