//! The writing side: figures that the engine thread reports after every step.

use std::time::Duration;

use super::{Rate, Telemetry, neurons::NeuronRecorder};

/// Computes the rates and writes the figures of each step.
#[derive(Debug)]
pub struct Meter<'a> {
    telemetry: &'a Telemetry,
    neurons: NeuronRecorder,
    prompt: Rate,
    decode: Rate,
}

impl<'a> Meter<'a> {
    /// Writes to `telemetry`, and with `neurons` to their board.
    pub fn new(telemetry: &'a Telemetry, neurons: NeuronRecorder) -> Self {
        Meter { telemetry, neurons, prompt: Rate::default(), decode: Rate::default() }
    }

    /// The figures that this meter writes.
    pub fn telemetry(&self) -> &'a Telemetry {
        self.telemetry
    }

    /// The recorder of the neurons' activity.
    pub fn neurons(&mut self) -> &mut NeuronRecorder {
        &mut self.neurons
    }

    /// Reports that `tokens` tokens of a prompt were computed in `time`.
    pub fn prompt(&mut self, tokens: usize, time: Duration) {
        self.prompt.add(tokens, time);
        self.telemetry.prompt_tokens.add(tokens as u64);
        self.telemetry.prompt_rate.set(self.prompt.get());
    }

    /// Reports a pass of `time` that decoded `tokens` tokens of `sequences` sequences.
    pub fn decode(&mut self, tokens: usize, sequences: usize, time: Duration) {
        self.telemetry.decode_passes.add(1);
        self.telemetry.batch.set(sequences as u64);
        self.decode.add(tokens, time);
        self.telemetry.decode_rate.set(self.decode.get());
        self.neurons.decoded(time / tokens.max(1) as u32);
    }

    /// Reports that the context in use holds `used` of `length` tokens.
    pub fn context(&self, used: usize, length: usize) {
        self.telemetry.context_used.set(used as u64);
        self.telemetry.context_length.set(length as u64);
    }

    /// Reports that no session is running.
    pub fn idle(&mut self) {
        (self.prompt, self.decode) = (Rate::default(), Rate::default());
        self.telemetry.prompt_rate.set(0.0);
        self.telemetry.decode_rate.set(0.0);
        self.telemetry.batch.set(0);
        self.neurons.idle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::neurons::{NeuronBoard, NeuronShape};

    #[test]
    fn meter_counts_add_up_and_rates_are_zero_when_idle() {
        let telemetry = Telemetry::default();
        let (_, neurons) = NeuronBoard::new(NeuronShape::new([]));
        let mut meter = Meter::new(&telemetry, neurons);
        meter.prompt(512, Duration::from_secs(1));
        meter.decode(1, 1, Duration::from_millis(50));
        meter.context(513, 4096);
        let now = telemetry.snapshot();
        assert_eq!((now.prompt_tokens, now.context_used, now.context_length), (512, 513, 4096));
        assert!((now.prompt_rate - 512.0).abs() < 1e-9 && (now.decode_rate - 20.0).abs() < 1e-9);
        meter.idle();
        let now = telemetry.snapshot();
        assert_eq!((now.prompt_rate, now.decode_rate, now.prompt_tokens), (0.0, 0.0, 512));
    }
}
