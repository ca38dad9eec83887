//! Masks: sets of neurons as bits, which processors and observers exchange. Bit `i % 32` of word
//! `i / 32` belongs to neuron `i`.

use std::ops::Range;

/// Returns the number of words of a mask of `n` neurons.
pub const fn words(n: usize) -> usize {
    n.div_ceil(32)
}

/// True if `neuron` is in the set.
pub fn contains(mask: &[u32], neuron: usize) -> bool {
    mask.get(neuron / 32).is_some_and(|word| word >> (neuron % 32) & 1 == 1)
}

/// Adds `neuron` to the set.
///
/// # Panics
/// If the mask is too short for `neuron`.
pub fn insert(mask: &mut [u32], neuron: usize) {
    mask[neuron / 32] |= 1 << (neuron % 32);
}

/// Adds each of `neurons` for whose list index `is_in` is true. Does not branch on `is_in`, because
/// a CPU could not predict the branch.
///
/// # Panics
/// If the mask is too short for one of them.
pub fn insert_some(mask: &mut [u32], neurons: &[u32], is_in: impl Fn(usize) -> bool) {
    for (at, neuron) in neurons.iter().enumerate() {
        mask[*neuron as usize / 32] |= u32::from(is_in(at)) << (neuron % 32);
    }
}

/// Adds the neurons in `from`, shifted up by `first`.
///
/// # Panics
/// If the mask is too short for the shifted neurons.
pub fn insert_shifted(mask: &mut [u32], first: usize, from: &[u32]) {
    let (word, shift) = (first / 32, first % 32);
    for (at, bits) in from.iter().enumerate().filter(|(_, bits)| **bits != 0) {
        mask[word + at] |= bits << shift;
        let carried = bits.checked_shr(32 - shift as u32).unwrap_or(0);
        if carried != 0 {
            mask[word + at + 1] |= carried;
        }
    }
}

/// Adds the neurons in `range`.
///
/// # Panics
/// If the mask is too short for `range`.
pub fn insert_range(mask: &mut [u32], range: Range<usize>) {
    for word in range.start / 32..range.end.div_ceil(32) {
        let (start, end) = (range.start.saturating_sub(32 * word), range.end - 32 * word);
        mask[word] |= (u32::MAX << start) & (u32::MAX >> (32 - end.min(32)));
    }
}

/// Sets `mask` to the neurons below `n` for which `is_in` is true, and clears all its other bits.
///
/// # Panics
/// If the mask is shorter than `n` neurons.
pub fn fill(mask: &mut [u32], n: usize, is_in: impl Fn(usize) -> bool) {
    mask.fill(0);
    for (at, word) in mask[..words(n)].iter_mut().enumerate() {
        let first = 32 * at;
        if n - first < 32 {
            *word = (0..n - first).fold(0, |bits, i| bits | u32::from(is_in(first + i)) << i);
            continue;
        }
        let mut members = [0; 32];
        members.iter_mut().enumerate().for_each(|(i, member)| *member = u8::from(is_in(first + i)));
        *word = gather(&members);
    }
}

/// Returns a word whose bit `i` is byte `i`. Every byte is 0 or 1. The product of eight bytes with
/// `TOGETHER` collects their bits in the highest byte, without a carry into it.
fn gather(bytes: &[u8; 32]) -> u32 {
    const TOGETHER: u64 = 0x0102_0408_1020_4080;
    let (eights, _) = bytes.as_chunks::<8>();
    let bits = |eight: &[u8; 8]| (u64::from_le_bytes(*eight).wrapping_mul(TOGETHER) >> 56) as u32;
    eights.iter().enumerate().fold(0, |word, (at, eight)| word | bits(eight) << (8 * at))
}

/// Iterates over the neurons of the set, ascending.
pub fn neurons(mask: &[u32]) -> impl Iterator<Item = u32> {
    (0u32..).zip(mask).flat_map(|(at, word)| {
        let mut left = *word;
        std::iter::from_fn(move || {
            let bit = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            (bit < 32).then_some(32 * at + bit)
        })
    })
}

/// Returns the number of neurons in the set.
pub fn count(mask: &[u32]) -> usize {
    mask.iter().map(|word| word.count_ones() as usize).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mask_fill_and_insert_hold_the_given_members() {
        let members = [0, 5, 31, 32, 63, 64, 69];
        for n in [70, 96] {
            let mut filled = vec![u32::MAX; words(n) + 1];
            fill(&mut filled, n, |i| members.contains(&(i as u32)));
            let mut inserted = vec![0; words(n) + 1];
            members.iter().for_each(|i| insert(&mut inserted, *i as usize));
            assert_eq!(filled, inserted);
            let all: Vec<u32> = (0..n as u32).collect();
            let mut some = vec![0; words(n) + 1];
            insert_some(&mut some, &all, |at| members.contains(&all[at]));
            assert_eq!(some, inserted);
            assert_eq!(neurons(&filled).collect::<Vec<_>>(), members);
            assert_eq!(count(&filled), members.len());
            assert!((0..200).all(|i| contains(&filled, i) == members.contains(&(i as u32))));
        }
        assert_eq!(neurons(&[]).count(), 0);
    }

    #[test]
    fn ranges_are_inserted_at_any_place() {
        for range in [0..0, 0..1, 5..5, 3..31, 31..33, 32..64, 10..200, 64..65, 96..96] {
            let mut mask = vec![0; words(range.end)];
            insert_range(&mut mask, range.clone());
            assert_eq!(neurons(&mask).map(|neuron| neuron as usize).collect::<Vec<_>>(), range.collect::<Vec<_>>());
        }
    }

    #[test]
    fn masks_are_inserted_at_any_shift() {
        let from = [0x8000_0101, 0, 0b11];
        for first in [0, 1, 20, 31, 32, 45, 64] {
            let mut mask = vec![0; words(first + 66)];
            insert(&mut mask, 0);
            insert_shifted(&mut mask, first, &from);
            let mut wanted: Vec<u32> = [0, 8, 31, 64, 65].iter().map(|neuron| neuron + first as u32).collect();
            wanted.extend((first > 0).then_some(0));
            wanted.sort_unstable();
            assert_eq!(neurons(&mask).collect::<Vec<_>>(), wanted, "{first}");
        }
    }
}
