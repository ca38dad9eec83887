//! The table of parts: a row for each part that is where its layer's attention is, whatever becomes of the layer's FFN. All that
//! counts, places, reads ahead or moves a layer goes through it, and names no part.

use smallvec::SmallVec;

use super::{AltupWeights, AttentionWeights, FfnWeights, Linear, PerLayerWeights, RecurrentWeights};

/// A part of a layer, by its weights.
#[derive(Debug, Clone, Copy)]
pub enum LayerPart<'m> {
    /// Attention, latent or not.
    Attention(&'m AttentionWeights),
    /// A recurrent mixer.
    Recurrent(&'m RecurrentWeights),
    /// The use of the layer's own input.
    PerLayer(&'m PerLayerWeights),
    /// The maps between the streams of a model that has several.
    Altup(&'m AltupWeights),
    /// The dense FFN beside experts.
    DenseFfn(&'m FfnWeights),
}

impl<'m> LayerPart<'m> {
    /// Its matrices.
    pub fn linears(self) -> SmallVec<[&'m Linear; 8]> {
        match self {
            LayerPart::Attention(of) => of.linears().collect(),
            LayerPart::Recurrent(of) => of.linears().collect(),
            LayerPart::PerLayer(of) => of.linears().into_iter().collect(),
            LayerPart::Altup(of) => of.linears().collect(),
            LayerPart::DenseFfn(of) => of.linears().collect(),
        }
    }

    /// The matrices that a mixer of tokens reads first, by which a layer begins; none of other parts.
    pub fn first_read(self) -> SmallVec<[&'m Linear; 3]> {
        match self {
            LayerPart::Attention(of) => of.inputs().collect(),
            LayerPart::Recurrent(of) => of.linears().take(2).collect(),
            LayerPart::PerLayer(_) | LayerPart::Altup(_) | LayerPart::DenseFfn(_) => SmallVec::new(),
        }
    }
}
