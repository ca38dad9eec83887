//! Counting the set bits of each column of a stack of masks.

/// Most masks in a stack. Counts and row numbers then fit in a byte.
pub(super) const ROWS: usize = 64;

/// Words of a row that are read at once: one cache line, so that no line is read twice.
pub(super) const LINE: usize = 16;

/// Words whose columns are counted side by side. All places of both numbers then fit in the
/// processor's registers.
const GROUP: usize = 4;

/// Binary places of a count, and of a row number.
const COUNT_PLACES: usize = 7;
const ROW_PLACES: usize = 6;

/// One binary place of a number, for each column of a group.
type BitPlace = [u32; GROUP];

/// Calls `each` once for every column with a set bit, with the number of set bits and the last row
/// that has one. There are `rows` (at most [`ROWS`]) masks of `words` words. `load(row, first,
/// into)` copies words of a row from word `first` on.
///
/// Numbers are stored bit by bit: one word holds one binary place of 32 columns (bit-sliced
/// arithmetic). A few operations on words then add a row to all of its columns. They take the same
/// time for any number of set bits.
pub(super) fn columns(
    rows: usize,
    words: usize,
    load: impl Fn(usize, usize, &mut [u32]),
    mut each: impl FnMut(usize, u32, usize),
) {
    let mut lines = [[0; LINE]; ROWS];
    let lines = &mut lines[..rows.min(ROWS)];
    for first in (0..words).step_by(LINE) {
        let width = LINE.min(words - first);
        let mut any = 0;
        for (row, line) in lines.iter_mut().enumerate() {
            load(row, first, &mut line[..width]);
            line[width..].fill(0);
            any |= line.iter().fold(0, |any, bits| any | bits);
        }
        // No token chooses most experts of an MoE layer.
        if any == 0 {
            continue;
        }
        for (group, first) in (first..first + width).step_by(GROUP).enumerate() {
            let stack = lines.iter().map(|line| line.as_chunks::<GROUP>().0[group]);
            count(stack, |column, count, last| each(first * 32 + column, count, last));
        }
    }
}

/// Counts a group of words, for [`columns`].
fn count(stack: impl Iterator<Item = BitPlace>, mut each: impl FnMut(usize, u32, usize)) {
    let (mut counts, mut lasts) = ([BitPlace::default(); COUNT_PLACES], [BitPlace::default(); ROW_PLACES]);
    for (row, bits) in stack.enumerate() {
        for (place, last) in lasts.iter_mut().enumerate() {
            if row >> place & 1 == 1 {
                (0..GROUP).for_each(|i| last[i] |= bits[i]);
            } else {
                (0..GROUP).for_each(|i| last[i] &= !bits[i]);
            }
        }
        let mut carry = bits;
        for count in &mut counts {
            for i in 0..GROUP {
                (count[i], carry[i]) = (count[i] ^ carry[i], count[i] & carry[i]);
            }
        }
    }
    for word in 0..GROUP {
        let mut left = counts.iter().fold(0, |any, place| any | place[word]);
        if left == 0 {
            continue;
        }
        let (counts, lasts) = (numbers(&counts, word), numbers(&lasts, word));
        while left != 0 {
            let bit = left.trailing_zeros() as usize;
            left &= left - 1;
            each(word * 32 + bit, u32::from(counts[bit]), usize::from(lasts[bit]));
        }
    }
}

/// The numbers of one word's columns.
fn numbers(places: &[BitPlace], word: usize) -> [u8; 32] {
    let mut eights = [0u64; 4];
    for (place, bits) in places.iter().enumerate() {
        for (eight, byte) in eights.iter_mut().zip(bits[word].to_le_bytes()) {
            *eight |= SPREAD[usize::from(byte)] << place;
        }
    }
    let mut numbers = [0; 32];
    for (to, eight) in numbers.chunks_exact_mut(8).zip(eights) {
        to.copy_from_slice(&eight.to_le_bytes());
    }
    numbers
}

/// A table that spreads a byte: bit `i` becomes the lowest bit of byte `i`.
static SPREAD: [u64; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut bit = 0;
        while bit < 8 {
            table[byte] |= ((byte >> bit & 1) as u64) << (8 * bit);
            bit += 1;
        }
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::{super::tests::noise, *};

    #[test]
    fn column_counts_match_a_bitwise_count() {
        let mut seed = 7u64;
        for (rows, words) in
            [(1, 3), (2, 8), (7, 1), (8, 9), (9, 5), (16, 32), (31, 17), (63, 2), (64, 9), (5, 0), (0, 4)]
        {
            let mut noise = || noise(&mut seed);
            // The first word is always full, so that the highest count occurs. Bits of other words
            // are rarely set.
            let masks: Vec<u32> = (0..rows * words)
                .map(|i| if i % words == 0 { u32::MAX } else { noise() & noise() & noise() & noise() })
                .collect();
            let mut wanted = Vec::new();
            for neuron in 0..words * 32 {
                let set: Vec<usize> =
                    (0..rows).filter(|row| masks[row * words + neuron / 32] >> (neuron % 32) & 1 == 1).collect();
                wanted.extend(set.last().map(|last| (neuron, set.len() as u32, *last)));
            }
            let mut got = Vec::new();
            let load = |row: usize, first: usize, into: &mut [u32]| {
                into.copy_from_slice(&masks[row * words + first..][..into.len()]);
            };
            columns(rows, words, load, |neuron, count, last| got.push((neuron, count, last)));
            assert_eq!(got, wanted, "{rows} x {words}");
        }
    }
}
