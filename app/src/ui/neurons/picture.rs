//! From neurons to dots: what a layer's dots are worth, 0 to 255 each.

use std::ops::Range;

use thermocline_engine::telemetry::neurons::neurons_of;

use super::{grid::Grid, order::Order};

/// Codes of [`Dots::predictions`] and [`Dots::changes`], after 0 for nothing at all.
pub mod code {
    /// Fired, as predicted.
    pub const HIT: u8 = 1;
    /// Predicted, but did not fire.
    pub const FALSE_ALARM: u8 = 2;
    /// Fired, though not predicted.
    pub const MISS: u8 = 3;
    /// Fires, and did not.
    pub const BEGAN: u8 = 1;
    /// Fired, and does not.
    pub const ENDED: u8 = 2;
    /// Some of each.
    pub const BOTH: u8 = 3;
}

/// Tokens after which a firing is no longer recent.
const LONG_AGO: f32 = 1000.0;

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

/// Level of a share, with small ones told apart: 25 % are in the middle.
fn level(part: f32, of: u32) -> u8 {
    (255.0 * (part / of.max(1) as f32).min(1.0).sqrt()).round() as u8
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

    /// Adds `worth` of every neuron in `mask` up, dot by dot.
    fn sum(&mut self, mask: &[u32], worth: u32) {
        for neuron in neurons_of(mask) {
            let Some(texel) = self.texels.get(neuron) else { return };
            if let Some(sum) = self.sums.get_mut(*texel as usize) {
                *sum = sum.saturating_add(worth);
            }
        }
    }

    /// What share of every dot's neurons is in `mask`, on a scale that tells small shares apart.
    pub fn shares(&mut self, mask: &[u32], into: &mut [u8]) {
        self.sums.fill(0);
        self.sum(mask, 1);
        for ((sum, crowd), dot) in self.sums.iter().zip(&self.crowd).zip(into) {
            *dot = if *sum == 0 { 0 } else { level(*sum as f32, *crowd) };
        }
    }

    /// What share of every dot's neurons is in `mask`: 1 for none to 255 for all, 0 where nobody is.
    pub fn places(&mut self, mask: &[u32], into: &mut [u8]) {
        self.sums.fill(0);
        self.sum(mask, 1);
        for ((sum, crowd), dot) in self.sums.iter().zip(&self.crowd).zip(into) {
            *dot = if *crowd == 0 { 0 } else { (1 + 254 * u64::from(*sum) / u64::from(*crowd)) as u8 };
        }
    }

    /// The strongest of every dot's neurons in `mask`.
    pub fn strongest(&mut self, mask: &[u32], strength: &[u8], into: &mut [u8]) {
        into.fill(0);
        for neuron in neurons_of(mask) {
            let (Some(texel), Some(strength)) = (self.texels.get(neuron), strength.get(neuron)) else { return };
            if let Some(dot) = into.get_mut(*texel as usize) {
                *dot = (*dot).max(*strength);
            }
        }
    }

    /// Hits, misses and false alarms, as [`code`] says. A miss is never hidden by other neurons of its dot; of the others the
    /// more frequent one is shown.
    pub fn predictions(&mut self, fired: &[u32], predicted: &[u32], into: &mut [u8]) {
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

    /// Who fires now and did not before, and the other way round.
    pub fn changes(&mut self, began: &[u32], ended: &[u32], into: &mut [u8]) {
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

    /// The mean of every dot's neurons' `values` (0 to 1), on the scale of [`Dots::shares`].
    pub fn means(&mut self, values: &[f32], into: &mut [u8]) {
        // A dot's sum must not overflow, whoever is in it.
        let most = self.crowd.iter().copied().max().unwrap_or(0).max(1);
        let one = (u32::MAX / most).min(1 << 16) as f32;
        self.sums.fill(0);
        for (texel, value) in self.texels.iter().zip(values) {
            if let Some(sum) = self.sums.get_mut(*texel as usize) {
                *sum = sum.saturating_add((value.clamp(0.0, 1.0) * one) as u32);
            }
        }
        for ((sum, crowd), dot) in self.sums.iter().zip(&self.crowd).zip(into) {
            *dot = level(*sum as f32 / one, *crowd);
        }
    }

    /// How lately the latest of every dot's neurons fired: 255 for the latest token, less for each doubling of its age.
    pub fn latest(&mut self, ages: &[Option<u32>], into: &mut [u8]) {
        self.sums.fill(u32::MAX);
        for (texel, age) in self.texels.iter().zip(ages) {
            if let (Some(least), Some(age)) = (self.sums.get_mut(*texel as usize), age) {
                *least = (*least).min(*age);
            }
        }
        for (age, dot) in self.sums.iter().zip(into) {
            let old = (1.0 + *age as f32).ln() / (1.0 + LONG_AGO).ln();
            *dot = (255.0 * (1.0 - old).max(0.0)).round() as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{hint::black_box, time::Instant};

    use super::*;

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

    /// A picture of an 80-layer model with 28672 neurons each, a tenth of which fire. `--nocapture` prints the figure; the
    /// bound is for a release build with room to spare, and twenty times that for one that checks.
    #[test]
    fn a_picture_of_a_large_model_takes_two_milliseconds() {
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
        let round = |_| {
            let began = Instant::now();
            for ((dots, mask), out) in dots.iter_mut().zip(&masks).zip(codes.chunks_exact_mut(grid.dots())) {
                dots.shares(black_box(mask), out);
            }
            black_box(&codes);
            began.elapsed()
        };
        let best = (0..10).map(round).min().unwrap_or_default();
        println!("80 x 28672: {best:?}");
        let bound = if cfg!(debug_assertions) { 40.0 } else { 2.0 };
        assert!(best.as_secs_f64() * 1000.0 < bound, "{best:?}");
    }
}
