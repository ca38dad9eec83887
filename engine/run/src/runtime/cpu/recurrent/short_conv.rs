//! Short convolution between two gates on the CPU.

use super::mixer_task::{MixerScratch, MixerTask};
use crate::runtime::{cpu::WHAT, scratch::grow};
use thermocline_base::error::Result;
use thermocline_model::recurrent::ShortConvWeights;

/// Computes the convolution of gated inputs, whose outputs are gated again.
pub(super) fn short_conv(
    mut task: MixerTask<'_, '_>,
    weights: &ShortConvWeights,
    scratch: &mut MixerScratch,
) -> Result<()> {
    let tokens = task.tokens;
    let n = tokens * weights.conv.channels();
    for buffer in [&mut scratch.projected, &mut scratch.convolved, &mut scratch.gate, &mut scratch.heads] {
        grow(buffer, Some(n), WHAT)?;
    }
    let (inputs, convolved) = (&mut scratch.projected[..n], &mut scratch.convolved[..n]);
    let (input_gates, output_gates) = (&mut scratch.heads[..n], &mut scratch.gate[..n]);
    let jobs = [weights.input.job(inputs), weights.input_gate.job(input_gates), weights.output_gate.job(output_gates)];
    task.project(jobs, &weights.output);
    inputs.iter_mut().zip(input_gates).for_each(|(x, gate)| *x *= *gate);
    task.convolve(&weights.conv, inputs, convolved, false);
    output_gates.iter_mut().zip(convolved).for_each(|(gate, x)| *gate *= *x);
    task.finish(&weights.output, output_gates);
    Ok(())
}
