//! Sampled tokens, which run through the quantised rows of every layer's FFN to measure how often
//! neurons fire.
//!
//! Attention is not computed. Noise of the planned variance replaces the layers' contributions to
//! the residual stream. The end-to-end test compares the result with the real forward pass.

use super::{
    draft_head,
    firing::hot_fraction,
    neurons::{Neurons, quantised},
    parallel::{dot, in_order},
    plan::{CONSTANT, NORM_EPS, RESERVED, SynthPlan},
    random::{RowSource, StreamPurpose, fill_normal, permutation},
    report::Firing,
    shape::SynthShape,
};
use thermocline_base::error::Result;

/// Number of tokens, at most the whole vocabulary.
const TOKENS: usize = 512;
/// Number of neurons sampled per layer, equally many per expert. They are evenly spaced in rank, so
/// that their mean is the layer's.
const NEURONS: usize = 256;

/// Number of tokens at which one neuron fired, was named by the predictor, and both.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counts {
    fired: u32,
    predicted: u32,
    found: u32,
}

/// Sampled tokens at the FFN of one layer.
#[derive(Debug)]
pub(super) struct SampledTokens {
    tokens: usize,
    /// Quantised embeddings, `[tokens, d]`.
    embedded: Vec<f32>,
    /// Input of the FFN, `[tokens, d]`.
    normed: Vec<f32>,
    /// Products with the directions, `[features, tokens]`.
    seen: Vec<f32>,
}

/// Computes the embedding of `token`.
pub(super) fn embedding_row(plan: &SynthPlan, token: usize, row: &mut [f32]) {
    let source = RowSource { seed: plan.seed, layer: 0 };
    source.normal(StreamPurpose::Embedding, token, plan.embedding_std().0, row);
    row[..RESERVED].fill(0.0);
    row[0] = plan.embedded_constant();
    draft_head::mark(plan, token, row);
}

/// Computes the embedding of a position.
pub(super) fn position_row(plan: &SynthPlan, position: usize, row: &mut [f32]) {
    let source = RowSource { seed: plan.seed, layer: 0 };
    source.normal(StreamPurpose::Positions, position, plan.embedding_std().1, row);
    row[..RESERVED].fill(0.0);
}

impl SampledTokens {
    pub fn new(plan: &SynthPlan) -> Result<Self> {
        let d = plan.shape.d_model;
        let tokens = TOKENS.min(plan.shape.n_vocab);
        let source = RowSource { seed: plan.seed, layer: 0 };
        let order = permutation(&mut source.stream(StreamPurpose::SampleTokens, 0), plan.shape.n_vocab);
        let mut embedded = Vec::with_capacity(tokens * d);
        let mut row = vec![0.0; d];
        for (position, token) in order.into_iter().take(tokens).enumerate() {
            embedding_row(plan, token, &mut row);
            let mut sum = quantised(plan.matrix_type(d), &row)?;
            if plan.embedding_std().1 > 0.0 {
                position_row(plan, position, &mut row);
                let position = quantised(plan.matrix_type(d), &row)?;
                sum.iter_mut().zip(position).for_each(|(sum, position)| *sum += position);
            }
            embedded.extend_from_slice(&sum);
        }
        Ok(SampledTokens { tokens, embedded, normed: Vec::new(), seen: Vec::new() })
    }

    /// Sets the tokens' inputs to the FFN of `layer`.
    pub fn enter(&mut self, plan: &SynthPlan, layer: usize, neurons: &Neurons<'_>, threads: usize) -> Result<()> {
        let d = plan.shape.d_model;
        let added = (neurons.scale.sigma * neurons.scale.sigma - 1.0).max(0.0).sqrt() as f32;
        let source = RowSource { seed: plan.seed, layer };
        let mut residual = self.embedded.clone();
        let mut noise = vec![0.0; d - RESERVED];
        for (token, x) in residual.chunks_exact_mut(d).enumerate() {
            fill_normal(&mut source.stream(StreamPurpose::SampleNoise, token), added, &mut noise);
            x[RESERVED..].iter_mut().zip(&noise).for_each(|(x, noise)| *x += noise);
        }
        self.seen.clear();
        if plan.predictor_rank.is_some() {
            // Transposed: a firing row has few terms, so the score of a neuron reads only a few
            // rows.
            in_order(
                threads,
                plan.features,
                |at| {
                    let direction = &neurons.directions[at * d..][..d];
                    Ok(residual.chunks_exact(d).map(|x| dot(direction, x)).collect::<Vec<_>>())
                },
                |row| {
                    self.seen.extend_from_slice(&row);
                    Ok(())
                },
            )?;
        }
        for x in residual.chunks_exact_mut(d) {
            norm(plan, x);
        }
        self.normed = residual;
        Ok(())
    }

