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
    for (buffer, len) in [
        (&mut scratch.projected, qkv),
        (&mut scratch.convolved, qkv),
        (&mut scratch.gate, values),
        (&mut scratch.heads, values),
        (&mut scratch.decay, heads),
        (&mut scratch.rate, heads),
    ] {
        grow(buffer, Some(len), WHAT)?;
    }
    let (projected, convolved) = (&mut scratch.projected[..qkv], &mut scratch.convolved[..qkv]);
    let (gate, mixed) = (&mut scratch.gate[..values], &mut scratch.heads[..values]);
    let (decay, rate) = (&mut scratch.decay[..heads], &mut scratch.rate[..heads]);
    let jobs = [weights.qkv.job(projected), weights.gate.job(gate), weights.alpha.job(decay), weights.beta.job(rate)];
    task.project(jobs, &weights.output);
    task.convolve(&weights.conv, projected, convolved, true);
    for (decay, rate) in decay.chunks_exact_mut(shape.v_heads).zip(rate.chunks_exact_mut(shape.v_heads)) {
        for (decay, (a, bias)) in decay.iter_mut().zip(weights.a.iter().zip(&weights.dt_bias)) {
            *decay = a * softplus(*decay + bias);
        }
        rate.iter_mut().for_each(|rate| *rate = 1.0 / (1.0 + (-*rate).exp()));
    }
    for (rows, state) in &mut *task.states {
        let of = |width: usize| rows.start * width..rows.end * width;
        let (qkv, heads) = (&convolved[of(shape.qkv())], of(shape.v_heads));
        let scanned = DeltaNetTokens { qkv, log_decay: &decay[heads.clone()], beta: &rate[heads] };
        let mixed = &mut mixed[of(shape.values())];
        task.cpu.gated_delta_net(shape, &scanned, &mut state.scan, mixed, scan);
    }
    task.cpu.rms_norm(mixed, None, &weights.norm.weight, task.config.norm_eps);
    task.cpu.activate(Activation::Silu, gate, Some(mixed));
    task.finish(&weights.output, gate);
    Ok(())
}
