//! Recurrent mixers on the CPU.

use std::ops::Range;

use super::{TokenInputs, WHAT};
use crate::{
    cpu::{
        Cpu, MatmulJob,
        ops::{Activation, DeltaNetScratch, DeltaNetTokens, Mamba2Scratch, Mamba2Tokens},
    },
    error::Result,
    model::{BoundMixer, DeltaNetShape, DeltaNetWeights, Linear, Mamba2Shape, Mamba2Weights, ShortConvWeights},
    runtime::{RecurrentState, scratch::grow},
};

/// A state, and the rows of the chunk that advance it.
pub(super) type RowsState<'a> = (Range<usize>, &'a mut RecurrentState);

/// The shape of a mixer (`C`), its weights (`W`), and the constant of its norms.
#[derive(Debug, Clone, Copy)]
struct MixerParts<'a, C, W> {
    config: &'a C,
    weights: &'a W,
    norm_eps: f32,
}

/// Buffers of recurrent mixers, which grow to the largest chunk and stay.
#[derive(Debug, Default)]
pub(crate) struct RecurrentMixer {
    /// `[tokens, channels]`, before and behind the convolution: q, k and v of a delta net; x, B and C of Mamba-2.
    projected: Vec<f32>,
    convolved: Vec<f32>,
    /// Gate, and outputs of the heads, `[tokens, heads * size]`.
    gate: Vec<f32>,
    heads: Vec<f32>,
    /// Decays (of Mamba-2: steps), and rates, `[tokens, heads]`.
    decay: Vec<f32>,
    rate: Vec<f32>,
    delta_net: DeltaNetScratch,
    mamba2: Mamba2Scratch,
}

