//! One layer of a sidecar.

use super::{PreparedBundles, bundles::BundleRows};
use crate::sparsity::profile::smallest_fraction;
use thermocline_formats::format::Matrix;
use thermocline_model::{InputCurves, PredictorInput, PredictorKind, PredictorQuality, SiteCurve};

/// Results of preparing one layer.
#[derive(Debug, Clone, Default)]
pub struct PreparedLayer {
    /// Fraction of tokens at which each neuron fires, `[n_ff]`. In an MoE layer, fraction of tokens
    /// that choose each expert, `[experts]`.
    pub frequency: Option<Vec<f32>>,
    /// Predictor of the neurons that fire.
    pub predictor: Option<PreparedPredictor>,
    /// Activation threshold of the threshold mode.
    pub activation_threshold: Option<PreparedThreshold>,
    /// Scales of the gates of a dense FFN, `[n_ff]`. The threshold mode multiplies the gates by
    /// their scales, and compares the products with the threshold.
    pub gate_scales: Option<Vec<f32>>,
    /// Thresholds of the layer's product inputs.
    pub inputs: Option<InputCurves>,
    /// Neuron-major down projection.
    pub down: Option<PreparedDown>,
    /// Rows that are stored side by side with the rows of `down`.
    pub bundles: Option<PreparedBundles>,
    /// Neurons of an MoE layer's experts.
    pub experts: Option<PreparedExperts>,
}

/// Neurons of an MoE layer's experts.
#[derive(Debug, Clone, Default)]
pub struct PreparedExperts {
    /// Neurons per expert.
    pub width: usize,
    /// Fraction of tokens at which each neuron fires, `[experts, width]`.
    pub frequency: Vec<f32>,
    /// Fraction of tokens at which each neuron of the shared expert fires. Empty without a shared
    /// expert.
    pub shared: Vec<f32>,
    /// Neuron-major down projections of all experts, then of the shared expert. Empty if none are
    /// stored.
    pub downs: Vec<Matrix>,
    /// Largest error of the down projections ([`PreparedDown::error`]).
    pub down_error: f32,
}

impl PreparedExperts {
    /// Returns the frequencies of all neurons, expert by expert, with the shared expert last.
    pub fn frequencies(&self) -> impl Iterator<Item = f32> {
        self.frequency.iter().chain(&self.shared).copied()
    }
}

/// A new predictor, or the model file's own predictor with new figures.
#[derive(Debug, Clone)]
pub struct PreparedPredictor {
    /// Weights; `None` for the model file's own predictor. The bias of rows belongs to the model
    /// and is not stored here.
    pub kind: Option<PredictorKind>,
    /// Vector that the predictor reads.
    pub input: PredictorInput,
    /// Score threshold. Neurons with at least this score are selected.
    pub threshold: f32,
    /// Figures on held-out text.
    pub quality: PredictorQuality,
}

/// A threshold on the magnitude of the gate's activation, times the gate's scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PreparedThreshold {
    /// Neurons at or below this magnitude are skipped.
    pub value: f32,
    /// Fraction of the neurons above the threshold.
    pub density: f32,
}

/// A neuron-major down projection: each row is a neuron.
#[derive(Debug, Clone)]
pub struct PreparedDown {
    /// `[n_ff, d]` weights.
    pub weight: Matrix,
    /// Root mean square of the difference from the model's weights, relative to the root mean
    /// square of the model's weights.
    pub error: f32,
}

impl PreparedLayer {
    /// True if the layer has a part that only dense FFNs have.
    pub(super) fn has_dense_part(&self) -> bool {
        self.predictor.is_some() || self.down.is_some() || self.bundles.is_some()
    }

    /// Returns the rows of the layer's bundles, if it has bundles.
    pub(super) fn bundle_rows(&self) -> Option<BundleRows> {
        Some(self.bundles.as_ref()?.with(&self.down.as_ref()?.weight))
    }

    /// Returns the bytes of a neuron's bundle; `None` without bundles.
    pub fn bundle_bytes(&self) -> Option<usize> {
        self.bundle_rows().map(|rows| rows.shape()[1])
    }

