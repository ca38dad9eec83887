//! Gated delta net on the CPU.

use super::mixer_task::{MixerScratch, MixerTask};
use crate::runtime::{cpu::WHAT, scratch::grow};
use thermocline_base::error::Result;
use thermocline_cpu::ops::{Activation, DeltaNetScratch, DeltaNetTokens, softplus};
use thermocline_model::recurrent::{DeltaNetConfig, DeltaNetWeights};

/// Computes a delta net; `scan` is the scan's own scratch memory.
pub(super) fn delta_net(
    mut task: MixerTask<'_, '_>,
    config: &DeltaNetConfig,
    weights: &DeltaNetWeights,
    scratch: &mut MixerScratch,
    scan: &mut DeltaNetScratch,
) -> Result<()> {
    let (shape, tokens) = (&config.shape, task.tokens);
    let (qkv, values, heads) = (tokens * shape.qkv(), tokens * shape.values(), tokens * shape.v_heads);
    let projected = grow(&mut scratch.projected, Some(qkv), WHAT)?;
    let convolved = grow(&mut scratch.convolved, Some(qkv), WHAT)?;
    let gate = grow(&mut scratch.gate, Some(values), WHAT)?;
    let mixed = grow(&mut scratch.heads, Some(values), WHAT)?;
    let decay = grow(&mut scratch.decay, Some(heads), WHAT)?;
    let rate = grow(&mut scratch.rate, Some(heads), WHAT)?;
    let [of_qkv, of_gate] = [weights.qkv.job(&mut *projected), weights.gate.job(&mut *gate)];
    let [of_decay, of_rate] = [weights.alpha.job(&mut *decay), weights.beta.job(&mut *rate)];
    task.project([of_qkv, of_gate, of_decay, of_rate], &weights.output);
    task.convolve(&weights.conv, projected, convolved, true);
    for (decay, rate) in decay.chunks_exact_mut(shape.v_heads).zip(rate.chunks_exact_mut(shape.v_heads)) {
        for (decay, (a, bias)) in decay.iter_mut().zip(weights.a.iter().zip(&weights.dt_bias)) {
            *decay = a * softplus(*decay + bias);
        }
        rate.iter_mut().for_each(|rate| *rate = 1.0 / (1.0 + (-*rate).exp()));
    }
    for state in &mut *task.states {
        state.advance(
            task.cpu,
            |state| &mut state.scan,
            |rows, memory| {
                let of = |width: usize| rows.start * width..rows.end * width;
                let (qkv, heads) = (&convolved[of(shape.qkv())], of(shape.v_heads));
                let scanned = DeltaNetTokens { qkv, log_decay: &decay[heads.clone()], beta: &rate[heads] };
                task.cpu.gated_delta_net(shape, &scanned, memory, &mut mixed[of(shape.values())], scan);
            },
        );
    }
    task.cpu.rms_norm(mixed, None, &weights.norm.weight, task.config.norm_eps);
    task.cpu.activate(Activation::Silu, gate, Some(mixed));
    task.finish(&weights.output, gate);
    Ok(())
}
