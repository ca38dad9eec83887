//! Positions of a model's neurons in masks and lists of all layers.

use std::ops::Range;

/// The neurons of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerNeurons {
    /// The neurons of one FFN. 0 for a layer that is not watched.
    Dense(usize),
    /// An MoE layer: the neurons of one expert after the other, then those of the shared expert.
    Experts {
        /// Number of experts to choose from.
        experts: usize,
        /// Neurons of each expert.
        width: usize,
        /// Neurons of the shared expert. 0 without a shared expert.
        shared: usize,
    },
}

impl LayerNeurons {
    /// Number of all neurons of the layer.
    pub fn count(self) -> usize {
        match self {
            LayerNeurons::Dense(neurons) => neurons,
            LayerNeurons::Experts { experts, width, shared } => experts.saturating_mul(width).saturating_add(shared),
        }
    }

    /// Number of experts to choose from. 0 for a dense FFN.
    pub fn experts(self) -> usize {
        match self {
            LayerNeurons::Dense(_) => 0,
            LayerNeurons::Experts { experts, .. } => experts,
        }
    }
}

/// The number of neurons of each layer. Masks of a whole model contain the layers' masks one after
/// the other, each starting at a new word. The masks of experts have the same form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NeuronShape {
    layers: Vec<LayerNeurons>,
    /// First word of every layer, and the end of the last layer.
    words: Vec<usize>,
    /// First neuron of every layer, and the end of the last layer.
    firsts: Vec<usize>,
    /// First word of every layer's experts, and the end of the last layer's.
    expert_words: Vec<usize>,
}

impl NeuronShape {
    /// Returns the shape of dense layers with these numbers of neurons. 0 for a layer that is not
    /// watched.
    pub fn new(neurons: impl IntoIterator<Item = usize>) -> Self {
        NeuronShape::of(neurons.into_iter().map(LayerNeurons::Dense))
    }

