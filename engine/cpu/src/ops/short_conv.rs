//! The short causal convolution before delta nets and Mamba-2. A few taps filter each channel
//! separately.

use super::math::sigmoid;
use crate::{
    Cpu,
    simd::vector::{Vector, VectorKernel, dispatch},
};

/// Weights of a short convolution.
#[derive(Debug, Clone, PartialEq)]
pub struct ShortConv {
    /// `[taps, channels]`, with the newest input's tap last.
    weight: Vec<f32>,
    /// `[channels]`
    bias: Option<Vec<f32>>,
    taps: usize,
}

impl ShortConv {
    /// Takes weights as stored in files, `[channels, taps]` with the newest input's tap last, and a
    /// bias per channel.
    ///
    /// # Panics
    /// If lengths disagree, or there are no taps.
    pub fn new(weight: &[f32], taps: usize, bias: Option<Vec<f32>>) -> Self {
        assert!(taps > 0 && weight.len().is_multiple_of(taps), "{taps} taps of whole channels");
        let channels = weight.len() / taps;
        assert!(bias.as_ref().is_none_or(|bias| bias.len() == channels), "a bias per channel");
        let at = |i: usize| weight[i % channels * taps + i / channels];
        ShortConv { weight: (0..weight.len()).map(at).collect(), bias, taps }
    }

    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.weight.len() / self.taps
    }

    /// Weights, `[taps, channels]`, with the newest input's tap last.
    pub fn weight(&self) -> &[f32] {
        &self.weight
    }

    /// Biases, `[channels]`.
    pub fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }

    /// Number of earlier inputs that an output depends on.
    pub fn history(&self) -> usize {
        self.taps - 1
    }
}

/// One token's outputs: `y[c] = silu(bias[c] + sum_j weight[j, c] * x_j[c])`. `x_j` are the inputs
/// from the oldest tap's to the newest tap's. SiLU is applied if `activate`.
struct Filter<'a, 'x> {
    conv: &'a ShortConv,
    inputs: &'a [&'x [f32]],
    y: &'a mut [f32],
    activate: bool,
}

impl VectorKernel for Filter<'_, '_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let Filter { conv, inputs, y, activate } = self;
        let channels = y.len();
        let whole = channels / V::LANES * V::LANES;
        for c in (0..whole).step_by(V::LANES) {
            let mut sum = conv.bias.as_ref().map_or(v.splat(0.0), |bias| v.load(&bias[c..]));
            for (j, x) in inputs.iter().enumerate() {
                sum = v.mul_add(v.load(&conv.weight[j * channels + c..]), v.load(&x[c..]), sum);
            }
            v.store(&mut y[c..], if activate { v.mul(sum, sigmoid(v, sum)) } else { sum });
        }
        for c in whole..channels {
            let taps = inputs.iter().enumerate().map(|(j, x)| conv.weight[j * channels + c] * x[c]);
            let sum = conv.bias.as_ref().map_or(0.0, |bias| bias[c]) + taps.sum::<f32>();
            y[c] = if activate { sum / (1.0 + (-sum).exp()) } else { sum };
        }
    }
}

impl Cpu {
    /// `y[t] = conv(x[t - history..=t])`, through SiLU if `activate`. `x` and `y` are `[tokens,
    /// channels]`. `state`, `[history, channels]` with the newest last, has the inputs before the
    /// first token. Afterwards it has the most recent inputs.
    ///
    /// # Panics
    /// If lengths disagree.
    pub fn short_conv(&self, conv: &ShortConv, x: &[f32], state: &mut [f32], y: &mut [f32], activate: bool) {
        let (channels, history) = (conv.channels(), conv.history());
        assert!(x.len() == y.len() && x.len().is_multiple_of(channels.max(1)) && state.len() == history * channels);
        if x.is_empty() {
            return;
        }
        let before = &*state;
        // Input `at` of the state followed by the tokens.
        let input = |at: usize| match at.checked_sub(history) {
            Some(token) => &x[token * channels..][..channels],
            None => &before[at * channels..][..channels],
        };
        self.for_each_chunk(y, channels, conv.taps * 2, |token, y| {
            let inputs: smallvec::SmallVec<[&[f32]; 8]> = (token..=token + history).map(input).collect();
            dispatch(self.isa(), Filter { conv, inputs: &inputs, y, activate });
        });
        let tokens = x.len() / channels;
        if tokens < history {
            state.copy_within(tokens * channels.., 0);
        }
        let kept = tokens.min(history);
        state[(history - kept) * channels..].copy_from_slice(&x[(tokens - kept) * channels..]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ops::tests::each_cpu;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Outputs and states equal those of plain arithmetic for any division of the tokens.
        #[test]
        fn convolutions_agree_with_f64_in_pieces(
            channels in 1usize..40,
            taps in 1usize..5,
            tokens in 1usize..9,
            first in 0usize..9,
            noise in prop::collection::vec(-2f32..2.0, 40 * 20),
            activate: bool,
        ) {
            let (weight, rest) = noise.split_at(channels * taps);
            let (bias, rest) = rest.split_at(channels);
            let (before, x) = rest.split_at(channels * (taps - 1));
            let x = &x[..channels * tokens];
            let conv = ShortConv::new(weight, taps, Some(bias.to_vec()));
            let all: Vec<f32> = [before, x].concat();
            let wanted: Vec<f64> = (0..tokens * channels).map(|i| {
                let (t, c) = (i / channels, i % channels);
                let sum = (0..taps).map(|j| f64::from(weight[c * taps + j]) * f64::from(all[(t + j) * channels + c]));
                let sum = sum.sum::<f64>() + f64::from(bias[c]);
                if activate { sum / (1.0 + (-sum).exp()) } else { sum }
            }).collect();
            for cpu in each_cpu() {
                let (mut state, mut y) = (before.to_vec(), vec![f32::NAN; x.len()]);
                let middle = first.min(tokens) * channels;
                let (y0, y1) = y.split_at_mut(middle);
                cpu.short_conv(&conv, &x[..middle], &mut state, y0, activate);
                cpu.short_conv(&conv, &x[middle..], &mut state, y1, activate);
                for (y, wanted) in y.iter().zip(&wanted) {
                    prop_assert!((f64::from(*y) - wanted).abs() < 1e-4, "{y} {wanted}");
                }
                prop_assert_eq!(&state[..], &all[tokens * channels..]);
            }
        }
    }
}
