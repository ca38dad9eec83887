//! How often every neuron fires. One thread counts, any thread reads.

use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

use super::{
    NeuronShape,
    count::{ROWS, columns},
    pending::Pending,
};

/// Tokens after which a firing counts for 1/e in [`LayerTally::recent`].
const MEMORY: f64 = 256.0;

/// The weight at which all levels are scaled down. Each new token weighs more than the last, so
/// that older levels need not shrink at every token.
const HEAVIEST: f64 = 1e15;

/// Counts of a layer's neurons at one instant.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LayerTally {
    /// Tokens that the layer computed while it was watched, including those of cancelled chunks.
    pub tokens: u64,
    /// `[n_ff]`: number of these tokens at which each neuron fired.
    pub counts: Vec<u32>,
    /// `[n_ff]`: fraction of recent tokens at which each neuron fired. Older tokens fade out within
    /// a few hundred tokens.
    pub recent: Vec<f32>,
    /// `[n_ff]`: number of tokens since each neuron last fired, 0 for the latest token. `None` if
    /// it never fired.
    pub age: Vec<Option<u32>>,
    /// `[experts]`: number of tokens that chose each expert. Empty for a layer without experts.
    pub chosen: Vec<u32>,
    /// `[experts]`: fraction of recent tokens that chose each expert, fading as in `recent`.
    pub chosen_recent: Vec<f32>,
}

/// The counts of every layer. Each layer has a version, which is odd during a write. A reader that
/// sees the version change reads again. Single tokens wait until there are enough to count them
/// together. A reader that comes earlier counts them itself.
#[derive(Debug)]
pub(super) struct Tally {
    layers: Vec<TalliedLayer>,
}

#[derive(Debug)]
struct TalliedLayer {
    version: AtomicU32,
    /// Number of all tokens, including waiting tokens.
    tokens: AtomicU64,
    /// Index of the latest token.
    latest: AtomicU64,
    pending: Pending,
    /// Total weight of the tokens that are counted, and the weight of the latest of them: f64s.
    weight: AtomicU64,
    heavy: AtomicU64,
    neurons: Box<[Neuron]>,
    /// Counts of the experts. An expert fires when it is chosen.
    experts: Box<[Neuron]>,
}

/// Counts of one neuron or expert, side by side, so that a firing touches one cache line.
#[derive(Debug, Default)]
struct Neuron {
    count: AtomicU32,
    /// Total weight of the tokens at which it fired, an f32.
    level: AtomicU32,
    /// Low half of the index of the last token at which it fired.
    last: AtomicU32,
}

impl Tally {
    pub fn new(shape: &NeuronShape) -> Self {
        let layer = |layer| TalliedLayer {
            version: AtomicU32::new(0),
            tokens: AtomicU64::new(0),
            latest: AtomicU64::new(0),
            pending: Pending::new(shape.neurons(layer), shape.experts(layer)),
            weight: AtomicU64::new(0f64.to_bits()),
            heavy: AtomicU64::new(1f64.to_bits()),
            neurons: (0..shape.neurons(layer)).map(|_| Neuron::default()).collect(),
            experts: (0..shape.experts(layer)).map(|_| Neuron::default()).collect(),
        };
        Tally { layers: (0..shape.layers()).map(layer).collect() }
    }

    /// Counts the tokens from `first` on. `fired` and `chosen` (the experts of an MoE layer) are
    /// `[tokens, words]`. The tokens of a chunk have equal weights, and so do single tokens that
    /// waited together. Only one thread may call this.
    pub fn add(&self, layer: usize, first: u64, tokens: usize, fired: &[u32], chosen: Option<&[u32]>) {
        let Some(layer) = self.layers.get(layer) else { return };
        let chosen = chosen.unwrap_or_default();
        let _writing = LayerWrite::begin(layer);
        layer.tokens.store(layer.tokens.load(Relaxed) + tokens as u64, Relaxed);
        layer.latest.store((first + tokens as u64).saturating_sub(1), Relaxed);
        if tokens == 1 {
            if layer.pending.push(first, fired, chosen) {
                layer.settle();
            }
            return;
        }
        layer.settle();
        let weight = layer.grow(tokens) as f32;
        count(&layer.neurons, first, fired, weight);
        count(&layer.experts, first, chosen, weight);
    }

