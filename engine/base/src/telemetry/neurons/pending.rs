//! The latest single tokens of a layer, not yet in its counts.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::count::{LINE, ROWS, columns};

/// Tokens that are counted together. Most neurons that fire at all fire at several of them, and each is then touched once;
/// but a reader has to go through all that wait, and those of large layers no longer fit the caches.
pub(super) const BLOCK: usize = ROWS;
const BLOCK_OF_LARGE: usize = 32;

/// Words of a large layer's mask.
const LARGE: usize = 256;

/// Tokens of a layer that are counted together, masks of neurons having `words` words.
pub(super) fn block(words: usize) -> usize {
    if words < LARGE { BLOCK } else { BLOCK_OF_LARGE }
}

/// Masks of a block of tokens. Written and read under the version of the layer they belong to.
#[derive(Debug)]
pub(super) struct Pending {
    /// As many as are counted together.
    block: usize,
    waiting: AtomicU32,
    /// Of each token, the low half of its index.
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
    /// For masks of so many neurons and experts.
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

    /// Tokens that wait.
    pub fn tokens(&self) -> usize {
        (self.waiting.load(Relaxed) as usize).min(self.block)
    }

    /// Appends a token; one that is too much is left out. Whether the block is full now.
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

    /// Empties it.
    pub fn clear(&self) {
        self.waiting.store(0, Relaxed);
    }

    /// The low half of the index of token `at`.
    fn index(&self, at: usize) -> u32 {
        self.indices.get(at).map_or(0, |index| index.load(Relaxed))
    }

    /// Calls `each` for every neuron that fired at a token that waits, with how often it did and the index of the last token.
    pub fn each_fired(&self, each: impl FnMut(usize, u32, u32)) {
        self.each(&self.fired, each);
    }

    /// The same of experts that were chosen.
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

    /// Replaces the mask of a token; what `mask` lacks is empty.
    fn store(&self, at: usize, mask: &[u32]) {
        let row = &self.bits[at * self.words..][..self.words];
        let given = mask.len().min(self.words);
        for (to, bits) in row.chunks(LINE).zip(mask.chunks(LINE)) {
            // Most experts' neurons are silent, now as before: a line that is not written need not be written back.
            let same = to.iter().zip(bits).fold(0, |differ, (to, bits)| differ | (to.load(Relaxed) ^ bits)) == 0;
            if !same {
                to.iter().zip(bits).for_each(|(to, bits)| to.store(*bits, Relaxed));
            }
        }
        row[given..].iter().for_each(|to| to.store(0, Relaxed));
    }

    /// Some words of a token's mask, from `first` on.
    fn load(&self, at: usize, first: usize, into: &mut [u32]) {
        let row = &self.bits[at * self.words + first..];
        into.iter_mut().zip(row).for_each(|(to, bits)| *to = bits.load(Relaxed));
    }
}
