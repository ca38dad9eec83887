//! How often every neuron fires: counted by one thread, read by any.

use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

use super::{NeuronShape, count::ColumnCounts, trace::neurons_of};

/// Tokens after which a firing counts for 1/e in [`LayerTally::recent`].
const MEMORY: f64 = 256.0;

/// A new token's weight grows instead of all old ones shrinking; at this it is time to shrink them once.
const HEAVIEST: f64 = 1e15;

/// What is known of a layer's neurons, at one instant.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LayerTally {
    /// Tokens the layer has computed while it was watched, those of cancelled chunks among them.
    pub tokens: u64,
    /// `[n_ff]`: at how many of them each neuron fired.
    pub counts: Vec<u32>,
    /// `[n_ff]`: at what share of the latest, older tokens fading out within a few hundred.
    pub recent: Vec<f32>,
    /// `[n_ff]`: how many tokens ago it last fired, 0 for the latest token; `None` if it never did.
    pub age: Vec<Option<u32>>,
    /// `[experts]`: at how many tokens each was chosen; empty where the FFN is no mixture.
    pub chosen: Vec<u32>,
    /// `[experts]`: at what share of the latest, fading as in `recent`.
    pub chosen_recent: Vec<f32>,
}

/// The counts of every layer. Each layer has a version, odd while it is written: a reader that saw it change reads again.
#[derive(Debug)]
pub(super) struct Tally {
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    version: AtomicU32,
    tokens: AtomicU64,
    /// Index of the latest token.
    latest: AtomicU64,
    /// Weights of all tokens, an f64.
    weight: AtomicU64,
    neurons: Box<[Neuron]>,
    /// The same of experts, which fire when they are chosen.
    experts: Box<[Neuron]>,
}

/// Side by side, so that a firing touches one line of the cache.
#[derive(Debug, Default)]
struct Neuron {
    count: AtomicU32,
    /// Weights of the tokens it fired at, an f32.
    level: AtomicU32,
    /// Index of the last of them, its low half.
    last: AtomicU32,
}

impl Tally {
    pub fn new(shape: &NeuronShape) -> Self {
        let layer = |layer| Layer {
            version: AtomicU32::new(0),
            tokens: AtomicU64::new(0),
            latest: AtomicU64::new(0),
            weight: AtomicU64::new(0),
            neurons: (0..shape.neurons(layer)).map(|_| Neuron::default()).collect(),
            experts: (0..shape.experts(layer)).map(|_| Neuron::default()).collect(),
        };
        Tally { layers: (0..shape.layers()).map(layer).collect() }
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let of = |layer: &Layer| size_of_val(&*layer.neurons) + size_of_val(&*layer.experts);
        self.layers.iter().map(|layer| of(layer) as u64).sum()
    }

    /// Reads a layer into `into`, whose memory is used again.
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

impl Layer {
    fn copy(&self, into: &mut LayerTally) {
        let latest = self.latest.load(Relaxed) as u32;
        let weight = f64::from_bits(self.weight.load(Relaxed));
        let per_weight = if weight > 0.0 { 1.0 / weight } else { 0.0 };
        into.tokens = self.tokens.load(Relaxed);
        into.counts.clear();
        into.recent.clear();
        into.age.clear();
        into.chosen.clear();
        into.chosen_recent.clear();
        let share = |of: &Neuron| (f64::from(f32::from_bits(of.level.load(Relaxed))) * per_weight) as f32;
        for neuron in &self.neurons {
            let count = neuron.count.load(Relaxed);
            into.counts.push(count);
            into.recent.push(share(neuron));
            into.age.push((count > 0).then(|| latest.wrapping_sub(neuron.last.load(Relaxed))));
        }
        for expert in &self.experts {
            into.chosen.push(expert.count.load(Relaxed));
            into.chosen_recent.push(share(expert));
        }
    }
}

/// Makes a layer's version even again whatever happens, so that no reader waits for ever.
struct Writing<'a>(&'a Layer);

impl<'a> Writing<'a> {
    fn begin(layer: &'a Layer) -> Self {
        layer.version.fetch_add(1, Relaxed);
        fence(Release);
        Writing(layer)
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.version.fetch_add(1, Release);
    }
}

/// What the one writer of a [`Tally`] remembers.
#[derive(Debug)]
pub(super) struct Tallier {
    /// By layer: what a token weighs now.
    weights: Vec<f64>,
    columns: ColumnCounts,
    /// Neurons whose last firing was found.
    found: Vec<u32>,
}

impl Tallier {
    pub fn new(shape: &NeuronShape) -> Self {
        Tallier { weights: vec![1.0; shape.layers()], columns: ColumnCounts::default(), found: Vec::new() }
    }

