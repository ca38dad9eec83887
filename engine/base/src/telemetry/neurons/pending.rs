//! A layer's latest single tokens, which are not counted yet.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::count::{LINE, ROWS, columns};

/// Tokens that are counted together. Most firing neurons fire at several of these tokens, and each
/// neuron is then updated once. But a reader must count all waiting tokens, and the masks of large
/// layers no longer fit the caches.
pub(super) const BLOCK: usize = ROWS;
const BLOCK_OF_LARGE: usize = 32;

/// Fewest words in a large layer's mask.
const LARGE: usize = 256;

/// Tokens of a layer that are counted together, for masks of `words` words.
pub(super) fn block(words: usize) -> usize {
    if words < LARGE { BLOCK } else { BLOCK_OF_LARGE }
}

/// Masks of a block of tokens. The version of their layer guards reads and writes.
#[derive(Debug)]
pub(super) struct Pending {
    /// Tokens that are counted together.
    block: usize,
    waiting: AtomicU32,
    /// The low half of each token's index.
    indices: [AtomicU32; BLOCK],
    fired: PendingMasks,
    chosen: PendingMasks,
}

/// `[block, words]`
#[derive(Debug)]
struct PendingMasks {
    words: usize,
    bits: Box<[AtomicU32]>,
}

impl Pending {
    /// Makes room for masks of `neurons` neurons and `experts` experts.
    pub fn new(neurons: usize, experts: usize) -> Self {
        let block = block(neurons.div_ceil(32));
        Pending {
            block,
            waiting: AtomicU32::new(0),
            indices: std::array::from_fn(|_| AtomicU32::new(0)),
            fired: PendingMasks::new(block, neurons.div_ceil(32)),
            chosen: PendingMasks::new(block, experts.div_ceil(32)),
        }
    }

    /// Number of waiting tokens.
    pub fn tokens(&self) -> usize {
        (self.waiting.load(Relaxed) as usize).min(self.block)
    }

    /// Appends a token, unless the block is full. Returns true if the block is now full.
    pub fn push(&self, index: u64, fired: &[u32], chosen: &[u32]) -> bool {
        let at = self.tokens();
        if let Some(place) = self.indices[..self.block].get(at) {
            place.store(index as u32, Relaxed);
            self.fired.store(at, fired);
            self.chosen.store(at, chosen);
            self.waiting.store(at as u32 + 1, Relaxed);
        }
        at + 1 >= self.block
    }

    /// Removes all waiting tokens.
    pub fn clear(&self) {
        self.waiting.store(0, Relaxed);
    }

    /// The low half of the index of token `at`.
    fn index(&self, at: usize) -> u32 {
        self.indices.get(at).map_or(0, |index| index.load(Relaxed))
    }

    /// Calls `each` for every neuron that fired at a waiting token, with the number of its firings
    /// and the index of the last one's token.
    pub fn each_fired(&self, each: impl FnMut(usize, u32, u32)) {
        self.each(&self.fired, each);
    }

    /// Calls `each` for every chosen expert, as [`Pending::each_fired`] does for neurons.
    pub fn each_chosen(&self, each: impl FnMut(usize, u32, u32)) {
        self.each(&self.chosen, each);
    }

    fn each(&self, masks: &PendingMasks, mut each: impl FnMut(usize, u32, u32)) {
        let load = |row, first, into: &mut [u32]| masks.load(row, first, into);
        columns(self.tokens(), masks.words, load, |neuron, count, last| each(neuron, count, self.index(last)));
    }
}

impl PendingMasks {
    fn new(block: usize, words: usize) -> Self {
        PendingMasks { words, bits: (0..block * words).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Replaces the mask of a token. Words that `mask` lacks become zero.
    fn store(&self, at: usize, mask: &[u32]) {
        let row = &self.bits[at * self.words..][..self.words];
        let given = mask.len().min(self.words);
        for (to, bits) in row.chunks(LINE).zip(mask.chunks(LINE)) {
            // Most experts' neurons stay silent. A cache line that is not written need not be
            // written back.
            let same = to.iter().zip(bits).fold(0, |differ, (to, bits)| differ | (to.load(Relaxed) ^ bits)) == 0;
            if !same {
                to.iter().zip(bits).for_each(|(to, bits)| to.store(*bits, Relaxed));
            }
        }
        row[given..].iter().for_each(|to| to.store(0, Relaxed));
    }

    /// Copies words of a token's mask, from word `first` on.
    fn load(&self, at: usize, first: usize, into: &mut [u32]) {
        let row = &self.bits[at * self.words + first..];
        into.iter_mut().zip(row).for_each(|(to, bits)| *to = bits.load(Relaxed));
    }
}
