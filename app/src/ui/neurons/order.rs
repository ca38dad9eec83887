//! In which order a layer's neurons stand on the map.

/// Steps that frequencies are told apart by. Neurons in the same step keep the model's order, so that a picture does not
/// tremble with every token.
const STEPS: usize = 4096;

/// Places of a layer's neurons, hot ones first where they are sorted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Order {
    neurons: Vec<u32>,
    ranks: Vec<u32>,
    boundary: Option<usize>,
}

impl Order {
    /// The model's own.
    pub fn of_model(neurons: usize) -> Self {
        let all: Vec<u32> = (0..neurons as u32).collect();
        Order { neurons: all.clone(), ranks: all, boundary: None }
    }

    /// Those in the mask `hot` before the others, and both by how often they fire; what `frequencies` does not know counts
    /// as never. Takes time in proportion to `neurons`.
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
        let boundary = starts[STEPS] as usize;
        let (mut order, mut ranks) = (vec![0; neurons], vec![0; neurons]);
        for (neuron, rank) in ranks.iter_mut().enumerate() {
            let next = &mut starts[bucket(neuron)];
            *rank = *next;
            order[*next as usize] = neuron as u32;
            *next += 1;
        }
        Order { neurons: order, ranks, boundary: Some(boundary) }
    }

    /// Neurons.
    pub fn len(&self) -> usize {
        self.neurons.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.neurons.is_empty()
    }

    /// Who stands at `rank`.
    pub fn neuron(&self, rank: usize) -> Option<usize> {
        self.neurons.get(rank).map(|neuron| *neuron as usize)
    }

    /// Where each neuron stands.
    pub fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// Rank of the first cold neuron; `None` where hot and cold are mixed.
    pub fn boundary(&self) -> Option<usize> {
        self.boundary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_comes_first_then_what_fires_often_then_the_models_order() {
        let frequencies = [0.1, 0.9, f32::NAN, 0.5, 0.5, 2.0];
        // 2 and 3 are hot.
        let order = Order::by_frequency(7, &frequencies, &[0b1100]);
        let all: Vec<_> = (0..8).map_while(|rank| order.neuron(rank)).collect();
        assert_eq!(all, [3, 2, 5, 1, 4, 0, 6]);
        assert_eq!(order.boundary(), Some(2));
        assert!(all.iter().enumerate().all(|(rank, neuron)| order.ranks()[*neuron] as usize == rank));
        assert_eq!((order.len(), order.is_empty(), Order::default().is_empty()), (7, false, true));
    }

    #[test]
    fn the_models_order_has_no_boundary() {
        let order = Order::of_model(3);
        assert_eq!((order.neuron(2), order.neuron(3), order.boundary()), (Some(2), None, None));
        assert_eq!(Order::by_frequency(3, &[], &[]).boundary(), Some(0));
        assert_eq!(Order::by_frequency(3, &[], &[7]).boundary(), Some(3));
    }
}