    /// Counts the tokens from `first` on; `fired` is `[tokens, words]`, and so is what a mixture has `chosen`. They weigh alike.
    pub fn add(
        &mut self,
        tally: &Tally,
        layer: usize,
        first: u64,
        tokens: usize,
        fired: &[u32],
        chosen: Option<&[u32]>,
    ) {
        let (Some(layer), Some(heavy)) = (tally.layers.get(layer), self.weights.get_mut(layer)) else { return };
        let _writing = Writing::begin(layer);
        *heavy *= (tokens as f64 / MEMORY).exp();
        let mut total = f64::from_bits(layer.weight.load(Relaxed));
        if *heavy > HEAVIEST {
            let shrink = 1.0 / *heavy;
            layer.neurons.iter().chain(&layer.experts).for_each(|neuron| {
                let level = f64::from(f32::from_bits(neuron.level.load(Relaxed)));
                neuron.level.store(((level * shrink) as f32).to_bits(), Relaxed);
            });
            total *= shrink;
            *heavy = 1.0;
        }
        let weight = *heavy;
        self.count(&layer.neurons, first, tokens, fired, weight);
        self.count(&layer.experts, first, tokens, chosen.unwrap_or_default(), weight);
        layer.weight.store((total + weight * tokens as f64).to_bits(), Relaxed);
        layer.tokens.store(layer.tokens.load(Relaxed) + tokens as u64, Relaxed);
        layer.latest.store((first + tokens as u64).saturating_sub(1), Relaxed);
    }

    /// Counts them for `neurons`, each token with `weight`.
    fn count(&mut self, neurons: &[Neuron], first: u64, tokens: usize, fired: &[u32], weight: f64) {
        let words = neurons.len().div_ceil(32);
        let fires = |neuron: usize, count: u32| {
            let Some(neuron) = neurons.get(neuron) else { return };
            neuron.count.store(neuron.count.load(Relaxed).saturating_add(count), Relaxed);
            let level = f32::from_bits(neuron.level.load(Relaxed)) + (weight * f64::from(count)) as f32;
            neuron.level.store(level.to_bits(), Relaxed);
        };
        let last = |neuron: usize, index: u64| {
            if let Some(neuron) = neurons.get(neuron) {
                neuron.last.store(index as u32, Relaxed);
            }
        };
        if tokens == 1 {
            for neuron in neurons_of(fired) {
                fires(neuron, 1);
                last(neuron, first);
            }
            return;
        }
        self.columns.of(fired, words, fires);
        self.found.clear();
        self.found.resize(words, 0);
        for (t, row) in fired.chunks_exact(words.max(1)).enumerate().rev() {
            for (word, (bits, found)) in row.iter().zip(&mut self.found).enumerate() {
                let new = *bits & !*found;
                if new != 0 {
                    *found |= new;
                    neurons_of(&[new]).for_each(|bit| last(word * 32 + bit, first + t as u64));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: &mut u64) -> u32 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 32) as u32
    }

    #[test]
    fn frequencies_are_those_of_a_naive_count() {
        const NEURONS: usize = 75;
        let shape = NeuronShape::new([0, NEURONS]);
        let (tally, mut tallier, mut seed) = (Tally::new(&shape), Tallier::new(&shape), 3);
        let (mut counts, mut level, mut weight) = ([0u32; NEURONS], [0f64; NEURONS], 0f64);
        let (mut last, mut index) = ([None; NEURONS], 0u64);
        // Past the weight at which levels are shrunk.
        for chunk in (0..1200).map(|i| [1usize, 1, 20, 3][i % 4]) {
            let rows: Vec<[u32; 3]> = (0..chunk)
                .map(|_| {
                    let rare = noise(&mut seed) & noise(&mut seed) & noise(&mut seed) & noise(&mut seed);
                    [noise(&mut seed), rare & noise(&mut seed), 0x7ff & noise(&mut seed)]
                })
                .collect();
            tallier.add(&tally, 1, index, chunk, rows.as_flattened(), None);
            let fade = (-(chunk as f64) / MEMORY).exp();
            (0..NEURONS).for_each(|n| level[n] *= fade);
            weight = weight * fade + chunk as f64;
            for row in &rows {
                for n in (0..NEURONS).filter(|n| row[n / 32] >> (n % 32) & 1 == 1) {
                    (counts[n], last[n]) = (counts[n] + 1, Some(index));
                    level[n] += 1.0;
                }
                index += 1;
            }
        }
        let mut got = LayerTally::default();
        tally.read(1, &mut got);
        assert_eq!((got.tokens, &got.counts[..]), (index, &counts[..]));
        let ages = last.map(|last| last.map(|last| (index - 1 - last) as u32));
        assert_eq!(got.age, ages);
        for (got, want) in got.recent.iter().zip(level.map(|level| level / weight)) {
            assert!((f64::from(*got) - want).abs() < 1e-4, "{got} {want}");
        }
        tally.read(0, &mut got);
        assert_eq!(got, LayerTally { tokens: 0, ..LayerTally::default() });
        tally.read(2, &mut got);
        assert_eq!(got.counts.len(), 0);
    }

    #[test]
    fn a_reader_never_sees_half_a_token() {
        // All neurons fire together, so all counts are equal whenever they are read.
        let shape = NeuronShape::new([640]);
        let (tally, mut tallier) = (Tally::new(&shape), Tallier::new(&shape));
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
                tallier.add(&tally, 0, index, 1, &[u32::MAX; 20], None);
            }
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
    }
}
