//! The values of a layer's neurons in a mode ([`LayerValues`]), one byte per neuron. [`Fold`]
//! combines the bytes of a dot into its level. The shader and the CPU compute the same levels.

use std::sync::LazyLock;

use thermocline_engine::telemetry::neurons::{Difference, LayerTally, NeuronShape, TokenTrace, neurons_of};

use super::mode::Mode;

/// Bytes of [`Fold::Prediction`], of [`Fold::Union`] and of [`Mode::Tiers`]. 0 means nothing.
pub mod code {
    /// Fired, as predicted.
    pub const HIT: u8 = 1;
    /// Predicted, but did not fire.
    pub const FALSE_ALARM: u8 = 2;
    /// Fired, but was not predicted.
    pub const MISS: u8 = 3;
    /// Fires now, but did not fire before.
    pub const BEGAN: u8 = 1;
    /// Fired before, but does not fire now.
    pub const ENDED: u8 = 2;
    /// The dot has neurons of both codes.
    pub const BOTH: u8 = 3;
    /// In a model larger than RAM: in VRAM.
    pub const VRAM: u8 = 255;
    /// In a model larger than RAM: in RAM.
    pub const RAM: u8 = 128;
    /// In a model larger than RAM: only on disk.
    pub const DISK: u8 = 16;
}

/// Age of a firing, in tokens, from which it is no longer recent.
const LONG_AGO: usize = 1000;

/// How the bytes of a dot's neurons combine into its level. The shader uses the same numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fold {
    /// Square root of the fraction of non-zero bytes. The root separates small fractions: 25 % is
    /// in the middle.
    Fraction = 0,
    /// Fraction of non-zero bytes, from 1 for none to 255 for all. 0 if the dot has no neuron.
    Placement = 1,
    /// The maximum.
    Most = 2,
    /// A miss always shows. Otherwise the more frequent of hits and false alarms shows.
    Prediction = 3,
    /// The union of the bytes' bits.
    Union = 4,
    /// The mean. Bytes are square roots of their values, so the result is the root of the mean
    /// square.
    Mean = 5,
}

impl Fold {
    /// The fold of `mode`. `comparing` two tokens has its own.
    pub fn of(mode: Mode, comparing: bool) -> Self {
        match mode {
            _ if comparing => Fold::Union,
            Mode::Fired | Mode::Experts => Fold::Fraction,
            Mode::Strength | Mode::Recency => Fold::Most,
            Mode::Frequency | Mode::Tiers => Fold::Mean,
            Mode::Placement => Fold::Placement,
            Mode::Predictor => Fold::Prediction,
        }
    }

    /// The level of a dot with these neurons.
    pub fn level(self, bytes: &[u8]) -> u8 {
        let count = |wanted: u8| bytes.iter().filter(|byte| **byte == wanted).count();
        let some = bytes.len() - count(0);
        match self {
            Fold::Fraction => root(some as f32, bytes.len() as f32),
            Fold::Placement if bytes.is_empty() => 0,
            Fold::Placement => (1 + 254 * some / bytes.len()) as u8,
            Fold::Most => bytes.iter().copied().max().unwrap_or(0),
            Fold::Prediction if count(code::MISS) > 0 => code::MISS,
            Fold::Prediction if some == 0 => 0,
            Fold::Prediction if count(code::HIT) >= count(code::FALSE_ALARM) => code::HIT,
            Fold::Prediction => code::FALSE_ALARM,
            Fold::Union => bytes.iter().fold(0, |all, byte| all | byte),
            Fold::Mean => {
                let squares: u64 = bytes.iter().map(|byte| u64::from(*byte).pow(2)).sum();
                root(squares as f32, 65_025.0 * bytes.len() as f32)
            }
        }
    }
}

/// Square root of `part / whole` as a level from 0 to 255.
pub fn root(part: f32, whole: f32) -> u8 {
    (255.0 * (part / whole.max(1.0)).min(1.0).sqrt() + 0.5) as u8
}

/// The byte of a neuron with this frequency from 0 to 1.
pub fn rarity(frequency: f32) -> u8 {
    root(frequency.max(0.0), 1.0)
}

