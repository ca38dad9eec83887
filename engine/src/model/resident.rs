//! What of a model a device holds.

use super::mask;

/// What of a model is in a device's memory at one moment. Plans say what should be there; while weights are on their way it
/// is less.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resident {
    /// Layers from this one on have their attention, keys and values there.
    pub first_layer: usize,
    /// Per layer: which of its neurons (experts, where the FFN is a mixture) are there, a bit each as in [`mask`]; empty where
    /// the layer is not.
    pub hot: Vec<Vec<u32>>,
    /// Whether the final norm and the head are.
    pub head: bool,
}

impl Resident {
    /// Whether neuron (expert) `neuron` of `layer` is there.
    pub fn is_hot(&self, layer: usize, neuron: usize) -> bool {
        self.hot.get(layer).is_some_and(|hot| mask::contains(hot, neuron))
    }

    /// How many neurons (experts) of `layer` are there.
    pub fn count(&self, layer: usize) -> usize {
        self.hot.get(layer).map_or(0, |hot| mask::count(hot))
    }
}
