//! From how many tokens on a layer's cold rows are better sent to the device than multiplied where they are.
//!
//! For a chunk of `t` tokens either side takes so long, the products being bound by arithmetic (`cpu`, `gpu`: seconds of a neuron
//! and a token) and the way up by bytes (`bus`: seconds of a neuron):
//!
//! `split = max(hot gpu t, cold cpu t)`, `streamed = hot gpu t + cold (bus + gpu t)`
//!
//! Either waits for the device about once, so that hand-overs do not decide.

use std::sync::Arc;

use super::machine::{Figures, Machine};
use crate::model::{Down, FfnWeights, Linear};

/// Fewest tokens of a chunk that is streamed: one alone is sparse, and read once either way.
const LEAST: usize = 2;

/// Where the cold neurons' part of a prompt is computed.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Streaming {
    /// On the CPU.
    #[default]
    Never,
    /// On the device.
    Always,
    /// Wherever that is quicker, layer by layer and chunk by chunk, on a machine of these speeds.
    Priced(Arc<Machine>),
}

impl Streaming {
    /// Whether the `cold` neurons of `ffn` are sent to the device for a chunk of `tokens` tokens, `hot` others being there.
    pub fn pays(&self, ffn: &FfnWeights, (hot, cold): (usize, usize), tokens: usize) -> bool {
        let from = match self {
            Streaming::Never => None,
            Streaming::Always => Some(LEAST),
            Streaming::Priced(machine) => StreamCost::of(ffn, machine).and_then(|cost| cost.from(hot, cold)),
        };
        cold > 0 && from.is_some_and(|from| tokens >= from)
    }
}

/// Seconds that the rows of one neuron take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StreamCost {
    /// Multiplied on the CPU, per token.
    pub cpu: f64,
    /// Multiplied on the device, per token.
    pub gpu: f64,
    /// Repacked and sent there.
    pub bus: f64,
}

impl StreamCost {
    /// Of the neurons of `ffn`; `None` where they are no rows, or where `machine` does not know.
    pub fn of(ffn: &FfnWeights, machine: &Machine) -> Option<Self> {
        let (Down::Neurons(down), Some(gpu)) = (&ffn.down, &machine.gpu) else { return None };
        let linears = || [ffn.gate.as_ref(), Some(&ffn.up), Some(down)].into_iter().flatten();
        let sum = |figures: &Figures, of: fn(&Linear) -> usize| {
            let each = linears().map(|linear| {
                let rate = figures.get(linear.weight.ty().name())?;
                Some(of(linear) as f64 / rate)
            });
            each.sum::<Option<f64>>()
        };
        Some(StreamCost {
            cpu: sum(&machine.cpu.prompts, |linear| linear.weight.cols())?,
            gpu: sum(&gpu.prompts, |linear| linear.weight.cols())?,
            bus: sum(&gpu.streams, |linear| linear.weight.row_bytes())?,
        })
    }

    /// The fewest tokens of a chunk for which `cold` neurons are better sent to the device, where `hot` others are; `None` if it is
    /// never quicker. As quick is not quicker.
    pub fn from(&self, hot: usize, cold: usize) -> Option<usize> {
        let (hot, cold) = (hot as f64, cold as f64);
        // What a token more saves. With less work than the device the CPU is done before it anyway.
        let saved = cold * self.cpu - (hot + cold) * self.gpu;
        if cold == 0.0 || saved.is_nan() || saved <= 0.0 {
            return None;
        }
        let even = (cold * self.bus / saved).floor();
        (even < 1e9).then(|| (even as usize + 1).max(LEAST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Bytes, Matrix, TensorType};

    fn ffn(neuron_major: bool) -> FfnWeights {
        let linear = |rows: usize, cols: usize| {
            let data = Bytes::new(vec![0; TensorType::F16.row_bytes(cols).unwrap() * rows]);
            Linear { weight: Matrix::new(TensorType::F16, rows, cols, data).unwrap(), bias: None }
        };
        let down = if neuron_major { Down::Neurons(linear(64, 32)) } else { Down::Outputs(linear(32, 64)) };
        FfnWeights { gate: Some(linear(64, 32)), up: linear(64, 32), down }
    }

    #[test]
    fn many_tokens_are_worth_the_way() {
        let cost = StreamCost { cpu: 10.0, gpu: 1.0, bus: 90.0 };
        // 10 t > 90 + t
        assert_eq!(cost.from(0, 100), Some(11), "after ten tokens it is a tie, which is no reason");
        assert_eq!(StreamCost { bus: 89.0, ..cost }.from(0, 100), Some(10));
        assert_eq!(StreamCost { bus: 180.0, ..cost }.from(0, 100), Some(21), "a slower bus asks for more");
        assert_eq!(StreamCost { cpu: 5.0, ..cost }.from(0, 100), Some(23), "and so does a quicker CPU");
        assert_eq!(StreamCost { bus: 0.0, ..cost }.from(0, 100), Some(2), "one token alone is never streamed");
        // Beside 500 neurons on the device: 1000 t > 500 t + 100 (90 + t)
        assert_eq!(cost.from(500, 100), Some(23), "the device has something else to do meanwhile");
        assert_eq!(cost.from(900, 100), None, "the CPU is done before the device");
        assert_eq!(StreamCost { cpu: 1.0, ..cost }.from(0, 100), None, "a tie for any number of tokens");
        assert_eq!(cost.from(100, 0), None);
        assert_eq!(StreamCost { bus: f64::INFINITY, ..cost }.from(0, 100), None);
        assert_eq!(StreamCost { cpu: f64::NAN, ..cost }.from(0, 100), None);
    }

    #[test]
    fn a_machine_decides_by_its_speeds() {
        let mut machine = Machine::typical();
        let gpu = machine.gpu.as_mut().unwrap();
        gpu.prompts.insert("F16".to_owned(), 3.2e12);
        gpu.streams.insert("F16".to_owned(), 6.4e9);
        machine.cpu.prompts.insert("F16".to_owned(), 3.2e11);
        let cost = StreamCost::of(&ffn(true), &machine).unwrap();
        // Three rows of 32 columns, 64 bytes each.
        let expected = StreamCost { cpu: 3e-10, gpu: 3e-11, bus: 3e-8 };
        for (got, expected) in [(cost.cpu, expected.cpu), (cost.gpu, expected.gpu), (cost.bus, expected.bus)] {
            assert!((got / expected - 1.0).abs() < 1e-9, "{cost:?}");
        }
        assert_eq!(cost.from(0, 64), Some(112));
        let priced = Streaming::Priced(Arc::new(machine.clone()));
        assert!(priced.pays(&ffn(true), (0, 64), 112) && !priced.pays(&ffn(true), (0, 64), 111));
        assert!(!priced.pays(&ffn(false), (0, 64), 10_000), "a neuron is no row");
        assert!(Streaming::Always.pays(&ffn(true), (0, 64), 2) && !Streaming::Always.pays(&ffn(true), (0, 64), 1));
        assert!(!Streaming::Always.pays(&ffn(true), (64, 0), 2) && !Streaming::Never.pays(&ffn(true), (0, 64), 10_000));
        machine.cpu.prompts.remove("F16");
        assert_eq!(StreamCost::of(&ffn(true), &machine), None, "what is not known decides nothing");
        machine.gpu = None;
        assert_eq!(StreamCost::of(&ffn(true), &machine), None);
    }
}