    /// Reads a layer into `into` and reuses its memory.
    pub fn read(&self, layer: usize, into: &mut LayerTally) {
        let Some(layer) = self.layers.get(layer) else {
            *into = LayerTally::default();
            return;
        };
        loop {
            let before = layer.version.load(Acquire);
            if before % 2 == 0 {
                layer.copy(into);
                fence(Acquire);
                if layer.version.load(Relaxed) == before {
                    return;
                }
            }
            std::thread::yield_now();
        }
    }
}

impl TalliedLayer {
    /// The weight of each of the next `tokens` tokens.
    fn weight_of_next(&self, tokens: usize) -> f64 {
        f64::from_bits(self.heavy.load(Relaxed)) * (tokens as f64 / MEMORY).exp()
    }

    /// Counts the waiting tokens.
    fn settle(&self) {
        let tokens = self.pending.tokens();
        if tokens == 0 {
            return;
        }
        let weight = self.grow(tokens) as f32;
        let fire = |neurons: &[Neuron], at: usize, count, last| {
            if let Some(neuron) = neurons.get(at) {
                neuron.fire(count, last, weight);
            }
        };
        self.pending.each_fired(|neuron, count, last| fire(&self.neurons, neuron, count, last));
        self.pending.each_chosen(|expert, count, last| fire(&self.experts, expert, count, last));
        self.pending.clear();
    }

    /// Adds the weight of `tokens` more tokens, and returns the weight of each.
    fn grow(&self, tokens: usize) -> f64 {
        let mut weight = self.weight_of_next(tokens);
        let mut total = f64::from_bits(self.weight.load(Relaxed));
        if weight > HEAVIEST {
            let shrink = 1.0 / weight;
            self.neurons.iter().chain(&self.experts).for_each(|neuron| {
                let level = f64::from(f32::from_bits(neuron.level.load(Relaxed)));
                neuron.level.store(((level * shrink) as f32).to_bits(), Relaxed);
            });
            total *= shrink;
            weight = 1.0;
        }
        self.weight.store((total + weight * tokens as f64).to_bits(), Relaxed);
        self.heavy.store(weight.to_bits(), Relaxed);
        weight
    }

    fn copy(&self, into: &mut LayerTally) {
        let latest = self.latest.load(Relaxed) as u32;
        let waiting = self.pending.tokens();
        let weight = self.weight_of_next(waiting);
        let total = f64::from_bits(self.weight.load(Relaxed)) + weight * waiting as f64;
        let per_weight = if total > 0.0 { 1.0 / total } else { 0.0 };
        let of_one = (weight * per_weight) as f32;
        into.tokens = self.tokens.load(Relaxed);
        into.counts.clear();
        into.recent.clear();
        into.age.clear();
        into.chosen.clear();
        into.chosen_recent.clear();
        let recent = |of: &Neuron| (f64::from(f32::from_bits(of.level.load(Relaxed))) * per_weight) as f32;
        for neuron in &self.neurons {
            let count = neuron.count.load(Relaxed);
            into.counts.push(count);
            into.recent.push(recent(neuron));
            into.age.push((count > 0).then(|| latest.wrapping_sub(neuron.last.load(Relaxed))));
        }
        for expert in &self.experts {
            into.chosen.push(expert.count.load(Relaxed));
            into.chosen_recent.push(recent(expert));
        }
        self.pending.each_fired(|neuron, count, last| {
            add(&mut into.counts, &mut into.recent, neuron, count, of_one);
            if let Some(age) = into.age.get_mut(neuron) {
                *age = Some(latest.wrapping_sub(last));
            }
        });
        self.pending.each_chosen(|expert, count, _| {
            add(&mut into.chosen, &mut into.chosen_recent, expert, count, of_one);
        });
    }
}

/// Counts `count` more firings of neuron `at`, each of which adds `weight` to its recent frequency.
fn add(counts: &mut [u32], recent: &mut [f32], at: usize, count: u32, weight: f32) {
    if let (Some(all), Some(recent)) = (counts.get_mut(at), recent.get_mut(at)) {
        *all = all.saturating_add(count);
        *recent += count as f32 * weight;
    }
}

