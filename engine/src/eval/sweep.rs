//! How much accuracy how much sparsity costs.

use std::sync::Arc;

use serde::Serialize;

use super::{Base, Control, Corpus, Divergence, Method, Phase, Walk, divergence, levels::levels};
use crate::{
    cpu::Cpu,
    error::Result,
    model::{Forward, KvType, Model, Steering},
};

/// One step of a sweep.
#[derive(Debug, Clone, Serialize)]
pub struct SweepPoint {
    /// What was set: a shift, a recall target or a share of neurons, as [`Walk::label`] says.
    pub level: f64,
    /// Share of neurons that fired and were computed.
    pub active: Option<f64>,
    /// Share of neurons the predictors let through.
    pub predicted: Option<f64>,
    /// What came of it, against the dense model.
    #[serde(flatten)]
    pub divergence: Divergence,
}

/// Measures every step of `walk` on `corpus`, token by token. Levels that follow from what a text does are taken from
/// `calibration`, which should be another text, or another part of it. `reopen` puts a model with other cuts where
/// `forward`'s is; `done` hears of every point.
///
/// # Errors
/// As [`divergence`]; [`Error::Invalid`](crate::Error::Invalid) for a step that is no level, or a model that has nothing to
/// walk.
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
        let divergence = match &level.cuts {
            None => {
                forward.steer(&level.steering);
                let of = divergence(forward, corpus, method, Base::Dense, device, control);
                forward.steer(&Steering::default());
                of?
            }
            Some(cuts) => {
                let model = Arc::new(with_cuts(forward.model(), cuts));
                divergence(&mut reopen(model)?, corpus, method, Base::Dense, device, control)?
            }
        };
        let (active, predicted) = (divergence.activity.active(), divergence.activity.predicted());
        let point = SweepPoint { level: level.value, active, predicted, divergence };
        done(&point);
        points.push(point);
    }
    Ok(points)
}

/// `model` with other cuts; the matrices are shared.
fn with_cuts(model: &Model, cuts: &[Option<f32>]) -> Model {
    let mut weights = model.weights.clone();
    for (layer, cut) in weights.layers.iter_mut().zip(cuts) {
        layer.cut = *cut;
    }
    Model { config: model.config.clone(), weights, checkpoint: model.checkpoint.clone() }
}
