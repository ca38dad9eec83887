//! From neurons to dots on the CPU: what is told of a layer, summed up dot by dot. Only what fires is touched, so that a
//! picture of 2.3 million neurons takes less than two milliseconds.

use std::ops::Range;

use thermocline_engine::telemetry::neurons::neurons_of;

use super::{
    grid::Grid,
    order::Order,
    told::{Told, code, rarity, recency, root},
};

/// Which dot each neuron of a layer is in.
#[derive(Debug, Clone, Default)]
pub struct Dots {
    /// `[neurons]`: place in the layer's band of the picture; `u32::MAX` for who is not shown.
    texels: Vec<u32>,
    /// `[dots]`: neurons in each.
    crowd: Vec<u32>,
    /// Memory for sums.
    sums: Vec<u32>,
}

impl Dots {
    /// Of the neurons at `ranks` of `order`.
    pub fn new(grid: Grid, order: &Order, ranks: Range<usize>) -> Self {
        let place: Vec<u32> = (0..ranks.len()).map(|at| grid.texel(grid.dot(at, ranks.len())) as u32).collect();
        let texel = |rank: &u32| {
            let at = (*rank as usize).checked_sub(ranks.start);
            at.and_then(|at| place.get(at)).copied().unwrap_or(u32::MAX)
        };
        let texels: Vec<u32> = order.ranks().iter().map(texel).collect();
        let mut crowd = vec![0; grid.dots()];
        for texel in &place {
            crowd[*texel as usize] += 1;
        }
        Dots { texels, sums: vec![0; crowd.len()], crowd }
    }

    /// Draws what is told of the layer.
    pub fn draw(&mut self, told: &Told<'_>, into: &mut [u8]) {
        match told {
            Told::Nothing => into.fill(0),
            Told::Fired(mask) => self.shares(mask, into),
            Told::Strength(mask, strength) => self.strongest(mask, strength, into),
            Told::Guess(fired, predicted) => self.predictions(fired, predicted, into),
            Told::Changes(change) => self.changes(&change.began, &change.ended, into),
            Told::Places(mask) => self.places(mask, into),
            Told::Frequency(values) => self.means(values, into),
            Told::Ages(ages) => self.latest(ages, into),
        }
    }

    /// Adds `worth` of every neuron in `mask` up, dot by dot.
    fn sum(&mut self, mask: &[u32], worth: u32) {
        for neuron in neurons_of(mask) {
            let Some(texel) = self.texels.get(neuron) else { return };
            if let Some(sum) = self.sums.get_mut(*texel as usize) {
                *sum = sum.saturating_add(worth);
            }
        }
    }

    fn shares(&mut self, mask: &[u32], into: &mut [u8]) {
        self.sums.fill(0);
        self.sum(mask, 1);
        for ((sum, crowd), dot) in self.sums.iter().zip(&self.crowd).zip(into) {
            *dot = if *sum == 0 { 0 } else { root(*sum as f32, *crowd as f32) };
        }
    }

    fn places(&mut self, mask: &[u32], into: &mut [u8]) {
        self.sums.fill(0);
        self.sum(mask, 1);
        for ((sum, crowd), dot) in self.sums.iter().zip(&self.crowd).zip(into) {
            *dot = if *crowd == 0 { 0 } else { (1 + 254 * u64::from(*sum) / u64::from(*crowd)) as u8 };
        }
    }

    fn strongest(&mut self, mask: &[u32], strength: &[u8], into: &mut [u8]) {
        into.fill(0);
        for neuron in neurons_of(mask) {
            let (Some(texel), Some(strength)) = (self.texels.get(neuron), strength.get(neuron)) else { return };
            if let Some(dot) = into.get_mut(*texel as usize) {
                *dot = (*dot).max(*strength);
            }
        }
    }

    fn predictions(&mut self, fired: &[u32], predicted: &[u32], into: &mut [u8]) {
        let pick = |of: fn(u32, u32) -> u32| -> Vec<u32> {
            fired.iter().zip(predicted).map(|(fired, predicted)| of(*fired, *predicted)).collect()
        };
        let (hit, vain, missed) = (pick(|f, p| f & p), pick(|f, p| p & !f), pick(|f, p| f & !p));
        self.sums.fill(0);
        self.sum(&hit, 1);
        for (sum, dot) in self.sums.iter().zip(&mut *into) {
            *dot = if *sum == 0 { 0 } else { code::HIT };
        }
        // From here on the sums are hits that no false alarm makes up for.
        for (mask, sign, code) in [(&vain, -1, code::FALSE_ALARM), (&missed, 0, code::MISS)] {
            for neuron in neurons_of(mask) {
                let Some(texel) = self.texels.get(neuron) else { break };
                let at = *texel as usize;
                let (Some(sum), Some(dot)) = (self.sums.get_mut(at), into.get_mut(at)) else { continue };
                *sum = sum.wrapping_add_signed(sign);
                if code == code::MISS || sum.cast_signed() < 0 {
                    *dot = code;
                }
            }
        }
    }

