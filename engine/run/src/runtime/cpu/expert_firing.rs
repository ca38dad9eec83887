//! The neurons of an MoE layer's experts that fired, collected expert by expert for an observer.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use super::{CpuFfn, FfnWork};
use crate::runtime::{LayerFiring, Probe, scratch::held_bytes};
use thermocline_base::telemetry::neurons::{LayerNeurons, Strength};
use thermocline_model::mask;

/// Firing of a chunk's experts so far. The buffers grow to the size of the largest chunk.
#[derive(Debug, Default)]
pub(crate) struct ExpertFiring {
    tokens: usize,
    neurons: usize,
    /// Words of a token's expert mask.
    words: usize,
    /// Masks of the neurons that fired so far, `[tokens, words(neurons)]`.
    pub fired: Vec<u32>,
    /// `[tokens, words(experts)]`
    chosen: Vec<u32>,
    /// `[tokens, neurons]`, or empty.
    strength: Vec<f32>,
    /// One expert's mask, `[members, words(width)]`.
    mask: Vec<u32>,
    /// Time spent on collecting.
    spent: Duration,
}

impl ExpertFiring {
    /// Begins a chunk of `tokens` tokens that use the experts `chosen`, `[tokens, used]`, in a
    /// layer with these neurons.
    pub fn begin(&mut self, neurons: LayerNeurons, chosen: &[usize], tokens: usize, strength: bool) {
        let began = Instant::now();
        let experts = neurons.experts();
        (self.tokens, self.neurons, self.words) = (tokens, neurons.count(), mask::words(experts));
        self.fired.clear();
        self.fired.resize(tokens * mask::words(self.neurons), 0);
        self.chosen.clear();
        self.chosen.resize(tokens * self.words, 0);
        self.strength.clear();
        self.strength.resize(if strength { tokens * self.neurons } else { 0 }, 0.0);
        let rows = self.chosen.chunks_exact_mut(self.words.max(1));
        for (row, chosen) in rows.zip(chosen.chunks_exact((chosen.len() / tokens.max(1)).max(1))) {
            chosen.iter().filter(|expert| **expert < experts).for_each(|expert| mask::insert(row, *expert));
        }
        self.spent = began.elapsed();
    }

    /// Adds the firing of block `block` of the last task of `ffn`, for the tokens in `members`. Its
    /// neurons are `neurons` in the layer.
    pub fn note(
        &mut self,
        ffn: &CpuFfn,
        block: usize,
        neurons: Range<usize>,
        members: impl Iterator<Item = usize> + Clone,
    ) {
        let began = Instant::now();
        let (first, width) = (neurons.start, neurons.len());
        let (count, words) = (members.clone().count(), mask::words(width));
        self.mask.clear();
        self.mask.resize(count * words, 0);
        ffn.fired(block, &mut self.mask);
        let all = mask::words(self.neurons);
        for (row, token) in self.mask.chunks_exact(words.max(1)).zip(members.clone()) {
            mask::insert_shifted(&mut self.fired[token * all..][..all], first, row);
        }
        if !self.strength.is_empty() {
            let told = ffn.strength(block);
            for (row, token) in members.enumerate() {
                let into = &mut self.strength[token * self.neurons + first..][..width];
                match told {
                    Strength::All(values) => into.copy_from_slice(&values[row * width..][..width]),
                    Strength::Listed { neurons, values } => {
                        let values = &values[row * neurons.len()..];
                        neurons.iter().zip(values).for_each(|(at, value)| into[*at as usize] = *value);
                    }
                }
            }
        }
        self.spent += began.elapsed();
    }

    /// Reports `layer`, whose work began at `started`, to `probe`.
    pub fn report(&self, layer: usize, work: FfnWork, started: Instant, probe: &mut dyn Probe) {
        let cpu = started.elapsed().saturating_sub(self.spent);
        probe.firing(&LayerFiring {
            layer,
            tokens: self.tokens,
            fired: &self.fired,
            chosen: Some(&self.chosen),
            complete: true,
            strength: (!self.strength.is_empty()).then_some(Strength::All(&self.strength)),
            cpu_bytes: work.bytes(),
            cpu_scattered: work.scattered,
            cpu_ns: cpu.as_nanos() as u64,
            reporting: Instant::now().checked_sub(self.spent),
            ..LayerFiring::default()
        });
    }

    /// Bytes of the buffers.
    pub fn bytes(&self) -> u64 {
        held_bytes([&self.fired, &self.chosen, &self.mask]) + held_bytes([&self.strength])
    }
}
