//! The order of a layer's neurons on the map.

use std::ops::Range;

/// Number of distinct frequency steps. Neurons in one step keep the model's order, so that the
/// picture does not flicker with every token.
const STEPS: usize = 4096;

/// The order of an MoE layer's experts: hot ones first, then by selection frequency in [`STEPS`]
/// steps. `hot` and `chosen` return the placement and the frequency of an expert.
pub fn sequence(groups: usize, hot: impl Fn(usize) -> bool, chosen: impl Fn(usize) -> f32) -> Vec<usize> {
    let mut all: Vec<usize> = (0..groups).collect();
    let often = |group: usize| (chosen(group).clamp(0.0, 1.0).sqrt() * (STEPS - 1) as f32) as usize;
    all.sort_by_key(|group| (!hot(*group), std::cmp::Reverse(often(*group))));
    all
}

/// The places of a layer's neurons. In sorted orders, hot neurons come first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NeuronOrder {
    neurons: Vec<u32>,
    /// The rank of each neuron.
    pub ranks: Vec<u32>,
    /// Rank of the first cold neuron, at least 1. `None` if hot and cold neurons are mixed or no
    /// neuron is hot.
    pub boundary: Option<usize>,
    /// First rank of each expert. Empty for a dense FFN.
    pub starts: Vec<u32>,
}

impl NeuronOrder {
    /// The model's own order.
    pub fn of_model(neurons: usize) -> Self {
        let all: Vec<u32> = (0..neurons as u32).collect();
        NeuronOrder { neurons: all.clone(), ranks: all, ..NeuronOrder::default() }
    }

    /// Orders hot neurons (mask `hot`) before cold ones, each by frequency. Neurons beyond
    /// `frequencies` count as never firing. Takes time proportional to `neurons`.
    pub fn by_frequency(neurons: usize, frequencies: &[f32], hot: &[u32]) -> Self {
        let is_hot = |neuron: usize| hot.get(neuron / 32).is_some_and(|word| word >> (neuron % 32) & 1 == 1);
        let bucket = |neuron: usize| {
            let frequency = frequencies.get(neuron).copied().unwrap_or(0.0).clamp(0.0, 1.0);
            let rare = STEPS - 1 - (frequency.sqrt() * (STEPS - 1) as f32) as usize;
            if is_hot(neuron) { rare } else { STEPS + rare }
        };
        let mut starts = vec![0u32; 2 * STEPS + 1];
        for neuron in 0..neurons {
            starts[bucket(neuron) + 1] += 1;
        }
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        // Without hot neurons there is no line.
        let boundary = Some(starts[STEPS] as usize).filter(|hot| *hot > 0);
        let (mut order, mut ranks) = (vec![0; neurons], vec![0; neurons]);
        for (neuron, rank) in ranks.iter_mut().enumerate() {
            let next = &mut starts[bucket(neuron)];
            *rank = *next;
            order[*next as usize] = neuron as u32;
            *next += 1;
        }
        NeuronOrder { neurons: order, ranks, boundary, starts: Vec::new() }
    }

    /// Reorders the neurons group by group, in the order of `sequence`. Neurons of a group keep
    /// their order. `groups` are in the model's numbering, and `sequence` contains each index once.
    pub fn grouped(self, groups: &[Range<usize>], sequence: &[usize]) -> Self {
        let mut next = vec![0u32; groups.len()];
        let (mut end, mut starts) = (0, Vec::with_capacity(groups.len()));
        for group in sequence {
            let Some(size) = groups.get(*group).map(|neurons| neurons.len() as u32) else { continue };
            next[*group] = end;
            starts.push(end);
            end += size;
        }
        let (mut order, mut ranks) = (vec![0; self.neurons.len()], vec![0; self.ranks.len()]);
        for neuron in &self.neurons {
            let group = groups.partition_point(|neurons| neurons.end <= *neuron as usize);
            let Some(rank) = next.get_mut(group) else { continue };
            if let (Some(place), Some(of)) = (order.get_mut(*rank as usize), ranks.get_mut(*neuron as usize)) {
                (*place, *of) = (*neuron, *rank);
            }
            *rank += 1;
        }
        // Hot neurons still come first if every group is entirely hot or cold.
        let hot = |rank: usize| order.get(rank).is_some_and(|neuron| self.before(*neuron as usize, self.boundary));
        let boundary = self.boundary.filter(|boundary| (0..*boundary).all(hot));
        NeuronOrder { neurons: order, ranks, boundary, starts }
    }

