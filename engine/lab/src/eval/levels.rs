//! Levels of sparsity: each layer's thresholds for a requested level.

use std::{ops::ControlFlow, sync::Arc};

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

use super::{Control, Corpus, Method, Phase, perplexity, recall::RecallObserver};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::Cpu;
use thermocline_model::Model;
use thermocline_run::runtime::{Forward, Sparsity, ThresholdCorrection};

/// Quantity that a sweep varies, with its values.
#[derive(Debug, Clone, PartialEq)]
pub enum Walk {
    /// Shift of the predictors' thresholds, equal in every layer.
    Shift(Vec<f64>),
    /// Target recall. Every layer's predictor threshold is set to reach it.
    Recall(Vec<f64>),
    /// Fraction of skipped neurons. Every layer's activation threshold is set to reach it.
    Sparsity(Vec<f64>),
    /// Fraction of the layers' weights to skip because their inputs are small.
    Inputs(Vec<f64>),
    /// Fraction of every FFN's neurons to remove from the model, for all tokens.
    Pruned(PruneOrder, Vec<f64>),
}

/// Order in which neurons are removed from a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PruneOrder {
    /// Neurons that fire for the fewest tokens first.
    Cold,
    /// Neurons that fire for the most tokens first.
    Hot,
    /// Random order, drawn once, as the control of the other two.
    Random,
}

impl Walk {
    /// Returns the sparsity mode that the sweep runs in.
    pub fn mode(&self) -> Sparsity {
        match self {
            Walk::Shift(_) | Walk::Recall(_) => Sparsity::Predicted,
            Walk::Sparsity(_) | Walk::Inputs(_) => Sparsity::Threshold,
            Walk::Pruned(..) => Sparsity::Dense,
        }
    }

    /// Returns the name of the varied quantity.
    pub fn label(&self) -> &'static str {
        match self {
            Walk::Shift(_) => "threshold shift",
            Walk::Recall(_) => "recall target",
            Walk::Sparsity(_) => "sparsity",
            Walk::Inputs(_) => "input sparsity",
            Walk::Pruned(PruneOrder::Cold, _) => "coldest pruned",
            Walk::Pruned(PruneOrder::Hot, _) => "hottest pruned",
            Walk::Pruned(PruneOrder::Random, _) => "pruned at random",
        }
    }

    /// Returns the values of the levels.
    pub fn values(&self) -> &[f64] {
        let (Walk::Shift(values)
        | Walk::Recall(values)
        | Walk::Sparsity(values)
        | Walk::Inputs(values)
        | Walk::Pruned(_, values)) = self;
        values
    }

    /// True if a calibration text determines the levels.
    pub fn calibrates(&self) -> bool {
        !matches!(self, Walk::Shift(_) | Walk::Inputs(_) | Walk::Pruned(PruneOrder::Random, _))
    }
}

/// One level of a sweep.
#[derive(Debug, Clone)]
pub struct Level {
    /// Value in the [`Walk`].
    pub value: f64,
    /// Change that the level makes.
    pub change: LevelChange,
}

/// Change of a model, or of its computation, at a level.
#[derive(Debug, Clone)]
pub enum LevelChange {
    /// Correction of the predictors' thresholds.
    Predictors(ThresholdCorrection),
    /// Activation thresholds per layer.
    Activations(Vec<Option<f32>>),
    /// Level of input sparsity.
    Inputs(f32),
    /// The model with neuron-major down projections, and per layer a rank of each neuron,
    /// `[neurons]`. Neurons with the smallest ranks are removed first ([`Model::pruned`]).
    Neurons(Arc<(Model, Vec<Vec<u32>>)>),
}

/// Returns the levels of `walk`. Thresholds that depend on firings are measured on `text`, computed
/// densely in chunks.
pub(super) fn levels(
    forward: &mut Forward,
    cpu: &Cpu,
    text: &Corpus,
    method: Method,
    walk: &Walk,
    control: &mut dyn Control,
) -> Result<Vec<Level>> {
    let model = Arc::clone(forward.model());
    let model: &Model = &model;
    let whole = |value: &f64| matches!(walk, Walk::Shift(_)) && value.is_finite() || (0.0..=1.0).contains(value);
    if let Some(wrong) = walk.values().iter().find(|value| !whole(value)) {
        return Err(Error::invalid("step of a sweep", "a finite shift, or a fraction from 0 to 1", wrong));
    }
    let dense = Method { sparsity: Sparsity::Dense, phase: Phase::Prefill, ..method };
    let shifted = |shift| LevelChange::Predictors(ThresholdCorrection { shift, recall_check: None });
    let change: Box<dyn Fn(f64) -> LevelChange> = match walk {
        Walk::Shift(_) => {
            // Fails for a model without predictors.
            RecallObserver::new(cpu, model, walk.mode(), Some(0.0))?;
            let layers = model.config.n_layer();
            Box::new(move |value| shifted(vec![value as f32; layers]))
        }
        Walk::Inputs(_) => Box::new(|value| LevelChange::Inputs(value as f32)),
        Walk::Pruned(order, _) => {
            let ranks = ranks(forward, text, dense, *order, control)?;
            let (neuron_major, _) = model.neuron_major(cpu.pool(), &mut |_, _| ControlFlow::Continue(()))?;
            let both = Arc::new((neuron_major, ranks));
            Box::new(move |_| LevelChange::Neurons(Arc::clone(&both)))
        }
        Walk::Recall(_) | Walk::Sparsity(_) => {
            let mut observer = RecallObserver::new(cpu, model, walk.mode(), Some(0.0))?;
            observer.read(forward, text, dense, control)?;
            let recall = matches!(walk, Walk::Recall(_));
            Box::new(move |value| {
                let layers = observer.layers.iter().enumerate();
                let samples = layers.map(|(at, layer)| (at, layer.as_ref().map(|layer| &layer.sample)));
                if recall {
                    let shift = |(at, sample): (usize, Option<&WeightedSample>)| shift_for(model, sample?, at, value);
                    shifted(samples.map(|layer| shift(layer).unwrap_or_default()).collect())
                } else {
                    LevelChange::Activations(samples.map(|(_, sample)| sample.and_then(|it| it.below(value))).collect())
                }
            })
        }
    };
    Ok(walk.values().iter().map(|value| Level { value: *value, change: change(*value) }).collect())
}

