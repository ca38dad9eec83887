//! The parts of a model that are in a device's memory.

use super::mask;

/// The parts of a model in a device's memory at one moment. A placement says which parts should be there; while weights
/// are being uploaded it is fewer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resident {
    /// First layer whose attention, keys and values are there; so are those of all layers after it.
    pub first_layer: usize,
    /// Per layer: its resident units (neurons; in an MoE layer experts), one bit each as in [`mask`]; empty for a layer that is not
    /// resident.
    pub hot: Vec<Vec<u32>>,
    /// True if the final norm and the head are there.
    pub head: bool,
}

impl Resident {
    /// True if the `unit` of `layer`, a neuron or an expert, is resident.
    pub fn is_hot(&self, layer: usize, unit: usize) -> bool {
        self.hot.get(layer).is_some_and(|hot| mask::contains(hot, unit))
    }

    /// Number of resident units of `layer`.
    pub fn count(&self, layer: usize) -> usize {
        self.hot.get(layer).map_or(0, |hot| mask::count(hot))
    }
}