    fn changes(&mut self, began: &[u32], ended: &[u32], into: &mut [u8]) {
        into.fill(0);
        for (mask, code) in [(began, code::BEGAN), (ended, code::ENDED)] {
            for neuron in neurons_of(mask) {
                let Some(texel) = self.texels.get(neuron) else { break };
                if let Some(dot) = into.get_mut(*texel as usize) {
                    *dot |= code;
                }
            }
        }
    }

    fn means(&mut self, values: &[f32], into: &mut [u8]) {
        // Sums of squares must not overflow, however many neurons are in a dot.
        let most = u64::from(self.crowd.iter().copied().max().unwrap_or(0)) * 65_025;
        let shift = u64::BITS - (most >> 32).leading_zeros();
        self.sums.fill(0);
        for (texel, value) in self.texels.iter().zip(values) {
            if let Some(sum) = self.sums.get_mut(*texel as usize) {
                *sum = sum.saturating_add(u32::from(rarity(*value)).pow(2) >> shift);
            }
        }
        let one = (65_025 >> shift) as f32;
        for ((sum, crowd), dot) in self.sums.iter().zip(&self.crowd).zip(into) {
            *dot = root(*sum as f32, one * *crowd as f32);
        }
    }

    fn latest(&mut self, ages: &[Option<u32>], into: &mut [u8]) {
        self.sums.fill(u32::MAX);
        for (texel, age) in self.texels.iter().zip(ages) {
            if let (Some(least), Some(age)) = (self.sums.get_mut(*texel as usize), age) {
                *least = (*least).min(*age);
            }
        }
        for (age, dot) in self.sums.iter().zip(into) {
            *dot = recency(Some(*age));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use cpu_time::ThreadTime;
    use thermocline_engine::telemetry::neurons::{Difference, NeuronShape};

    use super::*;
    use crate::ui::neurons::{plane::Plane, told::Fold};

    /// Four neurons in two dots, the hot ones (1 and 3) in the first.
    fn dots() -> Dots {
        let order = Order::by_frequency(4, &[], &[0b1010]);
        Dots::new(Grid { columns: 2, lines: 1 }, &order, 0..4)
    }

    #[test]
    fn dots_are_what_their_neurons_are() {
        let (mut dots, mut out) = (dots(), [9; 2]);
        dots.shares(&[0b1011], &mut out);
        assert_eq!(out, [255, 180]);
        dots.places(&[0b1010], &mut out);
        assert_eq!(out, [255, 1]);
        dots.strongest(&[0b1101], &[10, 200, 30, 40], &mut out);
        assert_eq!(out, [40, 30]);
        dots.predictions(&[0b1011], &[0b0110], &mut out);
        assert_eq!(out, [code::MISS, code::MISS]);
        dots.predictions(&[0b1010], &[0b1111], &mut out);
        assert_eq!(out, [code::HIT, code::FALSE_ALARM]);
        dots.changes(&[0b1001], &[0b0100], &mut out);
        assert_eq!(out, [code::BEGAN, code::BOTH]);
        dots.means(&[0.25, 1.0, 0.25, 1.0], &mut out);
        assert_eq!(out, [255, 128]);
        dots.latest(&[None, Some(0), None, Some(50)], &mut out);
        assert_eq!(out, [255, 0]);
    }

    #[test]
    fn dots_of_very_many_neurons_add_up() {
        let neurons = 1 << 18;
        let order = Order::of_model(neurons);
        let mut dots = Dots::new(Grid { columns: 2, lines: 1 }, &order, 0..neurons);
        let (all, none, mut out) = (vec![u32::MAX; neurons / 32], vec![0; neurons / 32], [9; 2]);
        let few: Vec<u32> = (0..neurons / 32).map(|word| u32::from(word % 2 == 0)).collect();
        let rest: Vec<u32> = few.iter().map(|word| !word).collect();
        dots.predictions(&all, &all, &mut out);
        assert_eq!(out, [code::HIT; 2]);
        dots.predictions(&none, &all, &mut out);
        assert_eq!(out, [code::FALSE_ALARM; 2]);
        dots.predictions(&few, &all, &mut out);
        assert_eq!(out, [code::FALSE_ALARM; 2]);
        dots.predictions(&rest, &all, &mut out);
        assert_eq!(out, [code::HIT; 2]);
        dots.predictions(&none, &none, &mut out);
        assert_eq!(out, [0; 2]);
        dots.shares(&all, &mut out);
        assert_eq!(out, [255; 2]);
        dots.places(&all, &mut out);
        assert_eq!(out, [255; 2]);
        dots.means(&vec![1.0; neurons], &mut out);
        assert_eq!(out, [255; 2]);
    }

    #[test]
    fn what_is_outside_the_view_is_not_drawn() {
        let order = Order::of_model(64);
        let mut dots = Dots::new(Grid { columns: 4, lines: 2 }, &order, 32..40);
        let mut out = [0; 8];
        dots.shares(&[u32::MAX, 0b10], &mut out);
        // The second neuron goes down the first column.
        assert_eq!(out, [0, 0, 0, 0, 255, 0, 0, 0]);
        dots.shares(&[u32::MAX, 0, u32::MAX], &mut out);
        assert_eq!(out, [0; 8], "more words than neurons");
    }

    #[test]
    fn dots_are_what_the_shader_makes_of_their_neurons() {
        let mut seed = 3u32;
        let mut noise = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed >> 8
        };
        let neurons = 300;
        let shape = NeuronShape::new([neurons]);
        let mut mask = || -> Vec<u32> { (0..10).map(|_| noise() & noise() & noise()).collect() };
        let (fired, predicted, hot, ended) = (mask(), mask(), mask(), mask());
        let strength: Vec<u8> = (0..neurons).map(|_| noise() as u8).collect();
        let often: Vec<f32> = (0..neurons).map(|_| (noise() % 1000) as f32 / 999.0).collect();
        let ages: Vec<Option<u32>> = (0..neurons).map(|_| Some(noise() % 2000).filter(|age| age % 3 > 0)).collect();
        let order = Order::by_frequency(neurons, &often, &hot);
        let began = fired.iter().zip(&ended).map(|(fired, ended)| fired & !ended).collect();
        let change = Difference { began, ended: ended.clone() };
        let all = [
            (Told::Fired(&fired), Fold::Share),
            (Told::Strength(&fired, &strength), Fold::Most),
            (Told::Guess(&fired, &predicted), Fold::Guess),
            (Told::Changes(change), Fold::Union),
            (Told::Places(&hot), Fold::Place),
            (Told::Frequency(&often), Fold::Mean),
            (Told::Ages(&ages), Fold::Most),
            (Told::Nothing, Fold::Share),
        ];
        for (columns, lines, ranks) in [(20, 3, 0..300), (7, 1, 0..300), (40, 10, 0..300), (9, 2, 100..231)] {
            let grid = Grid { columns, lines };
            let mut dots = Dots::new(grid, &order, ranks.clone());
            let mut plane = Plane::new(&shape, 4096).unwrap();
            for (told, fold) in &all {
                let mut out = vec![9; grid.dots()];
                dots.draw(told, &mut out);
                plane.write(0, order.ranks(), told);
                assert_eq!(out, plane.levels(0, ranks.clone(), grid, *fold), "{told:?} {grid:?} {ranks:?}");
            }
        }
    }

    /// A picture of an 80-layer model with 28672 neurons each, a tenth of which fire. `--nocapture` prints the figure; the
    /// bound is for a release build with room to spare, and twenty times that for one that checks.
    #[test]
    fn a_large_model_takes_two_milliseconds() {
        let (layers, neurons) = (80, 28_672);
        let grid = Grid::new(layers, neurons, 400.0, 320.0, 8192);
        let mut seed = 1u32;
        let mut noise = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed >> 8
        };
        let frequencies: Vec<f32> = (0..neurons).map(|_| noise() as f32 / (1 << 24) as f32).collect();
        let mut tenth = || (0..32).fold(0, |mask, bit| mask | u32::from(noise().is_multiple_of(10)) << bit);
        let masks: Vec<Vec<u32>> = (0..layers).map(|_| (0..neurons / 32).map(|_| tenth()).collect()).collect();
        let order = Order::by_frequency(neurons, &frequencies, &masks[0]);
        let mut dots: Vec<Dots> = (0..layers).map(|_| Dots::new(grid, &order, 0..neurons)).collect();
        let mut codes = vec![0; grid.dots() * layers];
        let mut picture = |_| {
            let began = ThreadTime::now();
            for ((dots, mask), out) in dots.iter_mut().zip(&masks).zip(codes.chunks_exact_mut(grid.dots())) {
                dots.draw(black_box(&Told::Fired(mask)), out);
            }
            black_box(&codes);
            began.elapsed()
        };
        let mut plane = Plane::new(&NeuronShape::new(vec![neurons; layers]), 8192).unwrap();
        let mut bytes = |_| {
            let began = ThreadTime::now();
            plane.begin();
            for (layer, mask) in masks.iter().enumerate() {
                plane.write(layer, order.ranks(), black_box(&Told::Fired(mask)));
            }
            black_box(plane.bytes());
            began.elapsed()
        };
        let (picture, bytes) = ((0..10).map(&mut picture).min(), (0..10).map(&mut bytes).min());
        let best = [picture, bytes].map(Option::unwrap_or_default);
        println!("80 x 28672: the picture {:?}, bytes for the shader {:?}", best[0], best[1]);
        let bound = if cfg!(debug_assertions) { 40.0 } else { 2.0 };
        assert!(best.iter().all(|time| time.as_secs_f64() * 1000.0 < bound), "{best:?}");
    }
}
