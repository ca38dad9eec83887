//! The table of parts, with a row for each part that is always placed with its layer's attention,
//! independently of the layer's FFN. Code that counts, places, reads ahead or moves a layer uses
//! this table and does not depend on single parts.

use smallvec::SmallVec;

use super::{AltupWeights, AttentionWeights, FfnWeights, Linear, PerLayerWeights, RecurrentWeights};

/// A part of a layer, given by its weights.
#[derive(Debug, Clone, Copy)]
pub enum LayerPart<'m> {
    /// Attention, latent or not.
    Attention(&'m AttentionWeights),
    /// A recurrent mixer.
    Recurrent(&'m RecurrentWeights),
    /// Weights for the layer's own input.
    PerLayer(&'m PerLayerWeights),
    /// Maps between the streams of a model with several streams (AltUp).
    Altup(&'m AltupWeights),
    /// The dense FFN beside experts.
    DenseFfn(&'m FfnWeights),
}

impl<'m> LayerPart<'m> {
    /// Returns the matrices of the part.
    pub fn linears(self) -> SmallVec<[&'m Linear; 8]> {
        match self {
            LayerPart::Attention(of) => of.linears().collect(),
            LayerPart::Recurrent(of) => of.linears().collect(),
            LayerPart::PerLayer(of) => of.linears().into_iter().collect(),
            LayerPart::Altup(of) => of.linears().collect(),
            LayerPart::DenseFfn(of) => of.linears().collect(),
        }
    }

    /// Returns the matrices with which a token mixer, and thus a layer, begins. Empty for other
    /// parts.
    pub fn first_read(self) -> SmallVec<[&'m Linear; 3]> {
        match self {
            LayerPart::Attention(of) => of.inputs().collect(),
            LayerPart::Recurrent(of) => of.linears().take(2).collect(),
            LayerPart::PerLayer(_) | LayerPart::Altup(_) | LayerPart::DenseFfn(_) => SmallVec::new(),
        }
    }
}
