//! Mamba-2 on the CPU.

use super::mixer_task::{MixerScratch, MixerTask};
use crate::runtime::{cpu::WHAT, scratch::grow};
use thermocline_base::error::Result;
use thermocline_cpu::ops::{Activation, Mamba2Scratch, Mamba2Tokens, softplus};
use thermocline_model::recurrent::{Mamba2Config, Mamba2Weights};

/// Computes Mamba-2; `scan` is the scan's own scratch memory.
pub(super) fn mamba2(
    mut task: MixerTask<'_, '_>,
    config: &Mamba2Config,
    weights: &Mamba2Weights,
    scratch: &mut MixerScratch,
    scan: &mut Mamba2Scratch,
) -> Result<()> {
    let (shape, tokens) = (&config.shape, task.tokens);
    let (channels, inner, heads) = (tokens * shape.channels(), tokens * shape.inner(), tokens * shape.heads);
    let projected = grow(&mut scratch.projected, Some(channels), WHAT)?;
    let convolved = grow(&mut scratch.convolved, Some(channels), WHAT)?;
    let gate = grow(&mut scratch.gate, Some(inner), WHAT)?;
    let mixed = grow(&mut scratch.heads, Some(inner), WHAT)?;
    let dt = grow(&mut scratch.decay, Some(heads), WHAT)?;
    let jobs = [weights.xbc.job(&mut *projected), weights.gate.job(&mut *gate), weights.dt.job(&mut *dt)];
    task.project(jobs, &weights.output);
    task.convolve(&weights.conv, projected, convolved, true);
    for dt in dt.chunks_exact_mut(shape.heads) {
        dt.iter_mut().zip(&weights.dt_bias).for_each(|(dt, bias)| {
            *dt = softplus(*dt + bias).max(config.step_limits[0]).min(config.step_limits[1]);
        });
    }
    for state in &mut *task.states {
        state.advance(
            task.cpu,
            |state| &mut state.scan,
            |rows, memory| {
                let of = |width: usize| rows.start * width..rows.end * width;
                let (xbc, dt) = (&convolved[of(shape.channels())], &dt[of(shape.heads)]);
                let scanned = Mamba2Tokens { xbc, dt, a: &weights.a, d: &weights.d };
                task.cpu.mamba2_scan(shape, &scanned, memory, &mut mixed[of(shape.inner())], scan);
            },
        );
    }
    task.cpu.activate(Activation::Silu, gate, Some(mixed));
    task.cpu.rms_norm_groups(gate, &weights.norm, shape.groups, task.config.norm_eps);
    task.finish(&weights.output, gate);
    Ok(())
}