    /// True if a neuron ranks before the boundary.
    fn before(&self, neuron: usize, boundary: Option<usize>) -> bool {
        boundary.is_some_and(|boundary| self.ranks.get(neuron).is_some_and(|rank| (*rank as usize) < boundary))
    }

    /// Number of neurons.
    pub fn len(&self) -> usize {
        self.neurons.len()
    }

    /// True if there are no neurons.
    pub fn is_empty(&self) -> bool {
        self.neurons.is_empty()
    }

    /// The neuron at `rank`.
    pub fn neuron(&self, rank: usize) -> Option<usize> {
        self.neurons.get(rank).map(|neuron| *neuron as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_hot_first_then_by_frequency_then_by_index() {
        let frequencies = [0.1, 0.9, f32::NAN, 0.5, 0.5, 2.0];
        // Neurons 2 and 3 are hot.
        let order = NeuronOrder::by_frequency(7, &frequencies, &[0b1100]);
        let all: Vec<_> = (0..8).map_while(|rank| order.neuron(rank)).collect();
        assert_eq!(all, [3, 2, 5, 1, 4, 0, 6]);
        assert_eq!(order.boundary, Some(2));
        assert!(all.iter().enumerate().all(|(rank, neuron)| order.ranks[*neuron] as usize == rank));
        assert_eq!((order.len(), order.is_empty(), NeuronOrder::default().is_empty()), (7, false, true));
    }

    #[test]
    fn order_of_the_model_has_no_boundary() {
        let order = NeuronOrder::of_model(3);
        assert_eq!((order.neuron(2), order.neuron(3), order.boundary), (Some(2), None, None));
        assert_eq!(NeuronOrder::by_frequency(3, &[], &[]).boundary, None, "nothing is hot");
        assert_eq!(NeuronOrder::by_frequency(3, &[], &[7]).boundary, Some(3));
    }

    #[test]
    fn grouped_order_keeps_experts_contiguous() {
        // Three experts of three neurons and a shared one of two. The third expert is hot.
        let groups = [0..3, 3..6, 6..9, 9..11];
        let (often, hot) = ([0.1, 0.3, 0.2, 0.9, 0.0, 0.8, 0.1, 0.0, 0.2, 0.5, 0.6], [0b1_1100_0000]);
        let chosen = [0.2, 0.7, 0.1, 1.0];
        let sequence = sequence(4, |group| group == 2, |group| chosen[group]);
        assert_eq!(sequence, [2, 3, 1, 0]);
        let order = NeuronOrder::by_frequency(11, &often, &hot).grouped(&groups, &sequence);
        let all: Vec<_> = (0..12).map_while(|rank| order.neuron(rank)).collect();
        assert_eq!(all, [8, 6, 7, 10, 9, 3, 5, 4, 1, 2, 0]);
        assert!(all.iter().enumerate().all(|(rank, neuron)| order.ranks[*neuron] as usize == rank));
        assert_eq!((&*order.starts, order.boundary), (&[0, 3, 5, 8][..], Some(3)));
        let mixed = NeuronOrder::by_frequency(11, &often, &[0b1]).grouped(&groups, &sequence);
        assert_eq!(mixed.boundary, None, "a hot neuron in an expert that comes later");
        let model = NeuronOrder::of_model(11).grouped(&groups, &[0, 1, 2, 3]);
        assert_eq!((&*model.starts, model.neuron(6), model.boundary), (&[0, 3, 6, 9][..], Some(6), None));
    }
}
