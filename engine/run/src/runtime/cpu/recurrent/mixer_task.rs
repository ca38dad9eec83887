//! A recurrent mixer's task: its inputs, the states that they advance, and its output.

use std::ops::Range;

use crate::runtime::{RecurrentState, scratch::held_bytes};
use thermocline_cpu::{Cpu, MatmulJob, ops::ShortConv};
use thermocline_model::{Linear, ModelConfig};

/// A state, and the rows of the chunk that advance it.
pub(in crate::runtime::cpu) type RowsState<'a> = (Range<usize>, &'a mut RecurrentState);

/// A recurrent mixer of a chunk of tokens: `out = mixer(x)`; each of `states` is advanced by its rows.
#[derive(Debug)]
pub(in crate::runtime::cpu) struct MixerTask<'a, 's> {
    pub cpu: &'a Cpu,
    pub config: &'a ModelConfig,
    /// `[tokens, d_model]`
    pub x: &'a [f32],
    pub tokens: usize,
    pub states: &'a mut [RowsState<'s>],
    /// `[tokens, d_model]`
    pub out: &'a mut [f32],
}

impl MixerTask<'_, '_> {
    /// Computes the products of its input. If it is of one token, the weights of the matrix behind all else are prefetched.
    pub fn project<const N: usize>(&self, mut jobs: [MatmulJob<'_>; N], output: &Linear) {
        self.cpu.matmul(&mut jobs, self.x, self.tokens);
        if self.tokens == 1 {
            self.cpu.prefetch(&[&output.weight]);
        }
    }

    /// Convolves `projected` into `convolved`, `[tokens, channels]` each.
    pub fn convolve(&mut self, conv: &ShortConv, projected: &[f32], convolved: &mut [f32], activate: bool) {
        for (rows, state) in &mut *self.states {
            let of = rows.start * conv.channels()..rows.end * conv.channels();
            self.cpu.short_conv(conv, &projected[of.clone()], &mut state.conv, &mut convolved[of], activate);
        }
    }

    /// `out = output mixed`
    pub fn finish(self, output: &Linear, mixed: &[f32]) {
        self.cpu.matmul(&mut [output.job(self.out)], mixed, self.tokens);
    }
}

/// Buffers that recurrent mixers share, which grow to the largest chunk and stay.
#[derive(Debug, Default)]
pub(in crate::runtime::cpu) struct MixerScratch {
    /// `[tokens, channels]`, before and behind the convolution: q, k and v of a delta net; x, B and C of Mamba-2.
    pub projected: Vec<f32>,
    pub convolved: Vec<f32>,
    /// Gate, and outputs of the heads, `[tokens, heads * size]`.
    pub gate: Vec<f32>,
    pub heads: Vec<f32>,
    /// Decays (of Mamba-2: steps), and rates, `[tokens, heads]`.
    pub decay: Vec<f32>,
    pub rate: Vec<f32>,
}

impl MixerScratch {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        held_bytes([&self.projected, &self.convolved, &self.gate, &self.heads, &self.decay, &self.rate])
    }
}
