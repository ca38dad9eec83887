//! The end of a model that embeds or ranks texts: how the hidden states of a text become a vector
//! or a score.

use super::{Linear, Norm, NormKind};
use crate::load::Loader;
use thermocline_base::error::{Error, Result};
use thermocline_cpu::{Cpu, ops::Activation};

/// How the hidden states of a text's tokens become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pooling {
    /// The mean over the tokens.
    #[default]
    Mean,
    /// The hidden state of the first token (BERT's CLS).
    First,
    /// The hidden state of the last token.
    Last,
}

impl Pooling {
    /// Every pooling, with its name.
    pub const NAMED: [(&'static str, Pooling); 3] =
        [("mean", Pooling::Mean), ("cls", Pooling::First), ("last", Pooling::Last)];

    /// Returns the pooling with this name: `mean`, `cls` or `last`.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::NAMED.iter().find(|(known, _)| *known == name).map(|(_, pooling)| *pooling)
    }

    /// Returns GGUF's number.
    pub(crate) fn number(self) -> u32 {
        match self {
            Pooling::Mean => 1,
            Pooling::First => 2,
            Pooling::Last => 3,
        }
    }
}

/// GGUF's number for the pooling of a reranker.
pub(crate) const RANK: u32 = 4;

/// Weights after the pooling.
#[derive(Debug, Clone, Default)]
pub struct EmbeddingHead {
    /// Linear maps of an embedding, one after the other (EmbeddingGemma).
    pub dense: Vec<Linear>,
    /// Classifier of a reranker.
    pub classifier: Option<Classifier>,
}

/// Classifier of a reranker: `output(norm(activation(dense x)))`.
#[derive(Debug, Clone)]
pub struct Classifier {
    /// `[d, d]`, followed by `activation`.
    pub dense: Option<Linear>,
    /// Activation after `dense`.
    pub activation: ClassifierActivation,
    /// Norm after the activation (ModernBERT).
    pub norm: Option<Norm>,
    /// `[labels, d]`: one label, or `yes` and `no`.
    pub output: Linear,
}

/// Activation of a classifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassifierActivation {
    /// `tanh x` (BERT)
    Tanh,
    /// `0.5 x (1 + erf(x / sqrt 2))` (ModernBERT)
    Gelu,
}

impl EmbeddingHead {
    /// Loads the weights that the file has.
    pub(crate) fn load(loader: &Loader<'_>, d_model: usize, norm: NormKind) -> Result<Self> {
        let (mut dense, mut width) = (Vec::new(), d_model);
        for stem in ["dense_2", "dense_3"] {
            if let Some(rows) = loader.rows(&format!("{stem}.weight")) {
                dense.push(loader.linear(stem, rows, width)?);
                width = rows;
            }
        }
        let (stem, labels) = ("cls.output", loader.rows("cls.output.weight"));
        let classifier = match labels {
            None => None,
            Some(labels @ 1..=2) if labels == 1 || !loader.has("cls.weight") => Some(Classifier {
                dense: loader.has("cls.weight").then(|| loader.linear("cls", d_model, d_model)).transpose()?,
                activation: match loader.arch {
                    "modernbert" => ClassifierActivation::Gelu,
                    _ => ClassifierActivation::Tanh,
                },
                norm: loader.optional_norm("cls.norm", norm, d_model)?,
                output: loader.linear(stem, labels, d_model)?,
            }),
            Some(labels) => {
                return Err(loader.tensor_error(
                    "cls.output.weight",
                    "1 label, or yes and no, because it ranks texts",
                    labels,
                ));
            }
        };
        Ok(EmbeddingHead { dense, classifier })
    }

    /// Returns the length of an embedding whose pooled states have `d_model` numbers.
    pub fn width(&self, d_model: usize) -> usize {
        self.dense.last().map_or(d_model, |dense| dense.weight.rows())
    }

    /// Returns the embedding of pooled hidden states, `[d_model]`, before it is scaled to length 1.
    pub fn embedding(&self, cpu: &Cpu, pooled: Vec<f32>) -> Vec<f32> {
        self.dense.iter().fold(pooled, |x, dense| product(cpu, dense, &x))
    }
}

impl Classifier {
    /// Returns the relevance of a pair of texts with the pooled hidden state `state`, from 0 to 1.
    /// `norm_eps` is the model's.
    ///
    /// # Errors
    /// [`Error::NotFinite`] if the relevance is not finite.
    pub fn relevance(&self, cpu: &Cpu, mut state: Vec<f32>, norm_eps: f32) -> Result<f32> {
        if let Some(dense) = &self.dense {
            state = product(cpu, dense, &state);
            match self.activation {
                ClassifierActivation::Tanh => state.iter_mut().for_each(|x| *x = x.tanh()),
                ClassifierActivation::Gelu => cpu.activate(Activation::GeluErf, &mut state, None),
            }
        }
        if let Some(norm) = &self.norm {
            cpu.layer_norm(&mut state, None, &norm.weight, norm.bias.as_deref(), norm.eps(norm_eps));
        }
        let relevance = match product(cpu, &self.output, &state)[..] {
            [yes, no] => 1.0 / (1.0 + (no - yes).exp()),
            [logit, ..] => 1.0 / (1.0 + (-logit).exp()),
            [] => f32::NAN,
        };
        match relevance.is_finite() {
            true => Ok(relevance),
            false => Err(Error::NotFinite { what: "relevance", got: relevance.to_string() }),
        }
    }
}

/// `linear(x)`
fn product(cpu: &Cpu, linear: &Linear, x: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; linear.weight.rows()];
    cpu.matmul(&mut [linear.job(&mut out)], x, 1);
    out
}