impl RecurrentMixer {
    /// `out = mixer(x)`, both `[tokens, d_model]`; each of `states` is advanced by its rows.
    pub fn run(
        &mut self,
        cpu: &Cpu,
        mixer: BoundMixer<'_>,
        norm_eps: f32,
        inputs: TokenInputs<'_>,
        states: &mut [RowsState<'_>],
        out: &mut [f32],
    ) -> Result<()> {
        match mixer {
            BoundMixer::DeltaNet { shape, weights } => {
                self.delta_net(cpu, MixerParts { config: shape, weights, norm_eps }, inputs, states, out)
            }
            BoundMixer::Mamba2 { shape, step_limits, weights } => {
                self.mamba2(cpu, MixerParts { config: shape, weights, norm_eps }, step_limits, inputs, states, out)
            }
            BoundMixer::ShortConv(weights) => self.short_conv(cpu, weights, inputs, states, out),
        }
    }

    fn delta_net(
        &mut self,
        cpu: &Cpu,
        MixerParts { config: shape, weights, norm_eps }: MixerParts<'_, DeltaNetShape, DeltaNetWeights>,
        TokenInputs { x, tokens }: TokenInputs<'_>,
        states: &mut [RowsState<'_>],
        out: &mut [f32],
    ) -> Result<()> {
        let (qkv, values, heads) = (tokens * shape.qkv(), tokens * shape.values(), tokens * shape.v_heads);
        for (buffer, len) in [
            (&mut self.projected, qkv),
            (&mut self.convolved, qkv),
            (&mut self.gate, values),
            (&mut self.heads, values),
            (&mut self.decay, heads),
            (&mut self.rate, heads),
        ] {
            grow(buffer, Some(len), WHAT)?;
        }
        let (projected, convolved) = (&mut self.projected[..qkv], &mut self.convolved[..qkv]);
        let (gate, mixed) = (&mut self.gate[..values], &mut self.heads[..values]);
        let (decay, rate) = (&mut self.decay[..heads], &mut self.rate[..heads]);
        let mut jobs = [
            job(&weights.qkv, projected),
            job(&weights.gate, gate),
            job(&weights.alpha, decay),
            job(&weights.beta, rate),
        ];
        cpu.matmul(&mut jobs, x, tokens);
        if tokens == 1 {
            cpu.prefetch(&[&weights.output.weight]);
        }
        for (rows, state) in &mut *states {
            let of = rows.start * weights.conv.channels()..rows.end * weights.conv.channels();
            cpu.short_conv(&weights.conv, &projected[of.clone()], &mut state.conv, &mut convolved[of], true);
        }
        for (decay, rate) in decay.chunks_exact_mut(shape.v_heads).zip(rate.chunks_exact_mut(shape.v_heads)) {
            for (decay, (a, bias)) in decay.iter_mut().zip(weights.a.iter().zip(&weights.dt_bias)) {
                *decay = a * softplus(*decay + bias);
            }
            rate.iter_mut().for_each(|rate| *rate = 1.0 / (1.0 + (-*rate).exp()));
        }
        for (rows, state) in states {
            let of = |width: usize| rows.start * width..rows.end * width;
            let (qkv, heads) = (&convolved[of(shape.qkv())], of(shape.v_heads));
            let scanned = DeltaNetTokens { qkv, log_decay: &decay[heads.clone()], beta: &rate[heads] };
            let mixed = &mut mixed[of(shape.values())];
            cpu.gated_delta_net(shape, &scanned, &mut state.scan, mixed, &mut self.delta_net);
        }
        cpu.rms_norm(mixed, None, &weights.norm.weight, norm_eps);
        cpu.activate(Activation::Silu, gate, Some(mixed));
        cpu.matmul(&mut [job(&weights.output, out)], gate, tokens);
        Ok(())
    }

    fn mamba2(
        &mut self,
        cpu: &Cpu,
        MixerParts { config: shape, weights, norm_eps }: MixerParts<'_, Mamba2Shape, Mamba2Weights>,
        step_limits: [f32; 2],
        TokenInputs { x, tokens }: TokenInputs<'_>,
        states: &mut [RowsState<'_>],
        out: &mut [f32],
    ) -> Result<()> {
        let (channels, inner, heads) = (tokens * shape.channels(), tokens * shape.inner(), tokens * shape.heads);
        for (buffer, len) in [
            (&mut self.projected, channels),
            (&mut self.convolved, channels),
            (&mut self.gate, inner),
            (&mut self.heads, inner),
            (&mut self.decay, heads),
        ] {
            grow(buffer, Some(len), WHAT)?;
        }
        let (projected, convolved) = (&mut self.projected[..channels], &mut self.convolved[..channels]);
        let (gate, mixed, dt) = (&mut self.gate[..inner], &mut self.heads[..inner], &mut self.decay[..heads]);
        let mut jobs = [job(&weights.gate, gate), job(&weights.xbc, projected), job(&weights.dt, dt)];
        cpu.matmul(&mut jobs, x, tokens);
        if tokens == 1 {
            cpu.prefetch(&[&weights.output.weight]);
        }
        for (rows, state) in &mut *states {
            let of = rows.start * weights.conv.channels()..rows.end * weights.conv.channels();
            cpu.short_conv(&weights.conv, &projected[of.clone()], &mut state.conv, &mut convolved[of], true);
        }
        for dt in dt.chunks_exact_mut(shape.heads) {
            dt.iter_mut().zip(&weights.dt_bias).for_each(|(dt, bias)| {
                *dt = softplus(*dt + bias).max(step_limits[0]).min(step_limits[1]);
            });
        }
        for (rows, state) in states {
            let of = |width: usize| rows.start * width..rows.end * width;
            let (xbc, dt) = (&convolved[of(shape.channels())], &dt[of(shape.heads)]);
            let scanned = Mamba2Tokens { xbc, dt, a: &weights.a, d: &weights.d };
            cpu.mamba2_scan(shape, &scanned, &mut state.scan, &mut mixed[of(shape.inner())], &mut self.mamba2);
        }
        cpu.activate(Activation::Silu, gate, Some(mixed));
        cpu.rms_norm_groups(gate, &weights.norm, shape.groups, norm_eps);
        cpu.matmul(&mut [job(&weights.output, out)], gate, tokens);
        Ok(())
    }

    fn short_conv(
        &mut self,
        cpu: &Cpu,
        weights: &ShortConvWeights,
        TokenInputs { x, tokens }: TokenInputs<'_>,
        states: &mut [RowsState<'_>],
        out: &mut [f32],
    ) -> Result<()> {
        let n = tokens * weights.conv.channels();
        for buffer in [&mut self.projected, &mut self.convolved, &mut self.gate, &mut self.heads] {
            grow(buffer, Some(n), WHAT)?;
        }
        let (inputs, convolved) = (&mut self.projected[..n], &mut self.convolved[..n]);
        let (input_gates, output_gates) = (&mut self.heads[..n], &mut self.gate[..n]);
        let mut jobs = [
            job(&weights.input_gate, input_gates),
            job(&weights.input, inputs),
            job(&weights.output_gate, output_gates),
        ];
        cpu.matmul(&mut jobs, x, tokens);
        if tokens == 1 {
            cpu.prefetch(&[&weights.output.weight]);
        }
        inputs.iter_mut().zip(input_gates).for_each(|(x, gate)| *x *= *gate);
        for (rows, state) in states {
            let of = rows.start * weights.conv.channels()..rows.end * weights.conv.channels();
            cpu.short_conv(&weights.conv, &inputs[of.clone()], &mut state.conv, &mut convolved[of], false);
        }
        output_gates.iter_mut().zip(convolved).for_each(|(gate, x)| *gate *= *x);
        cpu.matmul(&mut [job(&weights.output, out)], output_gates, tokens);
        Ok(())
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let all = [&self.projected, &self.convolved, &self.gate, &self.heads, &self.decay, &self.rate];
        let floats: usize = all.into_iter().map(Vec::capacity).sum();
        (floats * size_of::<f32>()) as u64 + self.delta_net.bytes() + self.mamba2.bytes()
    }
}

fn job<'a>(linear: &'a Linear, out: &'a mut [f32]) -> MatmulJob<'a> {
    MatmulJob { weight: &linear.weight, bias: linear.bias.as_deref(), out }
}

/// `ln(1 + e^x)`
pub(super) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
