//! The parts of a model that are in a device's memory.

use super::mask;

/// The parts of a model in a device's memory at one moment. A placement lists the parts that should
/// be there. During an upload some of them are still missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resident {
    /// First layer whose attention, keys and values are resident. Attention, keys and values of all
    /// later layers are resident too.
    pub first_layer: usize,
    /// Resident units of each layer (neurons; in an MoE layer experts), one bit each as in
    /// [`mask`]. Empty for a layer that is not resident.
    pub hot: Vec<Vec<u32>>,
    /// True if the final norm and the head are resident.
    pub head: bool,
}

impl Resident {
    /// True if `unit` of `layer`, a neuron or an expert, is resident.
    pub fn is_hot(&self, layer: usize, unit: usize) -> bool {
        self.hot.get(layer).is_some_and(|hot| mask::contains(hot, unit))
    }

    /// Returns the number of resident units of `layer`.
    pub fn count(&self, layer: usize) -> usize {
        self.hot.get(layer).map_or(0, |hot| mask::count(hot))
    }
}
