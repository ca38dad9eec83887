//! Options of synthetic models.

use std::path::PathBuf;

use super::{draft_head, shape::SynthShape};
use thermocline_base::error::{Error, Result};
use thermocline_formats::quant::{QUANTISABLE, TensorType};

/// Options of [`super::generate`]. Start from [`SynthOptions::new`] and change fields.
#[derive(Debug, Clone)]
pub struct SynthOptions {
    /// Sizes and architecture.
    pub shape: SynthShape,
    /// Number of layers; default: the shape's.
    pub layers: Option<usize>,
    /// Type of all matrices; Q8_0 for matrices whose rows are not whole blocks of it.
    pub ty: TensorType,
    /// The file to write.
    pub out: PathBuf,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Mean fraction of a layer's neurons that fire at a token, above 0 and at most 0.95. In an MoE
    /// layer, the fraction of the chosen experts' neurons. ReLU shapes only.
    pub active: f64,
    /// Fraction of a layer's neurons that makes `hot_firings` of its firings.
    pub hot_fraction: f64,
    /// Fraction of a layer's firings that its hot neurons make.
    pub hot_firings: f64,
    /// True to store activation predictors for ReLU shapes. With predictors, the file is a
    /// PowerInfer file (magic `PWRI`, `ffn_down_t`, `fc1`, `fc2`). Without them, it is an ordinary
    /// GGUF, which llama.cpp loads if it supports the architecture. It then runs the model with
    /// SiLU, at the same cost. MoE models never have predictors.
    pub predictor: bool,
    /// Rank of the predictors: a multiple of 32, at least 96. Default: a quarter of the model's
    /// width, at least 128.
    pub predictor_rank: Option<usize>,
    /// Recall of the predictors, above 0 and below 1.
    pub recall: f64,
    /// Fraction of tokens at which a draft head (multi-token prediction) agrees with the model,
    /// above 0 and at most 1; default: no head. Shapes of Qwen 3.5 only. The model then has an
    /// output matrix of its own, and its greedy text counts token ids upwards.
    pub agreement: Option<f64>,
    /// Number of threads; default: one per core.
    pub threads: Option<usize>,
}

impl SynthOptions {
    /// Returns the default options: Q4_0, seed 0, 10 % active, 26 % of the neurons making 80 % of
    /// the firings, predictors with a recall of 95 %.
    pub fn new(shape: SynthShape, out: impl Into<PathBuf>) -> Self {
        SynthOptions {
            shape,
            layers: None,
            ty: TensorType::Q4_0,
            out: out.into(),
            seed: 0,
            active: 0.10,
            hot_fraction: 0.26,
            hot_firings: 0.80,
            predictor: true,
            predictor_rank: None,
            recall: 0.95,
            agreement: None,
            threads: None,
        }
    }

    /// Checks the options that do not depend on the power law.
    pub(super) fn check(&self) -> Result<()> {
        let within = |what, value: f64, low: f64, high: f64| match value > low && value < high {
            true => Ok(()),
            false => Err(Error::invalid(what, format!("a number between {low} and {high}"), value)),
        };
        if !QUANTISABLE.contains(&self.ty) {
            return Err(Error::unsupported(
                "type to quantise to",
                self.ty.name(),
                QUANTISABLE.map(TensorType::name).join(", "),
            ));
        }
        if let Some(layers) = self.layers.filter(|layers| !(1..=1024).contains(layers)) {
            return Err(Error::invalid("layers", "1 to 1024", layers));
        }
        if let Some(agreement) = self.agreement {
            draft_head::check(&self.shape)?;
            if !(agreement > 0.0 && agreement <= 1.0) {
                return Err(Error::invalid("agreement of the draft head", "above 0 and at most 1", agreement));
            }
        }
        if self.shape.relu() {
            within("active", self.active, 0.0, 0.95)?;
            within("hot fraction", self.hot_fraction, 0.0, 1.0)?;
            within("hot firings", self.hot_firings, 0.0, 1.0)?;
            within("recall", self.recall, 0.0, 0.9999)?;
            let rank = self.predictor_rank.unwrap_or(128);
            if !rank.is_multiple_of(32) || !(96..=16384).contains(&rank) {
                return Err(Error::invalid("predictor rank", "a multiple of 32 from 96 to 16384", rank));
            }
            if let (Some(rank), Some(_)) = (self.predictor_rank, self.shape.moe) {
                return Err(Error::invalid("predictor rank", "no rank, because an MoE model has no predictors", rank));
            }
        }
        Ok(())
    }
}
