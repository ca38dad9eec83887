//! Recall of predictors and activation thresholds, layer by layer, as defined in
//! [`metrics`](crate::sparsity::predictor::metrics). Also measures the error of the FFN's output
//! without the skipped neurons.
//!
//! The model computes the text by a [`Method`]. For every FFN input, all neurons are computed once
//! more, including the neurons that the method skips.

use std::sync::Arc;

use serde::Serialize;

use super::{
    Activity, Conditions, Control, Corpus, Method,
    levels::WeightedSample,
    observer::{EvalProbe, FfnInputs},
    score::Scorer,
};
use crate::sparsity::predictor::metrics::{
    MASS_OF_ACTIVE, Mean, Prediction, PredictionTally, bit, down_norms, fill_mask, heaviest, least_and_median, ones,
    output_error,
};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::{Cpu, ops::Activation};
use thermocline_model::{ExpertWeights, Experts, Ffn, FfnWeights, Model, Predictor, PredictorInput};
use thermocline_run::runtime::{Forward, RouterInputs, Routing, Sparsity, predictor_scores};

/// Tokens per block.
const BLOCK: usize = 32;

/// Recall figures of all layers.
#[derive(Debug, Clone, Serialize)]
pub struct Recall {
    /// Conditions of the measurement.
    pub conditions: Conditions,
    /// Definition of active neurons.
    pub active: String,
    /// Figures of the layers with a predictor or an activation threshold.
    pub layers: Vec<LayerRecall>,
    /// Minimum and median of the recall over layers.
    pub recall: (f64, f64),
    /// Minimum and median of the mass recall over layers.
    pub mass_recall: (f64, f64),
}

/// Figures of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LayerRecall {
    /// Index of the layer.
    pub layer: usize,
    /// Means over tokens.
    #[serde(flatten)]
    pub figures: Prediction,
    /// Mean relative error of the FFN's output without the skipped neurons, `|y - y'| / |y|`.
    pub output_error: f64,
}

/// Measures predictors under [`Sparsity::Predicted`], activation thresholds under
/// [`Sparsity::Threshold`].
///
/// # Errors
/// As [`Forward::run`]; [`Error::Invalid`] for another mode, or if no layer has a predictor or
/// threshold; [`Error::Cancelled`] if `control` cancels.
pub fn recall(
    forward: &mut Forward,
    cpu: &Cpu,
    corpus: &Corpus,
    method: Method,
    device: &str,
    control: &mut dyn Control,
) -> Result<Recall> {
    let model = Arc::clone(forward.model());
    let mut observer = RecallObserver::new(cpu, &model, method.sparsity, None)?;
    let kv_type = observer.read(forward, corpus, method, control)?;
    let figures = |(at, layer): (usize, &Option<ObservedLayer<'_>>)| {
        let ObservedLayer { tally, error, .. } = layer.as_ref()?;
        Some(LayerRecall { layer: at, figures: tally.figures(), output_error: error.get().unwrap_or(0.0) })
    };
    let layers: Vec<LayerRecall> = observer.layers.iter().enumerate().filter_map(figures).collect();
    let over = |of: fn(&LayerRecall) -> f64| {
        least_and_median(&layers.iter().map(of).collect::<Vec<_>>()).unwrap_or((1.0, 1.0))
    };
    Ok(Recall {
        conditions: Conditions::new(&model, corpus, method, kv_type, device),
        active: if model.config.activation.is_sparse() {
            "all neurons that are not zero".to_owned()
        } else {
            format!("the fewest neurons that hold {:.0} % of the mass", 100.0 * MASS_OF_ACTIVE)
        },
        recall: over(|layer| layer.figures.recall),
        mass_recall: over(|layer| layer.figures.mass_recall),
        layers,
    })
}

/// Computes whole FFNs and their predictions from the FFNs' inputs.
pub(super) struct RecallObserver<'a> {
    cpu: &'a Cpu,
    form: Activation,
    pub layers: Vec<Option<ObservedLayer<'a>>>,
    buffers: Buffers,
    /// First error, which a probe cannot return.
    failed: Option<Error>,
}

/// Weights and figures of one layer.
pub(super) struct ObservedLayer<'a> {
    /// The layer's FFN, or the routed experts and the shared expert, each with the norms of its
    /// down vectors.
    ffns: Vec<(&'a FfnWeights, Vec<f32>)>,
    moe: Option<(&'a ExpertWeights, &'a Experts, f32)>,
    rule: ObservedRule<'a>,
    tally: PredictionTally,
    error: Mean,
    /// Scores of firing neurons, weighted so that every token counts equally. For thresholds, the
    /// scores are the products of all gate activations' magnitudes and their scales.
    pub sample: WeightedSample,
}

