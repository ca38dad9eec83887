//! The answer: where everything is.

/// What is resident in VRAM. Whatever is not is computed by the CPU, which keeps all weights in RAM anyway.
///
/// Resident layers are the last ones: the residual stream then crosses the bus once, where it changes sides, in place of the
/// embedding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placement {
    /// Layers from this one on have their attention, norms, keys and values, and predictor in VRAM; those before are the
    /// CPU's altogether.
    pub first_resident: usize,
    /// Per layer: its neurons in VRAM, hottest first (experts, where the FFN is a mixture); empty below `first_resident`. All
    /// of them: no hand-over.
    pub hot: Vec<Vec<u32>>,
    /// Whether the final norm and the head are in VRAM; they are only where the last layer is.
    pub head: bool,
}

impl Placement {
    /// Nothing resident.
    pub fn cpu(n_layer: usize) -> Self {
        Placement { first_resident: n_layer, hot: vec![Vec::new(); n_layer], head: false }
    }
}