impl Neuron {
    /// Counts `count` more firings, at tokens of weight `weight`.
    fn fire(&self, count: u32, last: u32, weight: f32) {
        self.count.store(self.count.load(Relaxed).saturating_add(count), Relaxed);
        let level = f32::from_bits(self.level.load(Relaxed)) + weight * count as f32;
        self.level.store(level.to_bits(), Relaxed);
        self.last.store(last, Relaxed);
    }
}

/// Makes a layer's version even again when dropped, so that no reader waits forever.
struct LayerWrite<'a>(&'a TalliedLayer);

impl<'a> LayerWrite<'a> {
    fn begin(layer: &'a TalliedLayer) -> Self {
        // There is one writer, so load and store need not be one atomic step.
        layer.version.store(layer.version.load(Relaxed).wrapping_add(1), Relaxed);
        fence(Release);
        LayerWrite(layer)
    }
}

impl Drop for LayerWrite<'_> {
    fn drop(&mut self) {
        self.0.version.store(self.0.version.load(Relaxed).wrapping_add(1), Release);
    }
}

/// Counts the masks of the tokens from `first` on.
fn count(neurons: &[Neuron], first: u64, masks: &[u32], weight: f32) {
    let words = neurons.len().div_ceil(32);
    for (at, stack) in masks.chunks((ROWS * words).max(1)).enumerate() {
        let first = first + (at * ROWS) as u64;
        let load = |row: usize, word: usize, into: &mut [u32]| {
            into.copy_from_slice(&stack[row * words + word..][..into.len()]);
        };
        columns(stack.len() / words.max(1), words, load, |neuron, count, last| {
            if let Some(neuron) = neurons.get(neuron) {
                neuron.fire(count, (first + last as u64) as u32, weight);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            LayerNeurons,
            count::LINE,
            pending::{BLOCK, block},
            tests::noise,
        },
        *,
    };

    /// Simple reference count of one layer.
    struct Naive {
        counts: Vec<u32>,
        levels: Vec<f64>,
        last: Vec<Option<u64>>,
        weight: f64,
        index: u64,
        /// Masks of single tokens since the last block or chunk.
        waiting: Vec<Vec<u32>>,
    }

    impl Naive {
        fn new(neurons: usize) -> Self {
            let (counts, levels, last) = (vec![0; neurons], vec![0.0; neurons], vec![None; neurons]);
            Naive { counts, levels, last, weight: 0.0, index: 0, waiting: Vec::new() }
        }

        fn add(&mut self, rows: &[Vec<u32>]) {
            for row in rows {
                for n in (0..self.counts.len()).filter(|n| row[n / 32] >> (n % 32) & 1 == 1) {
                    (self.counts[n], self.last[n]) = (self.counts[n] + 1, Some(self.index));
                }
                self.index += 1;
            }
            if let [row] = rows {
                self.waiting.push(row.clone());
                if self.waiting.len() < block(row.len()) {
                    return;
                }
            }
            self.weigh(&self.waiting.clone());
            self.waiting.clear();
            if rows.len() > 1 {
                self.weigh(rows);
            }
        }

        /// Fades older tokens by the number of new tokens, which have equal weights.
        fn weigh(&mut self, rows: &[Vec<u32>]) {
            let fade = (-(rows.len() as f64) / MEMORY).exp();
            self.weight = self.weight * fade + rows.len() as f64;
            for (n, level) in self.levels.iter_mut().enumerate() {
                let fired = rows.iter().filter(|row| row[n / 32] >> (n % 32) & 1 == 1).count();
                *level = *level * fade + fired as f64;
            }
        }

        fn compare(&self, got: &LayerTally) {
            assert_eq!((got.tokens, &got.counts), (self.index, &self.counts));
            let age: Vec<_> = self.last.iter().map(|last| last.map(|last| (self.index - 1 - last) as u32)).collect();
            assert_eq!(got.age, age);
            let mut now = Naive { levels: self.levels.clone(), ..Naive::new(self.counts.len()) };
            now.weight = self.weight;
            now.weigh(&self.waiting);
            for (got, level) in got.recent.iter().zip(&now.levels) {
                let want = level / now.weight.max(1.0);
                assert!((f64::from(*got) - want).abs() < 1e-4, "{got} {want} after {} tokens", self.index);
            }
        }
    }

    /// Counts chunks of these lengths, and reads at some of them.
    fn count_beside_naive(neurons: usize, chunks: impl Iterator<Item = usize>) -> (Tally, Naive) {
        let (tally, mut naive) = (Tally::new(&NeuronShape::new([0, neurons])), Naive::new(neurons));
        let (mut got, mut seed) = (LayerTally::default(), 3);
        tally.read(1, &mut got);
        naive.compare(&got);
        for chunk in chunks {
            let mut word = |at: usize| {
                let rare = noise(&mut seed) & noise(&mut seed) & noise(&mut seed) & noise(&mut seed);
                let left = neurons - 32 * at;
                // Each cache line of a mask begins with the same word and continues differently.
                let bits =
                    if at.is_multiple_of(LINE) { 1 } else { [noise(&mut seed), rare & noise(&mut seed)][at % 2] };
                if left < 32 { bits & ((1 << left) - 1) } else { bits }
            };
            let rows: Vec<Vec<u32>> = (0..chunk).map(|_| (0..neurons.div_ceil(32)).map(&mut word).collect()).collect();
            tally.add(1, naive.index, chunk, &rows.concat(), None);
            naive.add(&rows);
            if noise(&mut seed).is_multiple_of(3) {
                tally.read(1, &mut got);
                naive.compare(&got);
            }
        }
        tally.read(1, &mut got);
        naive.compare(&got);
        (tally, naive)
    }

    #[test]
    fn tally_matches_a_naive_count_at_any_read() {
        // Passes the weight at which levels are scaled down. Between chunks are runs of single
        // tokens longer than a block.
        let chunks = (0..2200).map(|i| if i % 160 < 80 { 1 } else { [1usize, 1, 20, 3, 70][i % 5] });
        let (tally, naive) = count_beside_naive(75, chunks);
        assert!(naive.index > 20_000, "{} tokens", naive.index);
        let mut got = LayerTally::default();
        tally.read(0, &mut got);
        assert_eq!(got, LayerTally { tokens: 0, ..LayerTally::default() });
        tally.read(2, &mut got);
        assert_eq!(got.counts.len(), 0);
    }

    #[test]
    fn tally_of_large_layers_uses_shorter_blocks() {
        let neurons = 8200usize;
        assert!(block(neurons.div_ceil(32)) < block(3));
        count_beside_naive(neurons, [1; 40].into_iter().chain([3, 1, 1, 70]).chain([1; 70]));
    }

    #[test]
    fn tally_counts_chosen_experts() {
        let moe = LayerNeurons::Experts { experts: 40, width: 1, shared: 0 };
        let tally = Tally::new(&NeuronShape::of([moe]));
        let mut seed = 9;
        let (mut experts, mut got) = ([0u32; 40], LayerTally::default());
        for index in 0..3 * BLOCK as u64 + 5 {
            let chosen = [noise(&mut seed), noise(&mut seed) & 0xff];
            (0..40).for_each(|n| experts[n] += chosen[n / 32] >> (n % 32) & 1);
            tally.add(0, index, 1, &[1, 0], Some(&chosen));
            tally.read(0, &mut got);
            assert_eq!((got.chosen.as_slice(), got.counts[0]), (&experts[..], index as u32 + 1));
            assert!((got.recent[0] - 1.0).abs() < 1e-5);
        }
        // After an abandoned chunk its indices are used again.
        tally.add(0, 2, 1, &[0, 1], Some(&[0, 0]));
        tally.read(0, &mut got);
        assert_eq!((got.age[32], got.counts[32]), (Some(0), 1));
    }

    #[test]
    fn tally_readers_see_whole_tokens_only() {
        // All neurons fire together, so that all counts are equal at any read.
        let tally = Tally::new(&NeuronShape::new([640]));
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let mut seen = LayerTally::default();
                        let mut last = 0;
                        while last < 4000 {
                            tally.read(0, &mut seen);
                            assert!(seen.tokens >= last);
                            last = seen.tokens;
                            assert!(seen.counts.iter().all(|count| u64::from(*count) == seen.tokens), "{seen:?}");
                            assert!(seen.age.iter().all(|age| *age == (last > 0).then_some(0)), "{seen:?}");
                        }
                    })
                })
                .collect();
            for index in 0..4000 {
                tally.add(0, index, 1, &[u32::MAX; 20], None);
            }
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
    }
}