/// Rule that selects the neurons to skip.
enum ObservedRule<'a> {
    /// Skips neurons that the predictor does not select.
    Predictor(&'a Predictor),
    /// Skips neurons whose gate activation, times its scale, is at most this in magnitude.
    Threshold(f32),
}

/// Scratch memory: `[tokens, n_ff]` activations, `[tokens, d]` outputs and `[n_ff]` masks.
#[derive(Default)]
struct Buffers {
    gate: Vec<f32>,
    up: Vec<f32>,
    scores: Vec<f32>,
    inner: Vec<f32>,
    mass: Vec<f32>,
    whole: Vec<f32>,
    part: Vec<f32>,
    active: Vec<u32>,
    predicted: Vec<u32>,
}

impl<'a> RecallObserver<'a> {
    /// Observes the layers with a predictor or an activation threshold. `default` is the threshold
    /// of layers without a threshold.
    pub fn new(cpu: &'a Cpu, model: &'a Model, sparsity: Sparsity, default: Option<f32>) -> Result<Self> {
        let layers = model.weights.layers.iter().map(|layer| {
            let (ffns, moe): (Vec<_>, _) = match &layer.ffn {
                Ffn::None => return None,
                Ffn::Dense(ffn) => (vec![ffn], None),
                Ffn::Experts(moe) => {
                    let of = model.config.experts.as_ref();
                    (moe.ffns().collect(), of.map(|of| (moe, of, model.config.norm_eps)))
                }
            };
            let first = *ffns.first()?;
            let rule = match sparsity {
                Sparsity::Predicted => ObservedRule::Predictor(layer.predictor.as_ref()?),
                Sparsity::Threshold => {
                    ObservedRule::Threshold(first.gate.as_ref().and(layer.activation_threshold.or(default))?)
                }
                Sparsity::Dense | Sparsity::Exact => return None,
            };
            let tally = PredictionTally::new(first.up.weight.rows());
            let ffns = ffns.into_iter().map(|ffn| (ffn, down_norms(ffn))).collect();
            Some(ObservedLayer { ffns, moe, rule, tally, error: Mean::default(), sample: WeightedSample::default() })
        });
        let layers: Vec<_> = layers.collect();
        if layers.iter().all(Option::is_none) {
            let expected = match sparsity {
                Sparsity::Predicted if model.config.experts.is_some() => {
                    "a model with predictors, which MoE models do not have (`threshold` measures activation thresholds)"
                }
                Sparsity::Predicted => "a model with predictors (`prepare` makes them)",
                Sparsity::Threshold => "a model with gates and activation thresholds (`prepare` makes them)",
                Sparsity::Dense | Sparsity::Exact => "predicted or threshold",
            };
            return Err(Error::invalid("sparsity mode whose recall is measured", expected, sparsity));
        }
        let activation = model.config.activation;
        Ok(RecallObserver { cpu, form: activation, layers, buffers: Buffers::default(), failed: None })
    }

    /// Computes a text with the model and observes its FFNs. Returns the type of the KV cache.
    pub fn read(
        &mut self,
        forward: &mut Forward,
        corpus: &Corpus,
        method: Method,
        control: &mut dyn Control,
    ) -> Result<thermocline_run::runtime::KvType> {
        let mut activity = Activity::new(forward.model());
        let mut scorer = Scorer::new(forward, corpus, method)?;
        for passage in &corpus.passages {
            let mut observer = EvalProbe { control: &mut *control, activity: &mut activity, inputs: Some(&mut *self) };
            scorer.score(passage, &mut observer, &mut |_, _| Ok(()))?;
            self.failed.take().map_or(Ok(()), Err)?;
        }
        Ok(scorer.kv_type())
    }
}

impl FfnInputs for RecallObserver<'_> {
    fn observe(&mut self, layer: usize, tokens: usize, normed: &[f32], residual: &[f32]) {
        let Some(Some(layer)) = self.layers.get_mut(layer) else { return };
        let d = normed.len() / tokens.max(1);
        for (normed, residual) in normed.chunks(BLOCK * d.max(1)).zip(residual.chunks(BLOCK * d.max(1))) {
            if let Err(error) = layer.observe_all(self.cpu, self.form, normed, residual, &mut self.buffers) {
                self.failed.get_or_insert(error);
            }
        }
    }
}

/// Returns the first `n` elements of `buffer`, which grows if needed.
fn room(buffer: &mut Vec<f32>, n: usize) -> &mut [f32] {
    if buffer.len() < n {
        buffer.resize(n, 0.0);
    }
    &mut buffer[..n]
}