/// Returns the ranks of every layer's neurons, `[neurons]`, the smallest rank for the neuron to
/// remove first. Ranks that depend on firings are measured on `text` with the method `dense`. If
/// gates have thresholds from a sidecar, the text is computed token by token with these thresholds
/// instead.
fn ranks(
    forward: &mut Forward,
    text: &Corpus,
    dense: Method,
    order: PruneOrder,
    control: &mut dyn Control,
) -> Result<Vec<Vec<u32>>> {
    let model = Arc::clone(forward.model());
    let layers = 0..model.config.n_layer();
    if order == PruneOrder::Random {
        let drawn = |layer: usize| {
            let mut random = ChaCha8Rng::seed_from_u64(layer as u64);
            let neurons = 0..model.neuron_shape().neurons(layer);
            neurons.map(|_| random.next_u32()).collect()
        };
        return Ok(layers.map(drawn).collect());
    }
    let has_thresholds = model.weights.layers.iter().any(|layer| layer.activation_threshold.is_some());
    let (sparsity, phase) =
        if has_thresholds { (Sparsity::Threshold, Phase::Decode) } else { (dense.sparsity, dense.phase) };
    let method = Method { sparsity, phase, ..dense };
    let activity = perplexity(forward, text, method, "", control)?.activity;
    let counts: Vec<Vec<u32>> = layers.map(|layer| activity.counts(layer).to_vec()).collect();
    if counts.iter().all(|counts| counts.windows(2).all(|pair| pair[0] == pair[1])) {
        let expected = "neurons that fire at different rates: neurons of ReLU, or of gates with thresholds from \
                        `thermocline prepare`";
        return Err(Error::invalid("model to prune", expected, "neurons that all fire equally often"));
    }
    Ok(match order {
        PruneOrder::Hot => {
            counts.into_iter().map(|counts| counts.into_iter().map(|it| u32::MAX - it).collect()).collect()
        }
        PruneOrder::Cold | PruneOrder::Random => counts,
    })
}

/// Returns the shift of a layer's threshold that the fraction `recall` of `sample` reaches.
fn shift_for(model: &Model, sample: &WeightedSample, layer: usize, recall: f64) -> Option<f32> {
    let threshold = model.weights.layers.get(layer)?.predictor.as_ref()?.threshold;
    Some(sample.below(1.0 - recall)? - threshold)
}

/// A bounded sample of weighted numbers. A full sample drops every second number and then keeps
/// half as many new numbers.
#[derive(Debug, Default)]
pub(super) struct WeightedSample {
    kept: Vec<(f32, f32)>,
    /// Numbers to skip before the next number is kept.
    wait: u32,
    /// Numbers skipped between two kept numbers.
    stride: u32,
}

/// Most kept numbers.
const MOST: usize = 1 << 16;

impl WeightedSample {
    pub fn push(&mut self, value: f32, weight: f32) {
        if self.wait > 0 {
            self.wait -= 1;
            return;
        }
        self.wait = self.stride;
        self.kept.push((value, weight));
        if self.kept.len() == MOST {
            let mut at = 0;
            self.kept.retain(|_| {
                at += 1;
                at % 2 == 0
            });
            self.stride = 2 * self.stride + 1;
            self.wait = self.stride;
        }
    }

    /// Returns the largest number below which at most `fraction` of the weight lies; `None` without
    /// numbers.
    pub fn below(&self, fraction: f64) -> Option<f32> {
        let mut sorted = self.kept.clone();
        sorted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let wanted = fraction * sorted.iter().map(|(_, weight)| f64::from(*weight)).sum::<f64>();
        let mut sum = 0.0;
        let found = sorted.iter().find(|(_, weight)| {
            sum += f64::from(*weight);
            sum > wanted
        });
        found.or(sorted.last()).map(|(value, _)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_quantiles_match_those_of_all_values() {
        let mut sample = WeightedSample::default();
        assert_eq!(sample.below(0.5), None);
        for value in [3.0, 1.0, 2.0, 4.0] {
            sample.push(value, 1.0);
        }
        assert_eq!(
            [0.0, 0.2, 0.25, 0.5, 1.0].map(|fraction| sample.below(fraction)),
            [1.0, 1.0, 2.0, 3.0, 4.0].map(Some)
        );
        let mut sample = WeightedSample::default();
        (0..1_000_000u32).for_each(|i| sample.push((i.wrapping_mul(2_654_435_769) >> 8) as f32 / 16_777_216.0, 1.0));
        assert!(sample.kept.len() <= MOST && sample.kept.len() > MOST / 4);
        for fraction in [0.1, 0.5, 0.95] {
            let got = f64::from(sample.below(fraction).unwrap());
            assert!((got - fraction).abs() < 0.01, "{got} {fraction}");
        }
        // A token with few firings has the same weight as a token with many.
        let mut sample = WeightedSample::default();
        (0..90).for_each(|_| sample.push(1.0, 1.0 / 90.0));
        sample.push(5.0, 1.0);
        assert_eq!((sample.below(0.4), sample.below(0.6)), (Some(1.0), Some(5.0)));
    }
}
