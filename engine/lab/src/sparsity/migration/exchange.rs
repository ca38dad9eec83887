//! Pairs of units (neurons or experts) that exchange their places.

use super::DecayedCounts;

/// A cold unit that replaces a hot unit in its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotExchange {
    /// Index into the list of hot units.
    pub slot: usize,
    /// The cold unit that becomes hot.
    pub incoming: u32,
}

/// Returns at most `most` exchanges between `hot` and the other units of `counts`, the most certain
/// first. The incoming unit must have fired more often by more than `certainty` standard deviations
/// of the difference. Units that fire about equally often therefore stay. Reversing an exchange
/// needs as much evidence.
pub fn exchange(counts: &DecayedCounts, hot: &[u32], most: usize, certainty: f32) -> Vec<SlotExchange> {
    pairs(counts, hot, most, |incoming, outgoing| {
        // The variance of an exponentially decayed count is half the variance of a plain count.
        incoming - outgoing > certainty * ((incoming + outgoing) / 2.0).sqrt()
    })
}

/// Least difference between the counts of an incoming and an outgoing expert: a fraction of the
/// incoming count, and an absolute minimum that only a recent choice exceeds.
const MARGIN: f32 = 0.1;
const LEAST: f32 = 0.25;

/// Like [`exchange`], for experts. Needs no certainty, because the experts in use change within a
/// few tokens.
pub fn exchange_experts(counts: &DecayedCounts, hot: &[u32], most: usize) -> Vec<SlotExchange> {
    pairs(counts, hot, most, |incoming, outgoing| incoming - outgoing > (MARGIN * incoming).max(LEAST))
}

/// Pairs the hot units of the smallest counts with the cold units of the largest, at most `most`
/// pairs, while `is_worth` holds for their counts.
fn pairs(counts: &DecayedCounts, hot: &[u32], most: usize, is_worth: impl Fn(f32, f32) -> bool) -> Vec<SlotExchange> {
    let units = counts.units();
    if most == 0 || hot.is_empty() || hot.len() >= units {
        return Vec::new();
    }
    let mut is_hot = vec![false; units];
    for unit in hot {
        if let Some(is_hot) = is_hot.get_mut(*unit as usize) {
            *is_hot = true;
        }
    }
    let mut cold: Vec<u32> = (0..units as u32).filter(|unit| !is_hot[*unit as usize]).collect();
    let mut slots: Vec<usize> = (0..hot.len()).collect();
    // Ties are broken by index, so that the result is deterministic.
    keep_least(&mut cold, most, |unit| (-counts.count(*unit), *unit as usize));
    keep_least(&mut slots, most, |slot| (counts.count(hot[*slot]), *slot));
    let pairs = slots.into_iter().zip(cold);
    pairs
        .take_while(|(slot, incoming)| is_worth(counts.count(*incoming), counts.count(hot[*slot])))
        .map(|(slot, incoming)| SlotExchange { slot, incoming })
        .collect()
}

/// Keeps the `n` items with the smallest keys, in order.
fn keep_least<T>(items: &mut Vec<T>, n: usize, key: impl Fn(&T) -> (f32, usize)) {
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

    fn counts(frequency: &[f32]) -> DecayedCounts {
        DecayedCounts::new(frequency.len(), 70.0).with_prior(frequency)
    }

    #[test]
    fn exchanges_pair_the_least_hot_with_the_most_cold() {
        let counts = counts(&[0.9, 0.0, 0.8, 0.05, 0.7, 0.1]);
        let got = exchange(&counts, &[1, 3, 0], 9, 3.0);
        assert_eq!(got, [SlotExchange { slot: 0, incoming: 2 }, SlotExchange { slot: 1, incoming: 4 }]);
        assert_eq!(exchange(&counts, &[1, 3, 0], 1, 3.0), got[..1]);
    }

    #[test]
    fn units_with_about_equal_counts_are_not_exchanged() {
        let counts = counts(&[0.30, 0.34, 0.0, 0.0]);
        assert_eq!(exchange(&counts, &[0, 2], 1, 3.0), [SlotExchange { slot: 1, incoming: 1 }]);
        assert_eq!(exchange(&counts, &[0], 9, 3.0), []);
        assert_eq!(exchange(&counts, &[1], 9, 3.0), []);
    }

    #[test]
    fn experts_chosen_a_few_tokens_ago_replace_those_of_long_ago() {
        let mut counts = DecayedCounts::new(6, 1.0);
        [Some(0), Some(1), None, None, None, Some(2)].into_iter().for_each(|chosen| counts.add_token(chosen));
        assert_eq!(exchange_experts(&counts, &[0, 1], 9), [SlotExchange { slot: 0, incoming: 2 }]);
        // An expert that was chosen just now stays.
        assert_eq!(exchange_experts(&counts, &[2], 9), []);
    }

    #[test]
    fn empty_or_full_hot_lists_give_no_exchange() {
        let counts = counts(&[0.0, 1.0]);
        for hot in [&[][..], &[0, 1], &[0, 1, 7]] {
            assert_eq!(exchange(&counts, hot, 9, 3.0), []);
        }
        assert_eq!(exchange(&counts, &[0], 0, 3.0), []);
        // An index out of range counts as a hot unit that never fires.
        assert_eq!(exchange(&counts, &[9], 1, 3.0), [SlotExchange { slot: 0, incoming: 1 }]);
    }
}
