//! Counts firings while a model computes text.

use std::ops::Range;

use super::Profile;
use crate::sparsity::predictor::metrics::{MASS_OF_ACTIVE, down_norms, heaviest, ones};
use thermocline_cpu::Cpu;
use thermocline_model::{Activation, ActivationForm, Ffn, Model};
use thermocline_run::runtime::{ExpertHidden, Probe};

/// A [`Probe`] that counts firings.
#[derive(Debug)]
pub struct Profiler<'a> {
    cpu: &'a Cpu,
    activation: Activation,
    /// Limits of the hidden values, per layer and FFN, in the order of [`Ffn::at`].
    limits: Vec<Vec<Option<f32>>>,
    /// Experts per token; 1 for dense models.
    used: usize,
    /// Norms of the down vectors, per layer `[neurons]`, for activations that are never exactly
    /// zero. Otherwise empty.
    norms: Vec<Vec<f32>>,
    profile: Profile,
    /// `[tokens, n_ff]` hidden activations, then masses.
    hidden: Vec<f32>,
    /// `[tokens, n_ff.div_ceil(32)]` firing masks.
    masks: Vec<u32>,
}

impl<'a> Profiler<'a> {
    /// Creates a profiler of `model` with zero counts. For activations that are never exactly zero,
    /// it reads the down projections once and computes on `cpu`. `cpu` must not be the forward
    /// pass's.
    pub fn new(cpu: &'a Cpu, model: &Model) -> Self {
        let activation = model.config.activation;
        let norms = |ffn: &Ffn| match ffn {
            Ffn::None => Vec::new(),
            _ if activation.is_sparse() => Vec::new(),
            Ffn::Dense(ffn) => down_norms(ffn),
            Ffn::Experts(moe) => moe.ffns().flat_map(down_norms).collect(),
        };
        let limits = |ffn: &Ffn| (0..).map_while(|at| ffn.at(at)).map(|ffn| ffn.limit).collect();
        Profiler {
            cpu,
            activation,
            limits: model.weights.layers.iter().map(|layer| limits(&layer.ffn)).collect(),
            used: model.config.experts.map_or(1, |experts| experts.used),
            norms: model.weights.layers.iter().map(|layer| norms(&layer.ffn)).collect(),
            profile: Profile::new(model),
            hidden: Vec::new(),
            masks: Vec::new(),
        }
    }

    /// Returns the counts so far.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Resets the counts to zero.
    pub fn clear(&mut self) {
        self.profile.clear();
    }

    /// Counts the neurons whose gate is positive (up, without a gate); for dReLU, gate and up.
    fn count_positive(&mut self, layer: usize, neurons: Range<usize>, gate: &[f32], up: &[f32]) {
        let counts = &mut self.profile.counts[layer][neurons];
        let n_ff = counts.len().max(1);
        let both = self.activation == Activation::DRelu && !gate.is_empty();
        let decides = if gate.is_empty() { up } else { gate };
        for (decides, up) in decides.chunks_exact(n_ff).zip(up.chunks_exact(n_ff)) {
            for ((count, decides), up) in counts.iter_mut().zip(decides).zip(up) {
                *count += u64::from(*decides > 0.0 && (!both || *up > 0.0));
            }
        }
    }

    /// Counts the heaviest neurons of each token.
    fn count_heaviest(&mut self, layer: usize, at: usize, neurons: Range<usize>, gate: &[f32], up: &[f32]) {
        let limit = self.limits[layer].get(at).copied().flatten();
        let form = ActivationForm { activation: self.activation, limit };
        let norms = &self.norms[layer][neurons.clone()];
        let n_ff = norms.len().max(1);
        self.hidden.clear();
        self.hidden.extend_from_slice(if gate.is_empty() { up } else { gate });
        self.cpu.activate(form, &mut self.hidden, (!gate.is_empty()).then_some(up));
        let words = n_ff.div_ceil(32);
        self.masks.resize(up.len() / n_ff * words, 0);
        let mut tokens: Vec<_> = self.hidden.chunks_exact_mut(n_ff).zip(self.masks.chunks_exact_mut(words)).collect();
        self.cpu.pool().for_each(&mut tokens, |_, (mass, mask)| {
            mass.iter_mut().zip(norms).for_each(|(a, norm)| *a = a.abs() * norm);
            heaviest(mass, MASS_OF_ACTIVE, mask);
        });
        let counts = &mut self.profile.counts[layer][neurons];
        self.masks.chunks_exact(words).flat_map(ones).for_each(|neuron| counts[neuron] += 1);
    }

    /// Counts a range of a layer's neurons, which belong to its FFN `at`. `gate` and `up` are
    /// `[tokens, neurons]`.
    fn count(&mut self, layer: usize, at: usize, neurons: Range<usize>, gate: &[f32], up: &[f32]) {
        self.profile.computed[layer] += up.len() as u64;
        match self.activation.is_sparse() {
            true => self.count_positive(layer, neurons, gate, up),
            false => self.count_heaviest(layer, at, neurons, gate, up),
        }
    }

    /// Counts the tokens of the first layer with an FFN, because all layers compute the same
    /// tokens.
    fn count_tokens(&mut self, layer: usize, tokens: usize) {
        if self.profile.counts[..layer].iter().all(Vec::is_empty) {
            self.profile.tokens += tokens as u64;
        }
    }
}

impl Probe for Profiler<'_> {
    fn wants_ffn_hidden(&mut self) -> bool {
        true
    }

    fn ffn_hidden(&mut self, layer: usize, tokens: usize, gate: &[f32], up: &[f32]) {
        self.count_tokens(layer, tokens);
        self.count(layer, 0, 0..up.len() / tokens.max(1), gate, up);
    }

    fn expert_hidden(&mut self, hidden: &ExpertHidden<'_>) {
        let ExpertHidden { layer, expert, members, gate, up } = *hidden;
        let width = up.len() / members.len().max(1);
        // The shared expert is last and may have another width.
        let all = self.profile.counts[layer].len();
        let first = if expert < self.profile.chosen[layer].len() { expert * width } else { all - width };
        self.count(layer, expert, first..first + width, gate, up);
    }

    fn wants_router(&mut self) -> bool {
        true
    }

    fn router(&mut self, layer: usize, chosen: &[usize]) {
        self.count_tokens(layer, chosen.len() / self.used.max(1));
        chosen.iter().for_each(|&expert| self.profile.chosen[layer][expert] += 1);
    }
}
