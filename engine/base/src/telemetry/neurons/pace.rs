//! The cost of recording, measured during ordinary decoding.

use std::time::Duration;

use crate::telemetry::{Gauge, Ratio};

/// Recent decoding speed at one level of recording.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Tokens measured.
    pub tokens: u64,
    /// Tokens per second of the engine's time.
    pub rate: f64,
    /// Seconds per token spent on making and recording reports of firings. CPU time only: a
    /// device's share is in `rate`.
    pub recording: f64,
}

/// A [`Pace`] that any thread may read.
#[derive(Debug, Default)]
pub(super) struct SharedPace {
    tokens: Gauge,
    rate: Ratio,
    recording: Ratio,
}

/// Seconds of decoding after which older tokens count little: a few answers.
const MEMORY: f64 = 30.0;

/// Accumulates tokens and their times.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct PaceMeter {
    seen: u64,
    tokens: f64,
    seconds: f64,
    /// Tokens whose recording was timed, and the time it took.
    timed: f64,
    recording: f64,
}

impl PaceMeter {
    /// Adds a token that took `time`. `recording` is the part spent on recording, if it was
    /// measured.
    pub fn add(&mut self, time: Duration, recording: Option<Duration>, shared: &SharedPace) {
        let seconds = time.as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        let fade = MEMORY / (MEMORY + seconds);
        self.seen += 1;
        self.tokens = self.tokens * fade + 1.0;
        self.seconds = self.seconds * fade + seconds;
        self.timed = self.timed * fade + f64::from(u8::from(recording.is_some()));
        self.recording = self.recording * fade + recording.unwrap_or_default().as_secs_f64();
        shared.tokens.set(self.seen);
        shared.rate.set(self.tokens / self.seconds);
        shared.recording.set(if self.timed > 0.0 { self.recording / self.timed } else { 0.0 });
    }
}

impl SharedPace {
    /// The pace. `None` before the first token.
    pub fn get(&self) -> Option<Pace> {
        let pace = Pace { tokens: self.tokens.get(), rate: self.rate.get(), recording: self.recording.get() };
        (pace.tokens > 0).then_some(pace)
    }

    /// Discards all measurements.
    pub fn clear(&self) {
        self.tokens.set(0);
    }
}
