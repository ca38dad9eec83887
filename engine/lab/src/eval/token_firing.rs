//! The neurons that work most at some tokens of a context. Tokens of pictures produce no words, so
//! their neurons are ranked by their parts of the layers' outputs instead of a logit.

use std::{
    ops::{ControlFlow, Range},
    sync::Arc,
};

use serde::Serialize;

use super::attribution::forward_after;
use crate::sparsity::predictor::metrics::down_norms;
use thermocline_base::{
    error::{Error, Result},
    telemetry::neurons::{MassSelection, NeuronBoard, Strength},
};
use thermocline_cpu::Cpu;
use thermocline_model::{Ffn, Model, NeuronIndex};
use thermocline_run::runtime::{CallInputs, LayerFiring, Outputs, Probe};

/// A neuron at a token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FiringNeuron {
    /// The neuron.
    #[serde(flatten)]
    pub place: NeuronIndex,
    /// Activation, before its expert's router weight is applied.
    pub activation: f32,
    /// Length of the vector that the neuron adds, as a fraction of the sum of these lengths over
    /// its layer.
    pub share: f32,
}

/// The neurons at a token.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TokenFiring {
    /// Number of neurons that fire, in all layers.
    pub fired: usize,
    /// Neurons with the largest shares, the largest first.
    pub neurons: Vec<FiringNeuron>,
}

/// Finds the `top` neurons that work most at each of the tokens `wanted` of `context`, computed
/// densely with the instruction set, workers and precision of `cpu`. `board` decides which neurons
/// fire. Calls `proceed` between layers. Neurons of experts count alike, because their down columns
/// are not read.
///
/// # Errors
/// [`Error::Invalid`] for tokens outside the context. [`Error::Cancelled`], and errors of the
/// forward pass.
pub fn token_firing<'t>(
    model: &Arc<Model>,
    cpu: &Cpu,
    context: impl Into<CallInputs<'t>>,
    wanted: Range<usize>,
    board: &NeuronBoard,
    top: usize,
    proceed: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Vec<TokenFiring>> {
    let context = context.into();
    let Some(tokens) = context.tokens.get(..wanted.end).filter(|_| !wanted.is_empty()) else {
        let expected = format!("some of the {} tokens of the context", context.tokens.len());
        return Err(Error::invalid("tokens", expected, format!("tokens {wanted:?}")));
    };
    let before = context.with_tokens(&tokens[..wanted.start]);
    let (mut forward, mut kv) = forward_after(model, cpu, before, wanted.len(), proceed)?;
    let mut probe = FiringProbe {
        model,
        board,
        proceed,
        top,
        norms: vec![None; model.weights.layers.len()],
        selection: MassSelection::default(),
        first: 0,
        found: vec![TokenFiring::default(); wanted.len()],
    };
    // A pass for each chunk, so that the probe knows its tokens.
    let whole = model.config.attentions().any(|of| of.whole_pictures);
    let chunk = if whole { wanted.len() } else { forward.chunk() };
    forward.set_chunk(chunk);
    for start in wanted.clone().step_by(chunk) {
        probe.first = start - wanted.start;
        let part = context.with_tokens(&tokens[start..tokens.len().min(start + chunk)]);
        forward.run(part, &mut kv, Outputs::None, &mut probe)?;
    }
    Ok(probe.found)
}

/// Probe that ranks the neurons of each token.
struct FiringProbe<'a> {
    model: &'a Model,
    board: &'a NeuronBoard,
    proceed: &'a mut dyn FnMut() -> ControlFlow<()>,
    top: usize,
    /// Norms of each layer's down columns, `[n_ff]`, once known. Empty if all weigh alike.
    norms: Vec<Option<Vec<f32>>>,
    selection: MassSelection,
    /// Index in `found` of the first token of the chunk.
    first: usize,
    found: Vec<TokenFiring>,
}

impl FiringProbe<'_> {
    /// Adds the neurons of one layer with these activations, `[n_ff]`.
    fn rank(found: &mut TokenFiring, layer: usize, activations: &[f32], norms: &[f32], top: usize) {
        let norm = |neuron: usize| norms.get(neuron).copied().unwrap_or(1.0);
        let lengths = activations.iter().enumerate().map(|(neuron, activation)| activation.abs() * norm(neuron));
        let all: f64 = lengths.clone().map(f64::from).sum();
        // The smallest share among the listed neurons.
        let mut least = if found.neurons.len() < top { 0.0 } else { found.neurons.last().map_or(0.0, |it| it.share) };
        for (neuron, length) in lengths.enumerate() {
            let share = (f64::from(length) / all) as f32;
            if share > least {
                let at = found.neurons.partition_point(|other| other.share >= share);
                let place = NeuronIndex { layer, neuron };
                found.neurons.insert(at, FiringNeuron { place, activation: activations[neuron], share });
                found.neurons.truncate(top);
                if found.neurons.len() == top {
                    least = found.neurons.last().map_or(0.0, |it| it.share);
                }
            }
        }
    }
}

impl Probe for FiringProbe<'_> {
    fn cancelled(&mut self) -> bool {
        (self.proceed)().is_break()
    }

    fn wants_firing(&mut self) -> bool {
        true
    }

    fn wants_strength(&mut self) -> bool {
        true
    }

    fn wants_times(&mut self) -> bool {
        false
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        let (layer, tokens) = (firing.layer, firing.tokens.max(1));
        let Some(Strength::All(values)) = firing.strength else { return };
        let neurons = values.len() / tokens;
        if neurons == 0 {
            return;
        }
        let of_board = self.board.norms(layer);
        let norms = self.norms[layer].get_or_insert_with(|| match &self.model.weights.layers[layer].ffn {
            _ if !of_board.is_empty() => of_board.to_vec(),
            Ffn::Dense(ffn) => down_norms(ffn),
            Ffn::Experts(_) | Ffn::None => Vec::new(),
        });
        let fired = match self.board.mass() {
            Some(fraction) => self.selection.select(values, of_board, neurons, fraction),
            None => firing.fired,
        };
        let words = fired.len() / tokens;
        let rows = values.chunks_exact(neurons).zip(fired.chunks_exact(words.max(1)));
        for (found, (activations, mask)) in self.found[self.first..].iter_mut().zip(rows) {
            found.fired += mask.iter().map(|word| word.count_ones() as usize).sum::<usize>();
            Self::rank(found, layer, activations, norms, self.top);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neurons_are_ranked_by_their_part_of_their_layer() {
        let mut found = TokenFiring::default();
        FiringProbe::rank(&mut found, 0, &[1.0, -3.0, 0.0], &[1.0, 1.0, 9.0], 3);
        // Layer 1 has larger activations, but no neuron dominates it.
        FiringProbe::rank(&mut found, 1, &[10.0, 10.0, -20.0], &[2.0, 1.0, 1.0], 3);
        let found: Vec<_> = found.neurons.iter().map(|it| (it.place.layer, it.place.neuron, it.share)).collect();
        assert_eq!(found, [(0, 1, 0.75), (1, 0, 0.4), (1, 2, 0.4)]);
        let mut silent = TokenFiring::default();
        FiringProbe::rank(&mut silent, 0, &[0.0, 0.0], &[], 2);
        assert!(silent.neurons.is_empty(), "{silent:?}");
    }
}
