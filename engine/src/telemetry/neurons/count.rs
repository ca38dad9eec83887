//! Counting the set bits of each column of a stack of masks.

/// How often each neuron is set in the rows of `masks`, `[rows, words]`. Rows are added in binary, one word of carries per
/// binary place (Harley and Seal's tree over eight rows at a time), which takes the same time however many bits are set.
#[derive(Debug, Default)]
pub(super) struct ColumnCounts {
    /// `[places, words]`: bit `k` of every column's count.
    places: Vec<u32>,
    carry: Vec<u32>,
}

const ROWS: usize = 8;

/// A full adder on 32 columns: sum and carry.
fn add(a: u32, b: u32, c: u32) -> (u32, u32) {
    let half = a ^ b;
    (half ^ c, (a & b) | (half & c))
}

impl ColumnCounts {
    /// Adds the counts of `masks` to what `each` is given: called once for every neuron that is set at all.
    pub fn of(&mut self, masks: &[u32], words: usize, mut each: impl FnMut(usize, u32)) {
        if words == 0 {
            return;
        }
        let rows = masks.len() / words;
        let places = (usize::BITS - rows.leading_zeros()).max(4) as usize;
        self.places.clear();
        self.places.resize(places * words, 0);
        self.carry.resize(words, 0);
        for eight in masks.chunks(ROWS * words) {
            self.add_rows(eight, words);
        }
        for word in 0..words {
            let mut left = (0..places).fold(0, |any, place| any | self.places[place * words + word]);
            while left != 0 {
                let bit = left.trailing_zeros();
                left &= left - 1;
                let count = (0..places).map(|k| (self.places[k * words + word] >> bit & 1) << k).sum();
                each(word * 32 + bit as usize, count);
            }
        }
    }

    /// Adds up to eight rows.
    fn add_rows(&mut self, rows: &[u32], words: usize) {
        let (low, high) = self.places.split_at_mut(3 * words);
        let (ones, rest) = low.split_at_mut(words);
        let (twos, fours) = rest.split_at_mut(words);
        let carry = &mut self.carry[..words];
        let mut row = rows.chunks_exact(words);
        let mut next = || row.next().unwrap_or(&[]);
        let eight: [&[u32]; ROWS] = std::array::from_fn(|_| next());
        if eight[ROWS - 1].is_empty() {
            // The last few rows, one by one.
            for row in eight.iter().filter(|row| !row.is_empty()) {
                carry.copy_from_slice(row);
                ripple(&mut self.places, carry, words);
            }
            return;
        }
        let [a, b, c, d, e, f, g, h] = eight.map(|row| &row[..words]);
        for w in 0..words {
            let (one, two_a) = add(ones[w], a[w], b[w]);
            let (one, two_b) = add(one, c[w], d[w]);
            let (two, four_a) = add(twos[w], two_a, two_b);
            let (one, two_a) = add(one, e[w], f[w]);
            let (one, two_b) = add(one, g[w], h[w]);
            let (two, four_b) = add(two, two_a, two_b);
            let (four, eight) = add(fours[w], four_a, four_b);
            (ones[w], twos[w], fours[w], carry[w]) = (one, two, four, eight);
        }
        ripple(high, carry, words);
    }
}

/// Adds `carry` to the lowest of `places`.
fn ripple(places: &mut [u32], carry: &mut [u32], words: usize) {
    for place in places.chunks_exact_mut(words) {
        for (bits, carry) in place.iter_mut().zip(carry.iter_mut()) {
            (*bits, *carry) = (*bits ^ *carry, *bits & *carry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_single_bits() {
        let (mut counts, mut seed) = (ColumnCounts::default(), 7u64);
        for (rows, words) in [(1, 3), (7, 1), (8, 2), (9, 5), (16, 1), (64, 3), (255, 2), (256, 1), (513, 4), (3, 0)] {
            let mut noise = || {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (seed >> 32) as u32
            };
            // The first word is always full, so that the highest count occurs.
            let masks: Vec<u32> =
                (0..rows * words).map(|i| if i % words == 0 { u32::MAX } else { noise() & noise() }).collect();
            let mut wanted = vec![0u32; words * 32];
            for row in masks.chunks(words.max(1)) {
                (0..words * 32).for_each(|n| wanted[n] += row[n / 32] >> (n % 32) & 1);
            }
            let mut got = vec![0u32; words * 32];
            counts.of(&masks, words, |neuron, count| got[neuron] += count);
            assert_eq!(got, wanted, "{rows} x {words}");
        }
    }
}
