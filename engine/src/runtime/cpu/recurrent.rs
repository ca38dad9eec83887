//! Recurrent mixers on the CPU.

use super::WHAT;
use crate::{
    cpu::{
        Cpu, MatmulJob,
        ops::{Activation, DeltaNetScratch, DeltaNetTokens},
    },
    error::Result,
    model::{DeltaNetShape, DeltaNetWeights},
    runtime::{RecurrentState, scratch::grow},
};

/// Buffers of recurrent mixers, which grow to the largest chunk and stay.
#[derive(Debug, Default)]
pub(crate) struct RecurrentMixer {
    /// `[tokens, q | k | v]`, before and behind the convolution.
    projected: Vec<f32>,
    qkv: Vec<f32>,
    /// `[tokens, v_heads * v_dim]`: gate, and outputs of the heads.
    gate: Vec<f32>,
    heads: Vec<f32>,
    /// `[tokens, v_heads]`
    decay: Vec<f32>,
    rate: Vec<f32>,
    scan: DeltaNetScratch,
}

impl RecurrentMixer {
    /// `out = delta net(x)`, both `[tokens, d_model]`; `state` is advanced by the tokens.
    pub fn delta_net(
        &mut self,
        cpu: &Cpu,
        (shape, weights, eps): (&DeltaNetShape, &DeltaNetWeights, f32),
        (x, tokens): (&[f32], usize),
        state: &mut RecurrentState,
        out: &mut [f32],
    ) -> Result<()> {
        let (qkv, values, heads) = (tokens * shape.qkv(), tokens * shape.values(), tokens * shape.v_heads);
        for (buffer, len) in [
            (&mut self.projected, qkv),
            (&mut self.qkv, qkv),
            (&mut self.gate, values),
            (&mut self.heads, values),
            (&mut self.decay, heads),
            (&mut self.rate, heads),
        ] {
            grow(buffer, Some(len), WHAT)?;
        }
        let (projected, convolved) = (&mut self.projected[..qkv], &mut self.qkv[..qkv]);
        let (gate, mixed) = (&mut self.gate[..values], &mut self.heads[..values]);
        let (decay, rate) = (&mut self.decay[..heads], &mut self.rate[..heads]);
        let mut jobs = [
            MatmulJob { weight: &weights.qkv.weight, bias: weights.qkv.bias.as_deref(), out: projected },
            MatmulJob { weight: &weights.gate.weight, bias: weights.gate.bias.as_deref(), out: gate },
            MatmulJob { weight: &weights.alpha.weight, bias: weights.alpha.bias.as_deref(), out: decay },
            MatmulJob { weight: &weights.beta.weight, bias: weights.beta.bias.as_deref(), out: rate },
        ];
        cpu.matmul(&mut jobs, x, tokens);
        if tokens == 1 {
            cpu.prefetch(&[&weights.output.weight]);
        }
        cpu.short_conv(&weights.conv, projected, &mut state.conv, convolved, true);
        for (decay, rate) in decay.chunks_exact_mut(shape.v_heads).zip(rate.chunks_exact_mut(shape.v_heads)) {
            for (decay, (a, bias)) in decay.iter_mut().zip(weights.a.iter().zip(&weights.dt_bias)) {
                *decay = a * softplus(*decay + bias);
            }
            rate.iter_mut().for_each(|rate| *rate = 1.0 / (1.0 + (-*rate).exp()));
        }
        let scanned = DeltaNetTokens { qkv: convolved, log_decay: decay, beta: rate };
        cpu.gated_delta_net(shape, &scanned, &mut state.scan, mixed, &mut self.scan);
        cpu.rms_norm(mixed, None, &weights.norm.weight, eps);
        cpu.activate(Activation::Silu, gate, Some(mixed));
        let output = &weights.output;
        let mut job = [MatmulJob { weight: &output.weight, bias: output.bias.as_deref(), out }];
        cpu.matmul(&mut job, gate, tokens);
        Ok(())
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let all = [&self.projected, &self.qkv, &self.gate, &self.heads, &self.decay, &self.rate];
        all.iter().map(|buffer| (buffer.capacity() * size_of::<f32>()) as u64).sum::<u64>() + self.scan.bytes()
    }
}

/// `ln(1 + e^x)`
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
