//! The sizes of a model, by name.

use serde::Serialize;

use super::{draft::ShapeDraft, shapes::shapes};
use crate::Activation;
use thermocline_base::error::{Error, Result};

/// Numbers of experts of an MoE model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ExpertCounts {
    /// Experts per layer.
    pub experts: usize,
    /// Experts per token.
    pub used: usize,
}

/// Description of an architecture at a shape: further metadata keys, and the optional tensors that its models have.
pub(super) type DescribeShape = fn(&SynthShape, &mut ShapeDraft) -> Result<()>;

/// The sizes of a model. Its tensors are those that the architecture's family reads.
#[derive(Debug, Clone, Copy)]
pub struct SynthShape {
    /// Name on the command line.
    pub name: &'static str,
    /// GGUF's name of the architecture.
    pub architecture: &'static str,
    /// Activation of the FFNs. Firings of a sparse one follow the power law; with another, no neuron is ever silent.
    pub activation: Activation,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Number of layers.
    pub n_layer: usize,
    /// Query heads.
    pub n_head: usize,
    /// Key/value heads.
    pub n_kv_head: usize,
    /// Neurons per layer; in MoE shapes, per expert.
    pub n_ff: usize,
    /// Size of the vocabulary.
    pub n_vocab: usize,
    /// Context length.
    pub context: usize,
    /// Experts, in MoE shapes.
    pub moe: Option<ExpertCounts>,
    /// Neurons of the expert that every token uses besides, where there is one.
    pub shared_ff: Option<usize>,
    /// True if the embedding is the output matrix too.
    pub tied: bool,
    pub(super) describe: DescribeShape,
}

impl SynthShape {
    /// The shape with this name.
    pub fn named(name: &str) -> Result<SynthShape> {
        shapes().iter().copied().find(|shape| shape.name == name).ok_or_else(|| {
            Error::unsupported("shape", name, shapes().iter().map(|shape| shape.name).collect::<Vec<_>>().join(", "))
        })
    }

    /// True if neurons are silent at most tokens: their firings follow the power law.
    pub fn relu(&self) -> bool {
        self.activation.is_sparse()
    }

    /// Experts per layer; 1 for dense shapes.
    pub(super) fn experts(&self) -> usize {
        self.moe.map_or(1, |moe| moe.experts)
    }

    /// Elements per head, where those of all heads together are the residual stream's.
    pub(super) fn narrow_head(&self) -> usize {
        self.d_model / self.n_head.max(1)
    }
}
