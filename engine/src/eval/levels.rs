//! Levels of sparsity: the thresholds of every layer for a wanted level.

use std::sync::Arc;

use super::{Control, Corpus, Method, Phase, recall::RecallObserver};
use crate::{
    cpu::Cpu,
    error::{Error, Result},
    model::Model,
    runtime::{Forward, Sparsity, ThresholdCorrection},
};

/// Quantity that a sweep varies.
#[derive(Debug, Clone, PartialEq)]
pub enum Walk {
    /// Shifts of the predictors' thresholds, the same in every layer.
    Shift(Vec<f64>),
    /// Target recalls: every layer's predictor threshold is set to meet them.
    Recall(Vec<f64>),
    /// Fractions of skipped neurons: every layer's activation threshold is set to meet them.
    Sparsity(Vec<f64>),
}

impl Walk {
    /// Sparsity mode that it applies to.
    pub fn mode(&self) -> Sparsity {
        match self {
            Walk::Shift(_) | Walk::Recall(_) => Sparsity::Predicted,
            Walk::Sparsity(_) => Sparsity::Threshold,
        }
    }

    /// Name of the varied quantity.
    pub fn label(&self) -> &'static str {
        match self {
            Walk::Shift(_) => "threshold shift",
            Walk::Recall(_) => "recall target",
            Walk::Sparsity(_) => "sparsity",
        }
    }

    /// Values of the levels.
    pub fn values(&self) -> &[f64] {
        let (Walk::Shift(values) | Walk::Recall(values) | Walk::Sparsity(values)) = self;
        values
    }
}

/// One level of a sweep.
#[derive(Debug, Clone)]
pub struct Level {
    /// Value in the [`Walk`].
    pub value: f64,
    /// Correction of the predictors' thresholds.
    pub correction: ThresholdCorrection,
    /// Activation thresholds per layer, where they vary.
    pub activation_thresholds: Option<Vec<Option<f32>>>,
}

/// The levels of `walk`. Thresholds that follow from a text's firings are measured on `text`, computed densely in chunks.
pub(super) fn levels(
    forward: &mut Forward,
    cpu: &Cpu,
    text: &Corpus,
    method: Method,
    walk: &Walk,
    control: &mut dyn Control,
) -> Result<Vec<Level>> {
    let model = Arc::clone(forward.model());
    let whole = |value: &f64| matches!(walk, Walk::Shift(_)) && value.is_finite() || (0.0..=1.0).contains(value);
    if let Some(wrong) = walk.values().iter().find(|value| !whole(value)) {
        return Err(Error::invalid("step of a sweep", "a finite shift, or a fraction from 0 to 1", wrong));
    }
    let mut observer = RecallObserver::with_default(cpu, &model, walk.mode(), Some(0.0))?;
    if !matches!(walk, Walk::Shift(_)) {
        let dense = Method { sparsity: Sparsity::Dense, phase: Phase::Prefill, ..method };
        observer.read(forward, text, dense, control)?;
    }
    let of_layers = |each: &dyn Fn(&Sample, usize) -> Option<f32>| -> Vec<Option<f32>> {
        let layers = observer.layers.iter().enumerate();
        layers.map(|(at, layer)| layer.as_ref().and_then(|layer| each(&layer.sample, at))).collect()
    };
    Ok(walk
        .values()
        .iter()
        .map(|value| match walk {
            Walk::Shift(_) => {
                let shift = vec![*value as f32; model.config.n_layer()];
                Level {
                    value: *value,
                    correction: ThresholdCorrection { shift, recall_check: None },
                    activation_thresholds: None,
                }
            }
            Walk::Recall(_) => {
                let shifts = of_layers(&|sample, at| shift_for(&model, sample, at, *value));
                let shift = shifts.into_iter().map(Option::unwrap_or_default).collect();
                Level {
                    value: *value,
                    correction: ThresholdCorrection { shift, recall_check: None },
                    activation_thresholds: None,
                }
            }
            Walk::Sparsity(_) => {
                let thresholds = of_layers(&|sample, _| sample.below(*value));
                Level {
                    value: *value,
                    correction: ThresholdCorrection::default(),
                    activation_thresholds: Some(thresholds),
                }
            }
        })
        .collect())
}

/// Shift of a layer's threshold at which the fraction `recall` of `sample` reaches it.
fn shift_for(model: &Model, sample: &Sample, layer: usize, recall: f64) -> Option<f32> {
    let threshold = model.weights.layers.get(layer)?.predictor.as_ref()?.threshold;
    Some(sample.below(1.0 - recall)? - threshold)
}

/// A bounded sample of weighted numbers: when it is full, every second one is dropped and the sampling rate halved.
#[derive(Debug, Default)]
pub(super) struct Sample {
    kept: Vec<(f32, f32)>,
    /// Numbers to skip before the next is kept.
    wait: u32,
    /// Numbers skipped between two that are kept.
    stride: u32,
}

/// Largest number of kept values.
const MOST: usize = 1 << 16;

impl Sample {
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

    /// The largest number below which at most a `fraction` of the weight lies; `None` without numbers.
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
        let mut sample = Sample::default();
        assert_eq!(sample.below(0.5), None);
        for value in [3.0, 1.0, 2.0, 4.0] {
            sample.push(value, 1.0);
        }
        assert_eq!(
            [0.0, 0.2, 0.25, 0.5, 1.0].map(|fraction| sample.below(fraction)),
            [1.0, 1.0, 2.0, 3.0, 4.0].map(Some)
        );
        let mut sample = Sample::default();
        (0..1_000_000u32).for_each(|i| sample.push((i.wrapping_mul(2_654_435_769) >> 8) as f32 / 16_777_216.0, 1.0));
        assert!(sample.kept.len() <= MOST && sample.kept.len() > MOST / 4);
        for fraction in [0.1, 0.5, 0.95] {
            let got = f64::from(sample.below(fraction).unwrap());
            assert!((got - fraction).abs() < 0.01, "{got} {fraction}");
        }
        // A token with few firings weighs as much as one with many.
        let mut sample = Sample::default();
        (0..90).for_each(|_| sample.push(1.0, 1.0 / 90.0));
        sample.push(5.0, 1.0);
        assert_eq!((sample.below(0.4), sample.below(0.6)), (Some(1.0), Some(5.0)));
    }
}
