//! Sweeps measure accuracy over the degree of sparsity.

use std::sync::Arc;

use serde::Serialize;

use super::{
    Base, Control, Corpus, Divergence, Method, Phase, Walk, divergence,
    levels::{LevelChange, levels},
};
use thermocline_base::error::Result;
use thermocline_cpu::Cpu;
use thermocline_model::Model;
use thermocline_run::runtime::{Forward, KvType, ThresholdCorrection};

/// Figures of one level.
#[derive(Debug, Clone, Serialize)]
pub struct SweepPoint {
    /// Value of the varied quantity ([`Walk::label`]).
    pub level: f64,
    /// Fraction of neurons that fired and were computed.
    pub active: Option<f64>,
    /// Fraction of neurons that the predictors selected.
    pub predicted: Option<f64>,
    /// Divergence from the dense model.
    #[serde(flatten)]
    pub divergence: Divergence,
}

/// Levels of a sweep, with the texts and conditions of the measurement.
#[derive(Debug, Clone, Copy)]
pub struct SweepSetup<'a> {
    /// The levels.
    pub walk: &'a Walk,
    /// Text to score.
    pub corpus: &'a Corpus,
    /// Text for measuring the thresholds that depend on firings. It should differ from `corpus`.
    pub calibration: &'a Corpus,
    /// Type of the KV cache.
    pub kv_type: KvType,
    /// Name of the device, for the report.
    pub device: &'a str,
}

/// Measures every level of a sweep, token by token. `reopen` opens a model with other activation
/// thresholds in the way that `forward`'s model is open. `done` is called with every point.
///
/// # Errors
/// As [`divergence`]; [`Error::Invalid`](thermocline_base::error::Error::Invalid) for a level out
/// of range, or a model without predictors or gates.
pub fn sweep(
    forward: &mut Forward,
    cpu: &Cpu,
    setup: &SweepSetup<'_>,
    reopen: &mut dyn FnMut(Arc<Model>) -> Result<Forward>,
    control: &mut dyn Control,
    done: &mut dyn FnMut(&SweepPoint),
) -> Result<Vec<SweepPoint>> {
    let SweepSetup { walk, corpus, calibration, kv_type, device } = *setup;
    let method = Method { sparsity: walk.mode(), phase: Phase::Decode, kv_type };
    let mut points = Vec::new();
    for level in levels(forward, cpu, calibration, method, walk, control)? {
        let divergence = match &level.change {
            LevelChange::Inputs(inputs) if *inputs > 0.0 => {
                let mut model = with_thresholds(forward.model(), &[]);
                model.skip_inputs(*inputs)?;
                divergence(&mut reopen(Arc::new(model))?, corpus, method, Base::Dense, device, control)?
            }
            LevelChange::Inputs(_) => divergence(forward, corpus, method, Base::Dense, device, control)?,
            LevelChange::Predictors(correction) => {
                forward.correct_thresholds(correction.clone());
                let of = divergence(forward, corpus, method, Base::Dense, device, control);
                forward.correct_thresholds(ThresholdCorrection::NONE);
                of?
            }
            LevelChange::Activations(thresholds) => {
                let model = Arc::new(with_thresholds(forward.model(), thresholds));
                divergence(&mut reopen(model)?, corpus, method, Base::Dense, device, control)?
            }
            LevelChange::Neurons(neurons) => {
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

/// Returns `model` with other activation thresholds. The matrices are shared.
fn with_thresholds(model: &Model, thresholds: &[Option<f32>]) -> Model {
    let mut model = model.clone();
    for (layer, threshold) in model.weights.layers.iter_mut().zip(thresholds) {
        layer.activation_threshold = *threshold;
    }
    model
}
