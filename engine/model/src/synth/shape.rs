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

/// Function that describes an architecture at a shape: further metadata keys, and the optional
/// tensors of its models.
pub(super) type DescribeShape = fn(&SynthShape, &mut ShapeDraft) -> Result<()>;

/// The sizes of a model. The architecture's family determines its tensors.
#[derive(Debug, Clone, Copy)]
pub struct SynthShape {
    /// Name on the command line.
    pub name: &'static str,
    /// GGUF's name of the architecture.
    pub architecture: &'static str,
    /// Activation of the FFNs. With a sparse activation, firings follow the power law. With
    /// another, no neuron is ever silent.
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
    /// Number of neurons of the shared expert, if there is one.
    pub shared_ff: Option<usize>,
    /// True if the embedding is also the output matrix.
    pub tied: bool,
    pub(super) describe: DescribeShape,
}

impl SynthShape {
    /// Returns the shape with this name.
    pub fn named(name: &str) -> Result<SynthShape> {
        shapes().iter().copied().find(|shape| shape.name == name).ok_or_else(|| {
            Error::unsupported("shape", name, shapes().iter().map(|shape| shape.name).collect::<Vec<_>>().join(", "))
        })
    }

    /// True if neurons are silent at most tokens. Their firings then follow the power law.
    pub fn relu(&self) -> bool {
        self.activation.is_sparse()
    }

    /// Returns the number of experts per layer; 1 for dense shapes.
    pub(super) fn experts(&self) -> usize {
        self.moe.map_or(1, |moe| moe.experts)
    }

    /// Returns the elements per head, for shapes whose heads together are as wide as the residual
    /// stream.
    pub(super) fn narrow_head(&self) -> usize {
        self.d_model / self.n_head.max(1)
    }
}
