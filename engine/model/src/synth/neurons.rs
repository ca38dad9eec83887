//! The rows of one layer's FFN and of its predictor.
//!
//! The firing row of neuron `i` is `g = sum_t w_t v_{j_t} + noise`, with [`TERMS`] of the layer's
//! common directions `v` and weights `w`. A weight on the constant channel sets the neuron's firing
//! probability. The predictor computes `z = v x` (as `relu(z) - relu(-z)`) and adds up the neuron's
//! terms. A hidden unit that is always 1 adds a bias. Its score and the pre-activation are jointly
//! normal. Their correlation, measured on the quantised rows, determines the bias for the wanted
//! recall.

use rand_chacha::rand_core::Rng;

use super::{
    expert_choice::ExpertChoice,
    firing::{cdf, predictor_threshold, quantile},
    parallel::{dot, in_order},
    plan::{CONSTANT, DRELU_UP, FfnMagnitudes, RESERVED, SynthPlan},
    random::{RowSource, StreamPurpose, permutation},
};
use thermocline_base::error::Result;
use thermocline_formats::{quant, quant::TensorType};

/// Number of directions whose sum is a firing row.
const TERMS: usize = 6;
/// Weights of the terms: two numbers that Q4_0 stores exactly, together or alone, with either sign
/// (it has codes from -8 to 7).
const WEIGHTS: [f32; 2] = [-1.0, 0.875];
/// Fraction of a firing row's variance that no predictor of this form can represent. Quantisation
/// adds a little.
const NOISE: f32 = 0.02;

/// Generator of a layer's FFN rows. In an MoE layer, neurons and outputs are ordered expert by
/// expert.
#[derive(Debug)]
pub(super) struct Neurons<'a> {
    plan: &'a SynthPlan,
    source: RowSource,
    pub(super) scale: FfnMagnitudes,
    /// Rank of each neuron in its FFN, `[neurons]`; 0 fires most.
    pub(super) rank: Vec<usize>,
    /// Rank of each expert, `[experts]`; 0 is chosen most. Empty for dense layers.
    experts: Vec<usize>,
    /// Common directions, rounded to the predictor's type, `[features, d]`.
    pub(super) directions: Vec<f32>,
}

impl<'a> Neurons<'a> {
    pub fn new(plan: &'a SynthPlan, layer: usize, threads: usize) -> Result<Self> {
        let source = RowSource { seed: plan.seed, layer };
        let order = |purpose, at, n| permutation(&mut source.stream(purpose, at), n);
        let rank =
            (0..plan.shape.experts()).flat_map(|expert| ranks(order(StreamPurpose::Order, expert, plan.shape.n_ff)));
        let experts =
            plan.choice.as_ref().map_or(Vec::new(), |of| ranks(order(StreamPurpose::Experts, 0, of.frequencies.len())));
        let (rank, directions) = (rank.collect(), Vec::new());
        let mut neurons = Neurons { plan, source, scale: plan.scale(layer), rank, experts, directions };
        if plan.shape.relu() {
            let d = plan.shape.d_model;
            let mut directions = Vec::with_capacity(plan.features * d);
            let square = WEIGHTS.iter().map(|weight| weight * weight).sum::<f32>() / WEIGHTS.len() as f32;
            let std = ((1.0 - NOISE) / (TERMS as f32 * square)).sqrt() * plan.keeping_std();
            in_order(
                threads,
                plan.features,
                |at| {
                    let mut row = vec![0.0; d];
                    source.normal(StreamPurpose::Direction, at, std, &mut row[RESERVED..]);
                    quantised(plan.predictor_type(), &row)
                },
                |row| {
                    directions.extend_from_slice(&row);
                    Ok(())
                },
            )?;
            neurons.directions = directions;
        }
        Ok(neurons)
    }

    fn direction(&self, at: usize) -> &[f32] {
        let d = self.plan.shape.d_model;
        &self.directions[at * d..][..d]
    }

