//! How much to leave out, in steps: what has to be set in every layer for a wanted level.

use std::sync::Arc;

use super::{Control, Corpus, Method, Phase, recall::Judge};
use crate::{
    cpu::Cpu,
    error::{Error, Result},
    model::{Forward, Model, Sparsity, Steering},
};

/// What is walked.
#[derive(Debug, Clone, PartialEq)]
pub enum Walk {
    /// Thresholds of predictors, moved by so much in every layer.
    Shift(Vec<f64>),
    /// Thresholds of predictors, set in every layer so that this share of the firings is found.
    Recall(Vec<f64>),
    /// Cuts on the gates' activations, set in every layer so that this share of the neurons falls below.
    Sparsity(Vec<f64>),
}

impl Walk {
    /// What of a model it needs.
    pub fn mode(&self) -> Sparsity {
        match self {
            Walk::Shift(_) | Walk::Recall(_) => Sparsity::Predicted,
            Walk::Sparsity(_) => Sparsity::Threshold,
        }
    }

    /// What its numbers are.
    pub fn label(&self) -> &'static str {
        match self {
            Walk::Shift(_) => "threshold shift",
            Walk::Recall(_) => "recall target",
            Walk::Sparsity(_) => "sparsity",
        }
    }

    /// The numbers.
    pub fn values(&self) -> &[f64] {
        let (Walk::Shift(values) | Walk::Recall(values) | Walk::Sparsity(values)) = self;
        values
    }
}

/// One step.
#[derive(Debug, Clone)]
pub struct Level {
    /// Its number in the [`Walk`].
    pub value: f64,
    /// What is added to the predictors' thresholds.
    pub steering: Steering,
    /// Every layer's cut, where they are walked.
    pub cuts: Option<Vec<Option<f32>>>,
}

/// The steps of `walk`. Where they follow from what a text does, `text` is it: computed densely, in chunks.
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
        return Err(Error::invalid("step of a sweep", "a finite shift, or a share from 0 to 1", wrong));
    }
    let mut judge = Judge::of(cpu, &model, walk.mode(), Some(0.0))?;
    if !matches!(walk, Walk::Shift(_)) {
        let dense = Method { sparsity: Sparsity::Dense, phase: Phase::Prefill, ..method };
        judge.read(forward, text, dense, control)?;
    }
    let of_layers = |each: &dyn Fn(&Sample, usize) -> Option<f32>| -> Vec<Option<f32>> {
        let layers = judge.layers.iter().enumerate();
        layers.map(|(at, layer)| layer.as_ref().and_then(|layer| each(&layer.sample, at))).collect()
    };
    Ok(walk
        .values()
        .iter()
        .map(|value| match walk {
            Walk::Shift(_) => {
                let shift = vec![*value as f32; model.config.n_layer()];
                Level { value: *value, steering: Steering { shift, audited: None }, cuts: None }
            }
            Walk::Recall(_) => {
                let shifts = of_layers(&|sample, at| shift_for(&model, sample, at, *value));
                let shift = shifts.into_iter().map(Option::unwrap_or_default).collect();
                Level { value: *value, steering: Steering { shift, audited: None }, cuts: None }
            }
            Walk::Sparsity(_) => {
                let cuts = of_layers(&|sample, _| sample.below(*value));
                Level { value: *value, steering: Steering::default(), cuts: Some(cuts) }
            }
        })
        .collect())
}

/// How far a layer's threshold has to move for a share `recall` of `sample` to reach it.
fn shift_for(model: &Model, sample: &Sample, layer: usize, recall: f64) -> Option<f32> {
    let threshold = model.weights.layers.get(layer)?.predictor.as_ref()?.threshold;
    Some(sample.below(1.0 - recall)? - threshold)
}

/// Weighted numbers of which only so many are kept: every second of them is dropped, and of those still to come, whenever there
/// are too many.
#[derive(Debug, Default)]
pub(super) struct Sample {
    kept: Vec<(f32, f32)>,
    /// Numbers to pass over before the next is kept, and how many are passed over each time.
    wait: u32,
    stride: u32,
}

/// Numbers kept at most.
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

    /// The largest number below which no more than `share` of the weight is; `None` of nothing.
    pub fn below(&self, share: f64) -> Option<f32> {
        let mut sorted = self.kept.clone();
        sorted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let wanted = share * sorted.iter().map(|(_, weight)| f64::from(*weight)).sum::<f64>();
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
    fn quantiles_of_what_is_kept_are_those_of_all() {
        let mut sample = Sample::default();
        assert_eq!(sample.below(0.5), None);
        for value in [3.0, 1.0, 2.0, 4.0] {
            sample.push(value, 1.0);
        }
        assert_eq!([0.0, 0.2, 0.25, 0.5, 1.0].map(|share| sample.below(share)), [1.0, 1.0, 2.0, 3.0, 4.0].map(Some));
        let mut sample = Sample::default();
        (0..1_000_000u32).for_each(|i| sample.push((i.wrapping_mul(2_654_435_769) >> 8) as f32 / 16_777_216.0, 1.0));
        assert!(sample.kept.len() <= MOST && sample.kept.len() > MOST / 4);
        for share in [0.1, 0.5, 0.95] {
            let got = f64::from(sample.below(share).unwrap());
            assert!((got - share).abs() < 0.01, "{got} {share}");
        }
        // A token with few firings weighs as much as one with many.
        let mut sample = Sample::default();
        (0..90).for_each(|_| sample.push(1.0, 1.0 / 90.0));
        sample.push(5.0, 1.0);
        assert_eq!((sample.below(0.4), sample.below(0.6)), (Some(1.0), Some(5.0)));
    }
}
