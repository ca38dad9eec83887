//! Telemetry figures and their snapshot.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Figures of a running engine: counts and rates. They are plain numbers in a snapshot, and atomics
/// in the live figures.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TelemetryFigures<Count, Speed> {
    /// Open sessions.
    pub sessions: Count,
    /// Generations that are running or waiting.
    pub generations: Count,
    /// Prompt tokens computed since the engine was opened.
    pub prompt_tokens: Count,
    /// Prompt tokens taken from a cache instead of computed, since the engine was opened.
    pub reused_tokens: Count,
    /// Pictures computed since the engine was opened.
    pub pictures: Count,
    /// Tokens generated since the engine was opened.
    pub generated_tokens: Count,
    /// Recent prompt tokens per second. 0 while no prompt is computed.
    pub prompt_rate: Speed,
    /// Recent tokens generated per second by all sessions together. 0 while no session generates.
    pub decode_rate: Speed,
    /// Decoding passes since the engine was opened, for one sequence or several.
    pub decode_passes: Count,
    /// Sequences in the latest decoding pass.
    pub batch: Count,
    /// Tokens in the context of the session that ran last.
    pub context_used: Count,
    /// Length of that context, in tokens.
    pub context_length: Count,
    /// Bytes of weights, mapped or read.
    pub weight_bytes: Count,
    /// Bytes of all KV caches.
    pub kv_bytes: Count,
    /// Bytes of the forward pass's buffers.
    pub scratch_bytes: Count,
    /// Bytes allocated in the device's memory, for all purposes. 0 without a device.
    pub device_bytes: Count,
    /// Most bytes to allocate there. 0 without a limit.
    pub device_budget: Count,
}

/// Figures at about one point in time.
pub type Snapshot = TelemetryFigures<u64, f64>;

/// A shared unsigned integer.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Returns the value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Replaces the value.
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// Adds to the value.
    pub fn add(&self, value: u64) {
        self.0.fetch_add(value, Relaxed);
    }

    /// Subtracts from the value. Callers subtract only what they added.
    pub fn subtract(&self, value: u64) {
        self.0.fetch_sub(value, Relaxed);
    }
}

/// A shared floating-point number.
#[derive(Debug, Default)]
pub struct Ratio(AtomicU64);

impl Ratio {
    /// Returns the value.
    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Relaxed))
    }

    /// Replaces the value.
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Relaxed);
    }
}

/// The live figures behind a [`Snapshot`].
pub type Telemetry = TelemetryFigures<Gauge, Ratio>;

impl Telemetry {
    /// Returns the current figures.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            sessions: self.sessions.get(),
            generations: self.generations.get(),
            prompt_tokens: self.prompt_tokens.get(),
            reused_tokens: self.reused_tokens.get(),
            pictures: self.pictures.get(),
            generated_tokens: self.generated_tokens.get(),
            prompt_rate: self.prompt_rate.get(),
            decode_rate: self.decode_rate.get(),
            decode_passes: self.decode_passes.get(),
            batch: self.batch.get(),
            context_used: self.context_used.get(),
            context_length: self.context_length.get(),
            weight_bytes: self.weight_bytes.get(),
            kv_bytes: self.kv_bytes.get(),
            scratch_bytes: self.scratch_bytes.get(),
            device_bytes: self.device_bytes.get(),
            device_budget: self.device_budget.get(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_shows_every_figure_under_its_own_name() {
        let telemetry = Telemetry::default();
        assert_eq!(telemetry.snapshot(), Snapshot::default());
        telemetry.sessions.add(3);
        telemetry.sessions.subtract(1);
        telemetry.generations.set(1);
        telemetry.prompt_tokens.set(2);
        telemetry.reused_tokens.set(3);
        telemetry.pictures.set(16);
        telemetry.generated_tokens.set(4);
        telemetry.prompt_rate.set(5.5);
        telemetry.decode_rate.set(6.5);
        telemetry.decode_passes.set(14);
        telemetry.batch.set(15);
        telemetry.context_used.set(7);
        telemetry.context_length.set(8);
        telemetry.weight_bytes.set(9);
        telemetry.kv_bytes.set(10);
        telemetry.scratch_bytes.set(11);
        telemetry.device_bytes.set(12);
        telemetry.device_budget.set(13);
        let want = Snapshot {
            sessions: 2,
            generations: 1,
            prompt_tokens: 2,
            reused_tokens: 3,
            pictures: 16,
            generated_tokens: 4,
            prompt_rate: 5.5,
            decode_rate: 6.5,
            decode_passes: 14,
            batch: 15,
            context_used: 7,
            context_length: 8,
            weight_bytes: 9,
            kv_bytes: 10,
            scratch_bytes: 11,
            device_bytes: 12,
            device_budget: 13,
        };
        assert_eq!(telemetry.snapshot(), want);
    }

    #[test]
    fn any_thread_may_read_while_another_writes() {
        let telemetry = Telemetry::default();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..20_000).for_each(|_| telemetry.generated_tokens.add(1)));
            scope.spawn(|| {
                let mut last = 0;
                while last < 20_000 {
                    let now = telemetry.snapshot().generated_tokens;
                    assert!(now >= last);
                    last = now;
                }
            });
        });
    }
}