impl ObservedLayer<'_> {
    /// Adds tokens. In an MoE layer, every expert is observed with the tokens that use it, like a
    /// dense layer.
    fn observe_all(
        &mut self,
        cpu: &Cpu,
        form: Activation,
        normed: &[f32],
        residual: &[f32],
        buffers: &mut Buffers,
    ) -> Result<()> {
        let Some((moe, experts, norm_eps)) = self.moe else {
            return self.observe(0, cpu, form, normed, residual, buffers);
        };
        let d = moe.router.weight.cols();
        let (tokens, mut routing) = (normed.len() / d.max(1), Routing::default());
        routing.route(cpu, experts, norm_eps, moe, RouterInputs::new(normed, residual, tokens))?;
        let mut latents = Vec::new();
        let (x, width) = match &moe.latent {
            Some(latent) => {
                let width = latent.down.weight.rows();
                latents.resize(tokens * width, 0.0);
                cpu.matmul(&mut [latent.down.job(&mut latents)], normed, tokens);
                (&latents[..], width)
            }
            None => (normed, d),
        };
        for at in 0..self.ffns.len() {
            let rows: Vec<f32> = match at < moe.experts.len() {
                true => {
                    let input = |(t, weight)| {
                        let [factor, _] = experts.router.factors(weight);
                        x[t * width..][..width].iter().map(move |x| x * factor)
                    };
                    routing.members(at, tokens).flat_map(input).collect()
                }
                false => normed.to_vec(),
            };
            self.observe(at, cpu, form, &rows, &rows, buffers)?;
        }
        Ok(())
    }

    /// Adds tokens of the FFN with index `at`.
    fn observe(
        &mut self,
        at: usize,
        cpu: &Cpu,
        form: Activation,
        normed: &[f32],
        residual: &[f32],
        buffers: &mut Buffers,
    ) -> Result<()> {
        let Buffers { gate, up, scores, inner, mass, whole, part, active, predicted } = buffers;
        let (ffn, norms) = &self.ffns[at];
        let (n_ff, d) = (ffn.up.weight.rows(), ffn.up.weight.cols());
        let tokens = normed.len() / d;
        let (gate, up) = (room(gate, tokens * n_ff), room(up, tokens * n_ff));
        let up_job = ffn.up.job(&mut *up);
        match &ffn.gate {
            Some(linear) => cpu.matmul(&mut [linear.job(&mut *gate), up_job], normed, tokens),
            None => cpu.matmul(&mut [up_job], normed, tokens),
        }
        let scores = match self.rule {
            ObservedRule::Predictor(predictor) => {
                let x = if predictor.input == PredictorInput::Residual { residual } else { normed };
                predictor_scores(predictor, cpu, x, tokens, inner, scores)?.0
            }
            ObservedRule::Threshold(_) => {
                let scores = room(scores, tokens * n_ff);
                scores.copy_from_slice(gate);
                cpu.activate(ffn.form(form), scores, None);
                scores.iter_mut().for_each(|score| *score = score.abs());
                ffn.scale_gates(None, scores);
                &*scores
            }
        };
        let hidden = match ffn.gate {
            Some(_) => {
                cpu.activate(ffn.form(form), gate, Some(up));
                gate
            }
            None => {
                cpu.activate(ffn.form(form), up, None);
                up
            }
        };
        let (whole, part) = (room(whole, tokens * d), room(part, tokens * d));
        let bias = ffn.down.linear().bias.as_deref();
        ffn.down.product(cpu, bias, hidden, tokens, whole);
        let mass = room(mass, n_ff);
        for mask in [&mut *active, &mut *predicted] {
            mask.resize(n_ff.div_ceil(32), 0);
        }
        for (hidden, scores) in hidden.chunks_exact_mut(n_ff).zip(scores.chunks_exact(n_ff)) {
            for ((mass, h), norm) in mass.iter_mut().zip(&*hidden).zip(norms) {
                *mass = h.abs() * norm;
            }
            if form.is_sparse() {
                fill_mask(active, n_ff, |i| hidden[i] != 0.0);
            } else {
                heaviest(mass, MASS_OF_ACTIVE, active);
            }
            match self.rule {
                ObservedRule::Predictor(predictor) => {
                    fill_mask(predicted, n_ff, |i| scores[i] >= predictor.threshold);
                    let count = ones(active).count();
                    ones(active).for_each(|i| self.sample.push(scores[i], 1.0 / count as f32));
                }
                ObservedRule::Threshold(threshold) => {
                    fill_mask(predicted, n_ff, |i| scores[i] > threshold);
                    scores.iter().for_each(|score| self.sample.push(*score, 1.0));
                }
            }
            // The shared expert may have another width.
            if self.moe.is_none_or(|(moe, ..)| at < moe.experts.len()) {
                self.tally.add(active, predicted, Some(mass));
            }
            for (i, h) in hidden.iter_mut().enumerate() {
                if !bit(predicted, i) {
                    *h = 0.0;
                }
            }
        }
        ffn.down.product(cpu, bias, hidden, tokens, part);
        for (whole, part) in whole.chunks_exact(d).zip(part.chunks_exact(d)) {
            self.error.add(output_error(whole, part));
        }
        Ok(())
    }
}