    /// Returns the shape of layers of either kind.
    pub fn of(layers: impl IntoIterator<Item = LayerNeurons>) -> Self {
        let layers: Vec<LayerNeurons> = layers.into_iter().collect();
        let sums = |of: &dyn Fn(LayerNeurons) -> usize| {
            let mut sum = 0;
            let ends = layers.iter().map(|layer| {
                sum += of(*layer);
                sum
            });
            std::iter::once(0).chain(ends).collect()
        };
        NeuronShape {
            words: sums(&|layer| layer.count().div_ceil(32)),
            firsts: sums(&LayerNeurons::count),
            expert_words: sums(&|layer| layer.experts().div_ceil(32)),
            layers,
        }
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Number of neurons of a layer. 0 past the last layer.
    pub fn neurons(&self, layer: usize) -> usize {
        self.layers.get(layer).map_or(0, |layer| layer.count())
    }

    /// Number of experts that a layer chooses from. 0 for a layer without experts.
    pub fn experts(&self, layer: usize) -> usize {
        self.layers.get(layer).map_or(0, |layer| layer.experts())
    }

    /// Number of groups of a layer's neurons: the experts in their order, then the shared expert. 0
    /// for a dense FFN.
    pub fn groups(&self, layer: usize) -> usize {
        match self.layers.get(layer) {
            Some(LayerNeurons::Experts { experts, shared, .. }) => experts + usize::from(*shared > 0),
            _ => 0,
        }
    }

    /// The neurons of a group. Empty past the last group.
    pub fn group(&self, layer: usize, group: usize) -> Range<usize> {
        match self.layers.get(layer) {
            Some(LayerNeurons::Experts { experts, width, shared }) => {
                let start = width * group.min(*experts);
                let end = if group < *experts { start + width } else { start + shared };
                if group > *experts { end..end } else { start..end }
            }
            _ => 0..0,
        }
    }

    /// The expert (group) that contains a neuron of an MoE layer, and the neuron's number in it.
    pub fn member(&self, layer: usize, neuron: usize) -> Option<(usize, usize)> {
        match self.layers.get(layer)? {
            LayerNeurons::Experts { experts, width, shared } => {
                let group = neuron.checked_div(*width).unwrap_or(0).min(*experts);
                let at = neuron - group * width;
                (group < *experts || at < *shared).then_some((group, at))
            }
            LayerNeurons::Dense(_) => None,
        }
    }

    /// Expands a mask with a bit per expert to a mask of the layer's neurons: all neurons of an
    /// expert, or none. Includes the shared expert unless `experts` is empty.
    pub fn of_experts(&self, layer: usize, experts: &[u32]) -> Vec<u32> {
        let mut mask = vec![0; self.words(layer).len()];
        let count = self.experts(layer);
        let has = |expert: usize| experts.get(expert / 32).is_some_and(|word| word >> (expert % 32) & 1 == 1);
        let shared = !experts.is_empty();
        for group in (0..self.groups(layer)).filter(|group| if *group < count { has(*group) } else { shared }) {
            insert_all(&mut mask, self.group(layer, group));
        }
        mask
    }

    /// Most neurons of a layer: the width of a heatmap.
    pub fn widest(&self) -> usize {
        self.layers.iter().map(|layer| layer.count()).max().unwrap_or(0)
    }

    /// Number of neurons of all layers.
    pub fn total(&self) -> usize {
        self.firsts.last().copied().unwrap_or(0)
    }

    /// Number of words in a mask of all layers.
    pub fn total_words(&self) -> usize {
        self.words.last().copied().unwrap_or(0)
    }

    /// A layer's words in a mask of all layers.
    pub fn words(&self, layer: usize) -> Range<usize> {
        Self::between(&self.words, layer)
    }

    /// A layer's neurons among the neurons of all layers.
    pub fn range(&self, layer: usize) -> Range<usize> {
        Self::between(&self.firsts, layer)
    }

    /// Number of words in a mask of all layers' experts.
    pub fn total_expert_words(&self) -> usize {
        self.expert_words.last().copied().unwrap_or(0)
    }

    /// A layer's words in a mask of all layers' experts.
    pub fn expert_words(&self, layer: usize) -> Range<usize> {
        Self::between(&self.expert_words, layer)
    }

    fn between(starts: &[usize], layer: usize) -> Range<usize> {
        let end = starts.last().copied().unwrap_or(0);
        let at = |layer: usize| starts.get(layer).copied().unwrap_or(end);
        at(layer)..at(layer.saturating_add(1))
    }
}

/// Sets the bits of `neurons`, word by word.
fn insert_all(mask: &mut [u32], neurons: Range<usize>) {
    if neurons.is_empty() {
        return;
    }
    for word in neurons.start / 32..neurons.end.div_ceil(32) {
        let low = neurons.start.saturating_sub(word * 32);
        let high = (neurons.end - word * 32).min(32);
        if let Some(bits) = mask.get_mut(word) {
            *bits |= (u32::MAX >> (32 - (high - low))) << low;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neuron_shape_aligns_layers_to_words() {
        let shape = NeuronShape::new([33, 0, 64]);
        assert_eq!((shape.layers(), shape.total(), shape.total_words(), shape.widest()), (3, 97, 4, 64));
        assert_eq!([0, 1, 2, 3].map(|layer| shape.words(layer)), [0..2, 2..2, 2..4, 4..4]);
        assert_eq!([0, 1, 2, usize::MAX].map(|layer| shape.range(layer)), [0..33, 33..33, 33..97, 97..97]);
        assert_eq!((shape.neurons(0), shape.neurons(3)), (33, 0));
        assert_eq!((shape.experts(0), shape.groups(0), shape.member(0, 5), shape.group(0, 0)), (0, 0, None, 0..0));
        assert_eq!(shape.total_expert_words(), 0);
    }

    #[test]
    fn neurons_of_experts_are_contiguous() {
        let moe = |experts, shared| LayerNeurons::Experts { experts, width: 20, shared };
        let shape = NeuronShape::of([moe(3, 7), LayerNeurons::Dense(4), moe(40, 0)]);
        assert_eq!([0, 1, 2].map(|layer| shape.neurons(layer)), [67, 4, 800]);
        assert_eq!([0, 1, 2, 3].map(|layer| shape.groups(layer)), [4, 0, 40, 0]);
        assert_eq!([0, 1, 2, 3, 4].map(|group| shape.group(0, group)), [0..20, 20..40, 40..60, 60..67, 67..67]);
        assert_eq!(
            [0, 39, 60, 66].map(|n| shape.member(0, n)),
            [Some((0, 0)), Some((1, 19)), Some((3, 0)), Some((3, 6))]
        );
        assert_eq!([shape.member(0, 67), shape.member(1, 0), shape.member(2, 800)], [None; 3]);
        assert_eq!((shape.member(2, 799), shape.experts(2)), (Some((39, 19)), 40));
        assert_eq!([0, 1, 2, 3].map(|layer| shape.expert_words(layer)), [0..1, 1..1, 1..3, 3..3]);
        assert_eq!(shape.total_expert_words(), 3);
    }

    #[test]
    fn of_experts_expands_expert_masks_to_neuron_masks() {
        let shape = NeuronShape::of([LayerNeurons::Experts { experts: 3, width: 20, shared: 7 }]);
        for experts in 0..8u32 {
            let wanted: Vec<usize> = (0..67)
                .filter(|n| match n / 20 {
                    3 => true,
                    expert => experts >> expert & 1 == 1,
                })
                .collect();
            let mask = shape.of_experts(0, &[experts]);
            assert_eq!(super::super::neurons_of(&mask).collect::<Vec<_>>(), wanted, "{experts:b}");
        }
        assert_eq!(shape.of_experts(0, &[]), [0; 3]);
    }
}