    /// True if neuron `i` of this rank is sampled. Each expert of an MoE layer has other sampled
    /// ranks.
    pub fn includes(&self, shape: &SynthShape, i: usize, rank: usize) -> bool {
        let experts = shape.experts();
        let step = (experts * shape.n_ff / NEURONS).max(1);
        (rank + i / shape.n_ff * step / experts) % step == step / 2
    }

    /// Runs the tokens through one neuron, given by its quantised firing row and its quantised row
    /// of the predictor. `up` is its up row, if this row can stop it from firing (dReLU).
    pub fn count(&self, plan: &SynthPlan, firing: &[f32], up: Option<&[f32]>, score: Option<&[f32]>) -> Counts {
        let d = plan.shape.d_model;
        let scores = score.map(|score| self.scores(plan, score));
        let mut counts = Counts { fired: 0, predicted: 0, found: 0 };
        for (token, x) in self.normed.chunks_exact(d).enumerate() {
            let fired = dot(firing, x) > 0.0 && up.is_none_or(|up| dot(up, x) > 0.0);
            let predicted = scores.as_ref().is_some_and(|scores| scores[token] >= 0.0);
            counts.fired += u32::from(fired);
            counts.predicted += u32::from(predicted);
            counts.found += u32::from(fired && predicted);
        }
        counts
    }

    fn scores(&self, plan: &SynthPlan, row: &[f32]) -> Vec<f32> {
        let features = plan.features;
        let mut scores = vec![row[2 * features]; self.tokens];
        for at in 0..features {
            let (plus, minus) = (row[at], row[features + at]);
            if plus != 0.0 || minus != 0.0 {
                let seen = &self.seen[at * self.tokens..][..self.tokens];
                for (score, z) in scores.iter_mut().zip(seen) {
                    *score += plus * z.max(0.0) + minus * (-z).max(0.0);
                }
            }
        }
        scores
    }

    /// Computes the firing figures of a layer from its neurons' counts.
    pub fn summarise(&self, plan: &SynthPlan, hot_firings: f64, counts: &[Counts]) -> Firing {
        let fired: Vec<f64> = counts.iter().map(|counts| counts.fired.into()).collect();
        let sum = |count: fn(&Counts) -> u32| counts.iter().map(|counts| f64::from(count(counts))).sum::<f64>();
        let pairs = (counts.len() * self.tokens) as f64;
        let predictor = plan.predictor_rank.is_some();
        Firing {
            active: sum(|counts| counts.fired) / pairs,
            hot_fraction: hot_fraction(&fired, hot_firings),
            recall: predictor.then(|| sum(|counts| counts.found) / sum(|counts| counts.fired).max(1.0)),
            predicted: predictor.then(|| sum(|counts| counts.predicted) / pairs),
        }
    }
}

/// Applies the FFN's norm with the weights of [`super::plan`].
fn norm(plan: &SynthPlan, x: &mut [f32]) {
    let d = x.len() as f32;
    if plan.layer_norm() {
        let mean = x.iter().sum::<f32>() / d;
        let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / d;
        let gain = 1.0 / (variance + NORM_EPS).sqrt();
        x.iter_mut().for_each(|x| *x = (*x - mean) * gain);
        x[..RESERVED].fill(0.0);
        x[0] = CONSTANT;
    } else {
        let gain = 1.0 / (dot(x, x) / d + NORM_EPS).sqrt();
        x.iter_mut().for_each(|x| *x *= gain);
    }
}
