//! How strongly neurons fire: reported as floats, stored as bytes.

/// The hidden activations of a chunk. Their signs do not matter.
#[derive(Debug, Clone, Copy)]
pub enum Strength<'a> {
    /// Values of every neuron, `[tokens, n_ff]`.
    All(&'a [f32]),
    /// Values of some neurons, in ascending order. The values of all other neurons are zero.
    Listed {
        /// Indices of the neurons.
        neurons: &'a [u32],
        /// Their values, `[tokens, neurons]`.
        values: &'a [f32],
    },
}

impl Strength<'_> {
    /// Writes the values of a single token into `into`, which has an element for every neuron.
    pub fn spread(&self, into: &mut [f32]) {
        match self {
            Strength::All(values) => into.iter_mut().zip(*values).for_each(|(into, value)| *into = *value),
            Strength::Listed { neurons, values } => {
                for (neuron, value) in neurons.iter().zip(*values) {
                    if let Some(into) = into.get_mut(*neuron as usize) {
                        *into = *value;
                    }
                }
            }
        }
    }

    /// True if it holds values of `tokens` tokens and `n_ff` neurons.
    pub(super) fn fits(&self, tokens: usize, n_ff: usize) -> bool {
        match self {
            Strength::All(values) => values.len() == tokens * n_ff,
            Strength::Listed { neurons, values } => {
                values.len() == tokens * neurons.len() && neurons.last().is_none_or(|last| (*last as usize) < n_ff)
            }
        }
    }

    /// Quantises the magnitudes of token `t` relative to its greatest finite magnitude, and returns
    /// that. No non-zero value becomes zero. `into` has a byte for every neuron, all zero.
    pub(super) fn quantise(&self, t: usize, into: &mut [u8]) -> f32 {
        match self {
            Strength::All(values) => {
                let values = &values[t * into.len()..][..into.len()];
                let scale = StrengthScale::of(values);
                into.iter_mut().zip(values).for_each(|(into, value)| *into = scale.quantise(*value));
                scale.greatest
            }
            Strength::Listed { neurons, values } => {
                let values = &values[t * neurons.len()..][..neurons.len()];
                let scale = StrengthScale::of(values);
                for (neuron, value) in neurons.iter().zip(values) {
                    if let Some(into) = into.get_mut(*neuron as usize) {
                        *into = scale.quantise(*value);
                    }
                }
                scale.greatest
            }
        }
    }
}

/// The scale of a token's magnitudes.
#[derive(Debug, Clone, Copy)]
struct StrengthScale {
    greatest: f32,
    factor: f32,
}

/// Added to a number from 0 to 255, it leaves the rounded number in the lowest byte.
const ROUND: f32 = 12_582_912.0;

// Neither loop body has branches or calls, so that the compiler vectorises it.
impl StrengthScale {
    fn of(values: &[f32]) -> Self {
        // Magnitudes are ordered like their bits. Unlike floats, integers may be compared in any
        // order, several at a time.
        let finite = |value: &f32| {
            let bits = value.abs().to_bits() as i32;
            if bits < f32::INFINITY.to_bits() as i32 { bits } else { 0 }
        };
        let greatest = f32::from_bits(values.iter().map(finite).fold(0, i32::max) as u32);
        // The factor is infinite for very small magnitudes. They are reported as 1 of 255.
        let factor = 255.0 / greatest;
        StrengthScale { greatest, factor: if factor.is_finite() { factor } else { 0.0 } }
    }

    fn quantise(&self, value: f32) -> u8 {
        let magnitude = value.abs();
        let clipped = if magnitude > self.greatest { self.greatest } else { magnitude };
        let byte = (clipped * self.factor + ROUND).to_bits() & 0xff;
        // NaN becomes 0, whatever its byte.
        let any = if magnitude > 0.0 { u32::MAX } else { 0 };
        (byte.max(1) & any) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::noise, *};

    fn plain(values: &[f32]) -> (Vec<u8>, f32) {
        let finite = values.iter().map(|value| value.abs()).filter(|value| value.is_finite());
        let greatest = finite.fold(0.0, f32::max);
        let byte = |value: &f32| match value.abs() {
            x if x > 0.0 && x.is_finite() => ((x / greatest * 255.0).round_ties_even() as u8).max(1),
            x if x == f32::INFINITY && greatest > 0.0 => 255,
            x if x == f32::INFINITY => 1,
            _ => 0,
        };
        (values.iter().map(byte).collect(), greatest)
    }

    #[test]
    fn strength_quantise_matches_the_scalar_version() {
        let mut seed = 5u64;
        let mut noise = || (noise(&mut seed) >> 8) as f32 / 1e4 - 800.0;
        let odd = [0.0, -0.0, f32::NAN, -3.0, 1e-9, f32::INFINITY, 2.0, 700.0, f32::NEG_INFINITY, -1e-30];
        let tables =
            [(0..1000).map(|_| noise()).collect(), odd.to_vec(), odd[..3].to_vec(), vec![f32::INFINITY], vec![]];
        for values in tables {
            let (wanted, greatest) = plain(&values);
            let mut got = vec![0; values.len()];
            assert_eq!(Strength::All(&values).quantise(0, &mut got), greatest);
            let near = got.iter().zip(&wanted).all(|(got, wanted)| got.abs_diff(*wanted) <= 1);
            assert!(
                near && got.iter().zip(&wanted).all(|(got, wanted)| (*got == 0) == (*wanted == 0)),
                "{got:?} {wanted:?}"
            );
            // The same values with gaps between them.
            let neurons: Vec<u32> = (0..values.len() as u32).map(|at| 3 * at + 1).collect();
            let listed = Strength::Listed { neurons: &neurons, values: &values };
            let mut sparse = vec![0; 3 * values.len()];
            assert!(listed.fits(1, sparse.len()) && (values.is_empty() || !listed.fits(1, sparse.len() - 2)));
            assert_eq!(listed.quantise(0, &mut sparse), greatest);
            assert!(sparse.chunks(3).zip(&got).all(|(three, got)| three == [0, *got, 0]));
        }
        // The smallest magnitude.
        let mut got = [0; 2];
        assert_eq!(Strength::All(&[1e-40, 0.0]).quantise(0, &mut got), 1e-40);
        assert_eq!(got, [1, 0]);
    }

    #[test]
    fn strength_quantise_scales_each_token() {
        let values = [1.0, 2.0, 8.0, 4.0];
        let (mut first, mut second) = ([0; 2], [0; 2]);
        let all = Strength::All(&values);
        assert_eq!((all.quantise(0, &mut first), all.quantise(1, &mut second)), (2.0, 8.0));
        assert_eq!((first, second), ([128, 255], [255, 128]));
        assert!(all.fits(2, 2) && !all.fits(1, 2));
    }
}
