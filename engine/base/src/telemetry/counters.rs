//! The figures and their snapshot.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Figures of a running engine: counts and rates, as numbers or as what many threads share.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TelemetryFigures<Count, Speed> {
    /// Sessions that exist.
    pub sessions: Count,
    /// Generations that are running or waiting.
    pub generations: Count,
    /// Prompt tokens computed since the engine was opened.
    pub prompt_tokens: Count,
    /// Prompt tokens taken from a cache instead, since the engine was opened.
    pub reused_tokens: Count,
    /// Tokens generated since the engine was opened.
    pub generated_tokens: Count,
    /// Prompt tokens per second, lately; 0 while none is computed.
    pub prompt_rate: Speed,
    /// Tokens generated per second by all sessions together, lately; 0 while none is.
    pub decode_rate: Speed,
    /// Passes that decoded tokens since the engine was opened: of one sequence, or of several at once.
    pub decode_passes: Count,
    /// Sequences whose tokens the latest of them computed.
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
    /// Bytes taken of a device's memory, for all purposes; 0 without a device.
    pub device_bytes: Count,
    /// Most bytes to take of it; 0 without a limit.
    pub device_budget: Count,
}

/// Figures at about one instant.
pub type Snapshot = TelemetryFigures<u64, f64>;

/// An unsigned figure.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Replaces it.
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// Adds to it.
    pub fn add(&self, value: u64) {
        self.0.fetch_add(value, Relaxed);
    }

    /// Subtracts from it; callers subtract only what they added.
    pub fn subtract(&self, value: u64) {
        self.0.fetch_sub(value, Relaxed);
    }
}

/// A floating-point figure.
#[derive(Debug, Default)]
pub struct Ratio(AtomicU64);

impl Ratio {
    /// Its value.
    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Relaxed))
    }

    /// Replaces it.
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Relaxed);
    }
}

/// The live figures behind a [`Snapshot`].
pub type Telemetry = TelemetryFigures<Gauge, Ratio>;

impl Telemetry {
    /// The figures now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            sessions: self.sessions.get(),
            generations: self.generations.get(),
            prompt_tokens: self.prompt_tokens.get(),
            reused_tokens: self.reused_tokens.get(),
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
