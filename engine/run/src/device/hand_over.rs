//! The buffers of a hand-over: one GPU-CPU synchronisation in a split layer.

use super::{device_ffn::DeviceFfn, registers::Registers};
use thermocline_model::mask;

/// Buffers for the data that the CPU reads from the device in a split layer, and for the CPU's
/// uploads. They grow to the size of the largest chunk.
#[derive(Debug, Default)]
pub(crate) struct HandOver {
    /// Input of the FFN, `[tokens, d_model]`.
    pub x: Vec<f32>,
    /// The CPU's part of the FFN's output, `[tokens, d_model]`.
    pub out: Vec<f32>,
    /// `out` with the row pitch of the device.
    pub rows: Vec<f32>,
}

/// Most bytes that a layer of `ffns` hands over to the CPU.
pub(crate) fn hand_over_bytes(ffns: &[DeviceFfn], registers: &Registers, chunk: usize) -> u64 {
    let rows = chunk as u64 * registers.row_bytes();
    let split = ffns.iter().filter(|ffn| !ffn.is_whole());
    let bytes = split.map(|ffn| match ffn {
        DeviceFfn::Neurons(neurons) => 2 * rows + mask::words(neurons.neurons()) as u64 * 4,
        // The experts that tokens use, their router weights, and the ranges of the router's values.
        DeviceFfn::Experts(experts) => rows + (chunk * (2 * experts.experts.used + 1) * 4) as u64,
        DeviceFfn::Absent => 0,
        DeviceFfn::Whole(_) | DeviceFfn::Cold => 2 * rows,
    });
    bytes.max().unwrap_or(0)
}
