//! Sweeps: accuracy over the degree of sparsity.

use std::sync::Arc;

use serde::Serialize;

use super::{
    Base, Control, Corpus, Divergence, Method, Phase, Walk, divergence,
    levels::{Change, levels},
};
use crate::{
    cpu::Cpu,
    error::Result,
    model::Model,
    runtime::{Forward, KvType, ThresholdCorrection},
};

/// Figures of one level.
#[derive(Debug, Clone, Serialize)]
pub struct SweepPoint {
    /// Value of the varied quantity, see [`Walk::label`].
    pub level: f64,
    /// Fraction of neurons that fired and were computed.
    pub active: Option<f64>,
    /// Fraction of neurons that the predictors named.
    pub predicted: Option<f64>,
    /// Divergence from the dense model.
    #[serde(flatten)]
    pub divergence: Divergence,
}

/// Measures every level of `walk` on `corpus`, token by token. Thresholds that follow from firings are measured on `calibration`,
/// which should be another text. `reopen` opens a model with other activation thresholds as `forward`'s is; `done` is called with
/// every point.
///
/// # Errors
/// As [`divergence`]; [`Error::Invalid`](crate::Error::Invalid) for a level out of range, or a model without predictors or gates.
pub fn sweep(
    forward: &mut Forward,
    cpu: &Cpu,
    corpus: &Corpus,
    calibration: &Corpus,
    (walk, kv_type, device): (&Walk, KvType, &str),
    reopen: &mut dyn FnMut(Arc<Model>) -> Result<Forward>,
    control: &mut dyn Control,
    done: &mut dyn FnMut(&SweepPoint),
) -> Result<Vec<SweepPoint>> {
    let method = Method { sparsity: walk.mode(), phase: Phase::Decode, kv_type };
    let mut points = Vec::new();
    for level in levels(forward, cpu, calibration, method, walk, control)? {
        let divergence = match &level.change {
            Change::Inputs(inputs) if *inputs > 0.0 => {
                let mut model = with_thresholds(forward.model(), &[]);
                model.skip_inputs(*inputs)?;
                divergence(&mut reopen(Arc::new(model))?, corpus, method, Base::Dense, device, control)?
            }
            Change::Inputs(_) => divergence(forward, corpus, method, Base::Dense, device, control)?,
            Change::Predictors(correction) => {
                forward.correct_thresholds(correction);
                let of = divergence(forward, corpus, method, Base::Dense, device, control);
                forward.correct_thresholds(&ThresholdCorrection::default());
                of?
            }
            Change::Activations(thresholds) => {
                let model = Arc::new(with_thresholds(forward.model(), thresholds));
                divergence(&mut reopen(model)?, corpus, method, Base::Dense, device, control)?
            }
            Change::Neurons(neurons) => {
                let (model, ranks) = &**neurons;
                let mut pruned = reopen(Arc::new(model.pruned(ranks, level.value)?))?;
                divergence(&mut pruned, corpus, method, Base::Model(forward), device, control)?
            }
        };
        let (active, predicted) = (divergence.activity.active(), divergence.activity.predicted());
        let point = SweepPoint { level: level.value, active, predicted, divergence };
        done(&point);
        points.push(point);
    }
    Ok(points)
}

/// `model` with other activation thresholds; the matrices are shared.
fn with_thresholds(model: &Model, thresholds: &[Option<f32>]) -> Model {
    let mut weights = model.weights.clone();
    for (layer, threshold) in weights.layers.iter_mut().zip(thresholds) {
        layer.activation_threshold = *threshold;
    }
    Model { config: model.config.clone(), weights, checkpoint: model.checkpoint.clone() }
}
