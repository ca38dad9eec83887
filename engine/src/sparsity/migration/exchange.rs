//! Which neurons change places.

use super::Heat;

/// A hot neuron gives its place to a cold one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// Its place: an index of the list of hot neurons.
    pub place: usize,
    /// Who comes.
    pub comes: u32,
}

/// At most `most` exchanges between `hot` and the other neurons of `heat`, the most certain first: the neuron that comes fired
/// more often than the one that leaves by more than `certainty` standard deviations of that difference. So neurons that fire
/// about equally often stay where they are, and a pair that was exchanged needs as much evidence to change back.
pub fn exchange(heat: &Heat, hot: &[u32], most: usize, certainty: f32) -> Vec<Exchange> {
    let neurons = heat.neurons();
    if most == 0 || hot.is_empty() || hot.len() >= neurons {
        return Vec::new();
    }
    let mut is_hot = vec![false; neurons];
    for neuron in hot {
        if let Some(is_hot) = is_hot.get_mut(*neuron as usize) {
            *is_hot = true;
        }
    }
    let mut cold: Vec<u32> = (0..neurons as u32).filter(|neuron| !is_hot[*neuron as usize]).collect();
    let mut places: Vec<usize> = (0..hot.len()).collect();
    // Equal ones in a fixed order, so that nothing depends on how they are found.
    first(&mut cold, most, |neuron| (-heat.of(*neuron), *neuron as usize));
    first(&mut places, most, |place| (heat.of(hot[*place]), *place));
    let pairs = places.into_iter().zip(cold);
    pairs
        .take_while(|(place, comes)| {
            let (leaves, comes) = (heat.of(hot[*place]), heat.of(*comes));
            // A count that is forgotten exponentially varies half as much as a plain one.
            comes - leaves > certainty * ((comes + leaves) / 2.0).sqrt()
        })
        .map(|(place, comes)| Exchange { place, comes })
        .collect()
}

/// Keeps the `n` of `items` with the least keys, in order.
fn first<T>(items: &mut Vec<T>, n: usize, key: impl Fn(&T) -> (f32, usize)) {
    let order = |a: &T, b: &T| {
        let (a, b) = (key(a), key(b));
        a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
    };
    if n < items.len() {
        items.select_nth_unstable_by(n, order);
        items.truncate(n);
    }
    items.sort_unstable_by(order);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heat(frequency: &[f32]) -> Heat {
        Heat::new(frequency.len(), 70.0).after(frequency)
    }

    #[test]
    fn the_coldest_makes_room_for_the_hottest() {
        let heat = heat(&[0.9, 0.0, 0.8, 0.05, 0.7, 0.1]);
        let got = exchange(&heat, &[1, 3, 0], 9, 3.0);
        assert_eq!(got, [Exchange { place: 0, comes: 2 }, Exchange { place: 1, comes: 4 }]);
        assert_eq!(exchange(&heat, &[1, 3, 0], 1, 3.0), got[..1]);
    }

    #[test]
    fn what_is_about_equal_stays() {
        let heat = heat(&[0.30, 0.34, 0.0, 0.0]);
        assert_eq!(exchange(&heat, &[0, 2], 1, 3.0), [Exchange { place: 1, comes: 1 }]);
        assert_eq!(exchange(&heat, &[0], 9, 3.0), []);
        assert_eq!(exchange(&heat, &[1], 9, 3.0), []);
    }

    #[test]
    fn nothing_to_exchange() {
        let heat = heat(&[0.0, 1.0]);
        for hot in [&[][..], &[0, 1], &[0, 1, 7]] {
            assert_eq!(exchange(&heat, hot, 9, 3.0), []);
        }
        assert_eq!(exchange(&heat, &[0], 0, 3.0), []);
        // A list with a neuron that is not there is not believed to be hot.
        assert_eq!(exchange(&heat, &[9], 1, 3.0), [Exchange { place: 0, comes: 1 }]);
    }
}