/// The byte of a neuron by the age of its last firing, on a logarithmic scale: 255 for the latest
/// token.
pub fn recency(age: Option<u32>) -> u8 {
    static LEVELS: LazyLock<[u8; LONG_AGO]> = LazyLock::new(|| {
        std::array::from_fn(|age| {
            let old = (1.0 + age as f32).ln() / (1.0 + LONG_AGO as f32).ln();
            (255.0 * (1.0 - old)).round() as u8
        })
    });
    age.and_then(|age| LEVELS.get(age as usize)).copied().unwrap_or(0)
}

/// The values of a layer's neurons. Masks are `[n_ff.div_ceil(32)]`, values `[n_ff]`.
#[derive(Debug)]
pub enum LayerValues<'a> {
    /// Nothing is known.
    Nothing,
    /// Neurons that fire.
    Fired(&'a [u32]),
    /// How strongly neurons fire.
    Strength(&'a [u8]),
    /// Neurons of the chosen experts.
    Chosen(Vec<u32>),
    /// Neurons that fire, and neurons that were predicted.
    Prediction(&'a [u32], &'a [u32]),
    /// Neurons that fire only now, and neurons that fired only before.
    Changes(Difference),
    /// Neurons in VRAM.
    Places(&'a [u32]),
    /// Neurons in VRAM, and neurons in RAM. The others are only on disk.
    Tiers(&'a [u32], &'a [u32]),
    /// Firing frequencies.
    Frequency(&'a [f32]),
    /// Ages of the last firings, in tokens.
    Ages(&'a [Option<u32>]),
}

impl<'a> LayerValues<'a> {
    /// The values of `layer` at `token`, in a mode of single tokens. With `before`, the difference
    /// from that token.
    pub fn of_token(
        shape: &NeuronShape,
        mode: Mode,
        token: &'a TokenTrace,
        before: Option<&TokenTrace>,
        layer: usize,
    ) -> Self {
        let (Some(masks), Some(fired)) = (&token.masks, token.fired(shape, layer)) else { return LayerValues::Nothing };
        let values = match (mode, before) {
            (_, Some(before)) => token.difference(before, shape, layer).map(LayerValues::Changes),
            (Mode::Strength, _) => masks.strength.get(shape.range(layer)).map(LayerValues::Strength),
            (Mode::Experts, _) => {
                token.chosen(shape, layer).map(|chosen| LayerValues::Chosen(shape.of_experts(layer, chosen)))
            }
            (Mode::Predictor, _) => {
                masks.predicted.get(shape.words(layer)).map(|mask| LayerValues::Prediction(fired, mask))
            }
            _ => Some(LayerValues::Fired(fired)),
        };
        values.unwrap_or(LayerValues::Nothing)
    }

    /// The values of `layer` over all tokens so far, in a mode of all tokens.
    pub fn of_tally(mode: Mode, tally: &'a LayerTally) -> Self {
        match mode {
            Mode::Recency => LayerValues::Ages(&tally.age),
            _ => LayerValues::Frequency(&tally.recent),
        }
    }

    /// Writes one byte per neuron. `ranks` are the neurons' places in `into`.
    pub fn write(&self, ranks: &[u32], into: &mut [u8]) {
        into.fill(0);
        match self {
            LayerValues::Nothing => {}
            LayerValues::Fired(mask) | LayerValues::Places(mask) => mark(neurons_of(mask), ranks, into, |_| 1),
            LayerValues::Chosen(mask) => mark(neurons_of(mask), ranks, into, |_| 1),
            LayerValues::Tiers(hot, in_ram) => {
                mark(0..ranks.len(), ranks, into, |_| code::DISK);
                mark(neurons_of(in_ram), ranks, into, |_| code::RAM);
                mark(neurons_of(hot), ranks, into, |_| code::VRAM);
            }
            LayerValues::Strength(strength) => mark(0..strength.len(), ranks, into, |neuron| strength[neuron]),
            LayerValues::Prediction(fired, predicted) => {
                for (fires, expected, code) in
                    [(true, true, code::HIT), (false, true, code::FALSE_ALARM), (true, false, code::MISS)]
                {
                    let pick = |f: u32, p: u32| (if fires { f } else { !f }) & (if expected { p } else { !p });
                    let mask: Vec<u32> = fired.iter().zip(*predicted).map(|(f, p)| pick(*f, *p)).collect();
                    mark(neurons_of(&mask), ranks, into, |_| code);
                }
            }
            LayerValues::Changes(Difference { began, ended }) => {
                mark(neurons_of(began), ranks, into, |_| code::BEGAN);
                mark(neurons_of(ended), ranks, into, |_| code::ENDED);
            }
            LayerValues::Frequency(values) => mark(0..values.len(), ranks, into, |neuron| rarity(values[neuron])),
            LayerValues::Ages(ages) => mark(0..ages.len(), ranks, into, |neuron| recency(ages[neuron])),
        }
    }
}

fn mark(neurons: impl Iterator<Item = usize>, ranks: &[u32], into: &mut [u8], byte: impl Fn(usize) -> u8) {
    for neuron in neurons {
        let Some(rank) = ranks.get(neuron) else { return };
        if let Some(into) = into.get_mut(*rank as usize) {
            *into = byte(neuron);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_follow_the_ranks() {
        let (ranks, mut out) = ([3, 1, 0, 2], [9; 4]);
        let mut bytes = |values: LayerValues<'_>| {
            values.write(&ranks, &mut out);
            out
        };
        assert_eq!(bytes(LayerValues::Fired(&[0b0011])), [0, 1, 0, 1]);
        assert_eq!(bytes(LayerValues::Strength(&[7, 0, 9, 10])), [9, 0, 10, 7]);
        assert_eq!(bytes(LayerValues::Chosen(vec![0b0011])), [0, 1, 0, 1]);
        assert_eq!(bytes(LayerValues::Prediction(&[0b0011], &[0b0110])), [code::FALSE_ALARM, code::HIT, 0, code::MISS]);
        let change = Difference { began: vec![0b1000], ended: vec![0b0001] };
        assert_eq!(bytes(LayerValues::Changes(change)), [0, 0, code::BEGAN, code::ENDED]);
        assert_eq!(bytes(LayerValues::Frequency(&[1.0, 0.25, f32::NAN, 9.0])), [0, 128, 255, 255]);
        assert_eq!(bytes(LayerValues::Ages(&[None, Some(0), Some(999), Some(5000)])), [0, 255, 0, 0]);
        assert_eq!(bytes(LayerValues::Fired(&[u32::MAX, u32::MAX])), [1; 4], "more words than neurons");
        let tiers = [code::DISK, code::RAM, code::VRAM, code::VRAM];
        assert_eq!(bytes(LayerValues::Tiers(&[0b1001], &[0b0011])), tiers, "VRAM goes first");
        assert_eq!(bytes(LayerValues::Nothing), [0; 4]);
    }

    #[test]
    fn fold_levels_match_their_definitions() {
        let cases: [(Fold, &[u8], u8); 15] = [
            (Fold::Fraction, &[0, 0, 0, 1], 128),
            (Fold::Fraction, &[], 0),
            (Fold::Placement, &[1, 0], 128),
            (Fold::Placement, &[], 0),
            (Fold::Placement, &[0], 1),
            (Fold::Most, &[3, 200, 7], 200),
            (Fold::Prediction, &[1, 2, 1, 2], code::HIT),
            (Fold::Prediction, &[1, 2, 0, 2], code::FALSE_ALARM),
            (Fold::Prediction, &[1, 2, 3, 1], code::MISS),
            (Fold::Union, &[0, 1, 2], code::BOTH),
            (Fold::Mean, &[255, 0, 0, 0], 128),
            (Fold::Mean, &[], 0),
            (Fold::Mean, &[code::DISK; 3], code::DISK),
            (Fold::Mean, &[code::RAM; 3], code::RAM),
            (Fold::Mean, &[code::VRAM; 3], code::VRAM),
        ];
        for (fold, bytes, level) in cases {
            assert_eq!(fold.level(bytes), level, "{fold:?} {bytes:?}");
        }
    }
}