    /// Returns the directions of neuron `i`, all different, and their weights.
    fn terms(&self, i: usize) -> [(usize, f32); TERMS] {
        let mut rng = self.source.stream(StreamPurpose::RowTerms, i);
        let directions = self.plan.features / TERMS;
        std::array::from_fn(|term| {
            let word = rng.next_u64();
            (term * directions + (word >> 1) as usize % directions, WEIGHTS[(word & 1) as usize])
        })
    }

    /// Computes the sum of directions in neuron `i`'s firing row, which the predictor can
    /// represent.
    pub fn known(&self, i: usize, row: &mut [f32]) {
        row.fill(0.0);
        for (at, weight) in self.terms(i) {
            row.iter_mut().zip(self.direction(at)).for_each(|(row, v)| *row += weight * v);
        }
    }

    /// Computes the firing row of neuron `i` from its known part.
    pub fn firing_row(&self, i: usize, known: &[f32], row: &mut [f32]) {
        self.source.normal(StreamPurpose::Firing, i, NOISE.sqrt() * self.plan.keeping_std(), row);
        row.iter_mut().zip(known).for_each(|(row, known)| *row += known);
        self.set_bias(row, self.plan.firing_bias[self.rank[i]]);
    }

    /// Returns the predictor's bias for a neuron, from the known part of its firing row and the
    /// quantised row. With it, the fraction [`SynthPlan::recall`] of the firings has scores above
    /// zero.
    pub fn score_bias(&self, known: &[f32], quantised: &[f32]) -> f32 {
        let known_norm = f64::from(dot(known, known)).sqrt();
        let norm = f64::from(dot(&quantised[RESERVED..], &quantised[RESERVED..])).sqrt();
        if known_norm == 0.0 || norm == 0.0 {
            return 1.0;
        }
        let rho = f64::from(dot(known, quantised)) / (known_norm * norm);
        let at = -f64::from(quantised[0]) * self.scale.constant / self.spread(quantised);
        (-predictor_threshold(at, rho, self.plan.recall) * known_norm * self.scale.sigma) as f32
    }

    /// Computes the firing row of neuron `i` of the shared expert, whose neurons all fire equally
    /// often.
    pub fn shared_firing_row(&self, i: usize, row: &mut [f32]) {
        self.source.normal(StreamPurpose::SharedUp, i, self.plan.keeping_std(), row);
        self.set_bias(row, quantile(self.plan.active));
    }

    /// Computes the row of neuron `i` in a gate that is never silent.
    pub fn gate_row(&self, i: usize, row: &mut [f32]) {
        self.source.normal(StreamPurpose::Firing, i, self.plan.keeping_std(), row);
        row[..RESERVED].fill(0.0);
    }

    /// Computes the row of an expert in the router: scores with a standard deviation of 1, plus the
    /// expert's bias.
    pub fn router_row(&self, expert: usize, row: &mut [f32]) {
        let Some(choice) = &self.plan.choice else { return row.fill(0.0) };
        self.source.normal(StreamPurpose::Router, expert, 1.0, row);
        row[..RESERVED].fill(0.0);
        let spread = self.spread(row) as f32;
        row.iter_mut().for_each(|weight| *weight /= spread);
        self.set_bias(row, choice.biases[self.experts[expert]]);
    }

    /// Returns the fraction of tokens that choose each expert, `[experts]`.
    pub fn chosen(&self) -> Vec<f32> {
        let frequency = |choice: &ExpertChoice, rank: &usize| choice.frequencies[*rank] as f32;
        let of = self.plan.choice.as_ref();
        of.map_or(Vec::new(), |choice| self.experts.iter().map(|rank| frequency(choice, rank)).collect())
    }

    /// Returns the fraction of tokens at which each neuron fires, `[neurons]`.
    pub fn frequencies(&self) -> Vec<f32> {
        let up = if self.plan.up_bias > 0.0 { DRELU_UP } else { 1.0 };
        let chosen = self.chosen();
        let frequency = |(i, rank): (usize, &usize)| {
            let chosen = chosen.get(i / self.plan.shape.n_ff).copied().unwrap_or(1.0);
            chosen * (up * cdf(self.plan.firing_bias[*rank])) as f32
        };
        self.rank.iter().enumerate().map(frequency).collect()
    }

