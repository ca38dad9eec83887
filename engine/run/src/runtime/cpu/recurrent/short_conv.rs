//! Short convolution between two gates on the CPU.

use super::mixer_task::{MixerScratch, MixerTask};
use crate::runtime::{cpu::WHAT, scratch::grow};
use thermocline_base::error::Result;
use thermocline_model::recurrent::ShortConvWeights;

/// Computes the convolution of gated inputs, and gates its outputs.
pub(super) fn short_conv(
    mut task: MixerTask<'_, '_>,
    weights: &ShortConvWeights,
    scratch: &mut MixerScratch,
) -> Result<()> {
    let MixerScratch { projected, convolved, gate, heads, .. } = scratch;
    let n = Some(task.tokens * weights.conv.channels());
    let (inputs, convolved) = (grow(projected, n, WHAT)?, grow(convolved, n, WHAT)?);
    let (input_gates, output_gates) = (grow(heads, n, WHAT)?, grow(gate, n, WHAT)?);
    let gates = [weights.input_gate.job(&mut *input_gates), weights.output_gate.job(&mut *output_gates)];
    let [of_input, of_output] = gates;
    task.project([weights.input.job(&mut *inputs), of_input, of_output], &weights.output);
    inputs.iter_mut().zip(input_gates).for_each(|(x, gate)| *x *= *gate);
    task.convolve(&weights.conv, inputs, convolved, false);
    output_gates.iter_mut().zip(convolved).for_each(|(gate, x)| *gate *= *x);
    task.finish(&weights.output, output_gates);
    Ok(())
}
