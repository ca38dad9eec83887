//! Where a model's neurons are in masks and lists that hold all of its layers.

use std::ops::Range;

/// How many neurons each layer has. Masks of a whole model are the layers' masks one behind the other, each from a word of
/// its own on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeuronShape {
    neurons: Vec<usize>,
    /// First word of every layer, and the end of the last.
    words: Vec<usize>,
    /// First neuron of every layer, and the end of the last.
    firsts: Vec<usize>,
}

impl NeuronShape {
    /// Of layers with so many neurons; 0 for a layer whose neurons are not watched (a mixture).
    pub fn new(neurons: impl IntoIterator<Item = usize>) -> Self {
        let neurons: Vec<usize> = neurons.into_iter().collect();
        let sums = |of: &dyn Fn(usize) -> usize| {
            let mut sum = 0;
            let ends = neurons.iter().map(|n| {
                sum += of(*n);
                sum
            });
            std::iter::once(0).chain(ends).collect()
        };
        NeuronShape { words: sums(&|n| n.div_ceil(32)), firsts: sums(&|n| n), neurons }
    }

    /// Layers.
    pub fn layers(&self) -> usize {
        self.neurons.len()
    }

    /// Neurons of a layer; 0 behind the last.
    pub fn neurons(&self, layer: usize) -> usize {
        self.neurons.get(layer).copied().unwrap_or(0)
    }

    /// Neurons of the most numerous layer: the width of a heatmap.
    pub fn widest(&self) -> usize {
        self.neurons.iter().copied().max().unwrap_or(0)
    }

    /// Neurons of all layers.
    pub fn total(&self) -> usize {
        self.firsts.last().copied().unwrap_or(0)
    }

    /// Words of a mask of all layers.
    pub fn total_words(&self) -> usize {
        self.words.last().copied().unwrap_or(0)
    }

    /// A layer's words in such a mask.
    pub fn words(&self, layer: usize) -> Range<usize> {
        Self::between(&self.words, layer)
    }

    /// A layer's neurons among all.
    pub fn range(&self, layer: usize) -> Range<usize> {
        Self::between(&self.firsts, layer)
    }

    fn between(starts: &[usize], layer: usize) -> Range<usize> {
        let end = starts.last().copied().unwrap_or(0);
        let at = |layer: usize| starts.get(layer).copied().unwrap_or(end);
        at(layer)..at(layer.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_begin_at_words_of_their_own() {
        let shape = NeuronShape::new([33, 0, 64]);
        assert_eq!((shape.layers(), shape.total(), shape.total_words(), shape.widest()), (3, 97, 4, 64));
        assert_eq!([0, 1, 2, 3].map(|layer| shape.words(layer)), [0..2, 2..2, 2..4, 4..4]);
        assert_eq!([0, 1, 2, usize::MAX].map(|layer| shape.range(layer)), [0..33, 33..33, 33..97, 97..97]);
        assert_eq!((shape.neurons(0), shape.neurons(3)), (33, 0));
    }
}
