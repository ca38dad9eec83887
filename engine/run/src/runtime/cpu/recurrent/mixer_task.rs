//! A recurrent mixer's task: its inputs, the states that the inputs advance, and its output.

use std::ops::Range;

use crate::runtime::{AdvancedState, RecurrentState, scratch::held_bytes};
use thermocline_cpu::{Cpu, MatmulJob, ops::ShortConv};
use thermocline_model::{Linear, ModelConfig};

/// A state, and the rows of the chunk that advance it.
#[derive(Debug)]
pub(in crate::runtime::cpu) struct RowsState<'a> {
    pub rows: Range<usize>,
    pub of: AdvancedState<'a>,
}

impl RowsState<'_> {
    /// Advances a `part` of the state with `step`: all rows at once, or row by row if planes keep
    /// the part after each row. `step` gets the rows and the part.
    pub fn advance(
        &mut self,
        cpu: &Cpu,
        part: impl Fn(&mut RecurrentState) -> &mut Vec<f32>,
        mut step: impl FnMut(Range<usize>, &mut [f32]),
    ) {
        let AdvancedState { state, planes } = &mut self.of;
        if planes.is_empty() {
            return step(self.rows.clone(), part(state));
        }
        for (at, row) in self.rows.clone().enumerate() {
            step(row..row + 1, part(state));
            if let Some(plane) = planes.get_mut(at) {
                cpu.copy(part(state), part(plane));
            }
        }
    }
}

/// A recurrent mixer for a chunk of tokens: `out = mixer(x)`. The rows of each entry of `states`
/// advance that state.
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
    /// Computes the products of the input. For a single token, the weights of the output matrix are
    /// prefetched.
    pub fn project<const N: usize>(&self, mut jobs: [MatmulJob<'_>; N], output: &Linear) {
        self.cpu.matmul(&mut jobs, self.x, self.tokens);
        if self.tokens == 1 {
            self.cpu.prefetch(&[&output.weight]);
        }
    }

    /// Convolves `projected` into `convolved`, `[tokens, channels]` each.
    pub fn convolve(&mut self, conv: &ShortConv, projected: &[f32], convolved: &mut [f32], activate: bool) {
        let cpu = self.cpu;
        for state in &mut *self.states {
            state.advance(
                cpu,
                |state| &mut state.conv,
                |rows, inputs| {
                    let of = rows.start * conv.channels()..rows.end * conv.channels();
                    cpu.short_conv(conv, &projected[of.clone()], inputs, &mut convolved[of], activate);
                },
            );
        }
    }

    /// `out = output mixed`
    pub fn finish(self, output: &Linear, mixed: &[f32]) {
        self.cpu.matmul(&mut [output.job(self.out)], mixed, self.tokens);
    }
}

/// Buffers shared by recurrent mixers. They grow to the size of the largest chunk.
#[derive(Debug, Default)]
pub(in crate::runtime::cpu) struct MixerScratch {
    /// `[tokens, channels]`, before and after the convolution: q, k and v for a delta net; x, B and
    /// C for Mamba-2.
    pub projected: Vec<f32>,
    pub convolved: Vec<f32>,
    /// Gate, and outputs of the heads, `[tokens, heads * size]`.
    pub gate: Vec<f32>,
    pub heads: Vec<f32>,
    /// Decays (for Mamba-2: steps) and rates, `[tokens, heads]`.
    pub decay: Vec<f32>,
    pub rate: Vec<f32>,
}

impl MixerScratch {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        held_bytes([&self.projected, &self.convolved, &self.gate, &self.heads, &self.decay, &self.rate])
    }
}
