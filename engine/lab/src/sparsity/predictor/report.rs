//! Figures of a predictor: kind, quality and cost.

use std::{fmt, time::Instant};

use serde::{Deserialize, Serialize};

use super::{
    data::{Firings, LayerData},
    metrics::Prediction,
    options::Target,
    threshold::evaluate,
};
use thermocline_base::error::Result;
use thermocline_cpu::Cpu;
use thermocline_formats::format::Matrix;
use thermocline_model::{Predictor, PredictorKind, PredictorQuality};
use thermocline_run::runtime::predictor_scores;

/// Figures of one layer's predictor, measured on held-out text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PredictorReport {
    /// Kind: `low-rank` or `rows`.
    pub kind: String,
    /// Hidden size of a low-rank predictor.
    pub rank: Option<usize>,
    /// Weight type of the matrices.
    pub tensor_type: String,
    /// Number of weights.
    pub parameters: u64,
    /// Bytes read for every token.
    pub bytes: u64,
    /// Target recall of the threshold.
    pub target: Target,
    /// Recall, precision and density.
    pub figures: Prediction,
    /// Seconds of training or building.
    pub seconds: f64,
    /// Nanoseconds to compute one token's scores on this CPU, with warm or cold caches.
    pub ns_per_token: f64,
    /// Limit that prevented a better quality, if any.
    pub limit: Option<QualityLimit>,
}

/// A limit of a predictor's quality.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QualityLimit {
    /// The parameters allowed for this layer. More would have improved the predictor.
    Parameters,
    /// The time allowed for training.
    Time,
    /// The amount of text. It is too small to measure the fraction of missed firings precisely.
    Text,
}

impl fmt::Display for QualityLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QualityLimit::Parameters => "a larger predictor would be better, but it would exceed the parameter limit",
            QualityLimit::Time => "the training reached its time limit",
            QualityLimit::Text => "more text is needed to measure the predictor precisely",
        })
    }
}

impl PredictorReport {
    /// True if both targets were met.
    pub fn reached(&self) -> bool {
        self.figures.recall >= self.target.recall && self.figures.mass_recall >= self.target.mass
    }

    /// Measures `predictor` on the tokens of `firings`. The caller fills in `seconds` and `limit`.
    pub(super) fn measure(
        cpu: &Cpu,
        data: &LayerData<'_>,
        predictor: &Predictor,
        firings: &Firings,
        target: Target,
    ) -> Result<Self> {
        let weights = |matrix: &Matrix| (matrix.rows() * matrix.cols()) as u64;
        let (kind, rank, ty, parameters) = match &predictor.kind {
            PredictorKind::LowRank { fc1, fc2 } => {
                ("low-rank", Some(fc1.rows()), fc2.ty(), weights(fc1) + weights(fc2))
            }
            PredictorKind::Rows { rows, .. } => ("rows", None, rows.ty(), weights(rows)),
        };
        Ok(PredictorReport {
            kind: kind.to_owned(),
            rank,
            tensor_type: ty.to_string(),
            parameters,
            bytes: predictor.bytes(),
            target,
            figures: evaluate(cpu, data, predictor, firings)?,
            seconds: 0.0,
            ns_per_token: time(cpu, data, predictor)?,
            limit: None,
        })
    }

    /// Returns the figures that are stored with a model's predictor.
    pub fn quality(&self) -> PredictorQuality {
        let Prediction { recall, mass_recall, precision, density, .. } = self.figures;
        PredictorQuality {
            recall: recall as f32,
            mass_recall: mass_recall as f32,
            precision: precision as f32,
            density: density as f32,
        }
    }
}

impl fmt::Display for PredictorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Prediction { recall, mass_recall, precision, density, active, tokens } = self.figures;
        write!(f, "{}", self.kind)?;
        if let Some(rank) = self.rank {
            write!(f, " {rank}")?;
        }
        write!(
            f,
            " {}: finds {:.1} % of the firings and {:.2} % of their mass, selects {:.1} % of the neurons while \
             {:.1} % fire (precision {:.0} %), takes {} KiB, measured on {tokens} tokens",
            self.tensor_type,
            100.0 * recall,
            100.0 * mass_recall,
            100.0 * density,
            100.0 * active,
            100.0 * precision,
            self.bytes.div_ceil(1024),
        )?;
        match &self.limit {
            Some(limit) => write!(f, "; {limit}"),
            None => Ok(()),
        }
    }
}

/// Returns the median time to compute one token's scores, in nanoseconds.
fn time(cpu: &Cpu, data: &LayerData<'_>, predictor: &Predictor) -> Result<f64> {
    const RUNS: usize = 9;
    let (mut inner, mut scores) = (Vec::new(), Vec::new());
    let x = vec![1.0; data.d()];
    let mut times = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let started = Instant::now();
        predictor_scores(predictor, cpu, &x, 1, &mut inner, &mut scores)?;
        times.push(started.elapsed().as_nanos() as f64);
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok(times[RUNS / 2])
}

/// Measures an unchanged predictor, for example the model file's own, on the test range of `data`.
///
/// # Errors
/// [`Error::Invalid`](thermocline_base::error::Error::Invalid) without tokens, or without the
/// residual stream for a predictor that reads it.
pub fn assess(cpu: &Cpu, data: &LayerData<'_>, predictor: &Predictor, target: Target) -> Result<PredictorReport> {
    let test = data.split()?.test;
    let norms = super::metrics::down_norms(data.ffn());
    let firings = Firings::compute(cpu, data, &norms, test, &mut |_| Ok(()))?;
    PredictorReport::measure(cpu, data, predictor, &firings, target)
}