    /// Computes the up row of neuron `i` of a gated FFN.
    pub fn up_row(&self, i: usize, row: &mut [f32]) {
        self.source.normal(StreamPurpose::Up, i, self.plan.keeping_std(), row);
        self.set_bias(row, self.plan.up_bias);
    }

    /// Computes row `output` of the down projection, `[n_ff]`. In an MoE layer, the outputs are
    /// ordered expert by expert.
    pub fn down_output(&self, output: usize, row: &mut [f32]) {
        let d = self.plan.shape.d_model;
        if output % d < RESERVED {
            row.fill(0.0);
        } else if self.plan.paired() {
            let mut halves = vec![0.0; row.len().div_ceil(2)];
            self.source.normal(StreamPurpose::Down, output, self.scale.down, &mut halves);
            for (down, rank) in row.iter_mut().zip(&self.rank[output / d * self.plan.shape.n_ff..]) {
                *down = halves[rank / 2] * pair_sign(*rank);
            }
        } else {
            self.source.normal(StreamPurpose::Down, output, self.scale.down, row);
        }
    }

    /// Computes neuron `i`'s column of the down projection, `[d]`.
    pub fn down_neuron(&self, i: usize, row: &mut [f32]) {
        let (at, std) = match self.plan.paired() {
            true => (self.rank[i] / 2, self.scale.down * pair_sign(self.rank[i])),
            false => (i, self.scale.down),
        };
        self.source.normal(StreamPurpose::Down, at, std, row);
        row[..RESERVED].fill(0.0);
    }

    /// Computes row `unit` of the predictor's first layer: the directions, their opposites, the
    /// unit that is always 1, and padding.
    pub fn feature_row(&self, unit: usize, row: &mut [f32]) {
        let features = self.plan.features;
        row.fill(0.0);
        if unit < 2 * features {
            let sign = if unit < features { 1.0 } else { -1.0 };
            row.iter_mut().zip(self.direction(unit % features)).for_each(|(row, v)| *row = sign * v);
        } else if unit == 2 * features {
            row[0] = 1.0 / CONSTANT;
        }
    }

    /// Computes row `i` of the predictor's second layer.
    pub fn score_row(&self, i: usize, bias: f32, row: &mut [f32]) {
        let features = self.plan.features;
        row.fill(0.0);
        for (at, weight) in self.terms(i) {
            row[at] = weight;
            row[features + at] = -weight;
        }
        row[2 * features] = bias;
    }

    /// Sets a row's weight on the constant channel, so that its product is positive for the
    /// fraction `cdf(bias)` of tokens.
    fn set_bias(&self, row: &mut [f32], bias: f64) {
        row[..RESERVED].fill(0.0);
        row[0] = (bias * self.spread(row) / self.scale.constant) as f32;
    }

    /// Returns the standard deviation of a row's product with the normed stream.
    fn spread(&self, row: &[f32]) -> f64 {
        let weights = &row[RESERVED..];
        self.scale.gain * self.scale.sigma * f64::from(dot(weights, weights)).sqrt()
    }
}

/// Returns the position of each number in `order`.
fn ranks(order: Vec<usize>) -> Vec<usize> {
    let mut ranks = vec![0; order.len()];
    order.into_iter().enumerate().for_each(|(at, number)| ranks[number] = at);
    ranks
}

fn pair_sign(rank: usize) -> f32 {
    if rank.is_multiple_of(2) { 1.0 } else { -1.0 }
}

/// Returns `row` quantised and dequantised.
pub(super) fn quantised(ty: TensorType, row: &[f32]) -> Result<Vec<f32>> {
    let mut bytes = Vec::new();
    quant::quantise(ty, row, &mut bytes)?;
    let mut back = vec![0.0; row.len()];
    quant::dequantise(ty, &bytes, &mut back);
    Ok(back)
}
