//! What to make.

use std::path::PathBuf;

use super::shape::Shape;
use crate::{
    error::{Error, Result},
    format::{TensorType, blocks::QUANTISABLE},
};

/// What [`super::generate`] is to make. Start from [`SynthOptions::new`] and change fields.
#[derive(Debug, Clone)]
pub struct SynthOptions {
    /// Sizes and family.
    pub shape: Shape,
    /// Layers, when fewer (or more) than the shape's.
    pub layers: Option<usize>,
    /// Type of all matrices; one whose rows are not whole blocks of it becomes Q8_0.
    pub ty: TensorType,
    /// The file to write.
    pub out: PathBuf,
    /// Everything random follows from it.
    pub seed: u64,
    /// Share of a layer's neurons that fire for an average token, above 0 and at most 0.95; of a mixture's, of the chosen experts'.
    /// ReLU shapes only.
    pub active: f64,
    /// Skew: this share of a layer's neurons ...
    pub hot_share: f64,
    /// ... makes this share of its firings.
    pub hot_firings: f64,
    /// Whether ReLU shapes carry activation predictors. With them the file is a PowerInfer file (magic `PWRI`,
    /// `ffn_down_t`, `fc1`, `fc2`); without them an ordinary GGUF, which llama.cpp loads where it knows the architecture
    /// (and runs with SiLU, at the same cost). Mixtures never carry them: what they guess are the neurons of an FFN that every
    /// token passes through.
    pub predictor: bool,
    /// Hidden size of the predictors, a multiple of 32, at least 96; default: a quarter of the model's width, at least 128.
    pub predictor_rank: Option<usize>,
    /// Share of the firing neurons the predictors find, above 0 and below 1.
    pub recall: f64,
    /// Threads; default: one per core.
    pub threads: Option<usize>,
}

impl SynthOptions {
    /// Q4_0, seed 0, 10 % active, 26 % of the neurons making 80 % of the firings, predictors with a recall of 95 %.
    pub fn new(shape: Shape, out: impl Into<PathBuf>) -> Self {
        SynthOptions {
            shape,
            layers: None,
            ty: TensorType::Q4_0,
            out: out.into(),
            seed: 0,
            active: 0.10,
            hot_share: 0.26,
            hot_firings: 0.80,
            predictor: true,
            predictor_rank: None,
            recall: 0.95,
            threads: None,
        }
    }

    /// Everything that does not need the power law to be solved.
    pub(super) fn check(&self) -> Result<()> {
        let within = |what, value: f64, low: f64, high: f64| match value > low && value < high {
            true => Ok(()),
            false => Err(Error::invalid(what, format!("a number between {low} and {high}"), value)),
        };
        if !QUANTISABLE.contains(&self.ty) {
            return Err(Error::Unsupported {
                what: "type to quantise to",
                got: self.ty.name().to_owned(),
                supported: QUANTISABLE.map(TensorType::name).join(", "),
            });
        }
        if let Some(layers) = self.layers.filter(|layers| !(1..=1024).contains(layers)) {
            return Err(Error::invalid("layers", "1 to 1024", layers));
        }
        if self.shape.relu {
            within("active", self.active, 0.0, 0.95)?;
            within("hot share", self.hot_share, 0.0, 1.0)?;
            within("hot firings", self.hot_firings, 0.0, 1.0)?;
            within("recall", self.recall, 0.0, 0.9999)?;
            let rank = self.predictor_rank.unwrap_or(128);
            if !rank.is_multiple_of(32) || !(96..=16384).contains(&rank) {
                return Err(Error::invalid("predictor rank", "a multiple of 32 from 96 to 16384", rank));
            }
            if let (Some(rank), Some(_)) = (self.predictor_rank, self.shape.mixture) {
                return Err(Error::invalid("predictor rank", "none: a mixture has no predictors", rank));
            }
        }
        Ok(())
    }
}