    /// Returns the layer's matrices. Rows in bundles are left out, except the down projection.
    pub(super) fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let downs = self.down.iter().map(|down| &down.weight);
        let experts = self.experts.iter().flat_map(|experts| &experts.downs);
        self.predictor.iter().flat_map(PreparedPredictor::matrices).chain(downs).chain(experts)
    }

    /// Returns the bytes of the layer's tensors in the file.
    pub fn bytes(&self) -> u64 {
        let curve = |curve: &SiteCurve| curve.importance.len() + curve.thresholds.len();
        let inputs: usize = self.inputs.iter().flat_map(|inputs| inputs.sites.iter().flatten()).map(curve).sum();
        let experts = self.experts.as_ref().map_or(0, |experts| experts.frequencies().count());
        let vectors: usize = [&self.frequency, &self.gate_scales].into_iter().flatten().map(Vec::len).sum();
        let floats = vectors + experts + inputs;
        let others = self.bundle_rows().map_or(0, |rows| {
            let [neurons, record] = rows.shape();
            (neurons * record).saturating_sub(rows.down.byte_len())
        });
        (floats * size_of::<f32>() + others) as u64 + bytes_of(self.matrices())
    }

    /// Returns the mean fraction of the neurons that fire. In an MoE layer, of the chosen experts'
    /// neurons.
    pub fn density(&self) -> Option<f32> {
        let frequency = self.frequency.as_ref().filter(|frequency| !frequency.is_empty())?;
        if let Some(experts) = &self.experts {
            let chosen: f64 = frequency.iter().map(|&f| f64::from(f)).sum();
            let computed = chosen * experts.width as f64 + experts.shared.len() as f64;
            let fires: f64 = experts.frequencies().map(f64::from).sum();
            return (computed > 0.0).then(|| (fires / computed) as f32);
        }
        let sum: f64 = frequency.iter().map(|&f| f64::from(f)).sum();
        Some((sum / frequency.len() as f64) as f32)
    }

    /// Returns the smallest fraction of the neurons that produce the fraction `of_firings` of the
    /// firings.
    pub fn skew(&self, of_firings: f64) -> Option<f64> {
        if let Some(experts) = &self.experts {
            return Some(smallest_fraction(experts.frequencies().map(f64::from).collect(), of_firings));
        }
        let frequency = self.frequency.as_ref().filter(|frequency| !frequency.is_empty())?;
        Some(smallest_fraction(frequency.iter().map(|&often| f64::from(often)).collect(), of_firings))
    }
}

impl PreparedPredictor {
    /// Returns the predictor's matrices; none for the model file's own predictor.
    fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let both = match &self.kind {
            Some(PredictorKind::LowRank { fc1, fc2 }) => [Some(fc1), Some(fc2)],
            Some(PredictorKind::Rows { rows, .. }) => [Some(rows), None],
            None => [None, None],
        };
        both.into_iter().flatten()
    }

    /// Returns the bytes of the weights; 0 for the model file's own predictor.
    pub fn bytes(&self) -> u64 {
        bytes_of(self.matrices())
    }

    /// Returns the rank of a low-rank predictor.
    pub fn rank(&self) -> Option<usize> {
        match &self.kind {
            Some(PredictorKind::LowRank { fc1, .. }) => Some(fc1.rows()),
            _ => None,
        }
    }

    /// Returns the name in files and tables.
    pub fn kind_name(&self) -> &'static str {
        match &self.kind {
            Some(PredictorKind::LowRank { .. }) => "low_rank",
            Some(PredictorKind::Rows { .. }) => "rows",
            None => "model",
        }
    }
}

fn bytes_of<'m>(matrices: impl Iterator<Item = &'m Matrix>) -> u64 {
    matrices.map(|matrix| matrix.byte_len() as u64).sum()
}

/// Returns the name of a predictor's input in files.
pub(super) fn input_name(input: PredictorInput) -> &'static str {
    match input {
        PredictorInput::Residual => "residual",
        PredictorInput::Normed => "normed",
    }
}
