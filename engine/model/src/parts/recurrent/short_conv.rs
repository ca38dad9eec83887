//! Short convolution between two gates (LFM2), and the convolution before the scans of other
//! mixers.

use smallvec::{SmallVec, smallvec};

use crate::{Linear, MixerConfig, MixerWeights, StateShape, load::Loader};
use thermocline_base::error::Result;
use thermocline_cpu::ops::ShortConv;

/// Sizes of a short convolution between two gates.
#[derive(Debug, Clone, PartialEq)]
pub struct ShortConvConfig {
    /// Number of channels, each with its own filter.
    pub channels: usize,
    /// Number of taps of the convolution.
    pub taps: usize,
}

impl MixerConfig for ShortConvConfig {
    fn name(&self) -> &'static str {
        "short convolution"
    }

    fn state(&self) -> StateShape {
        StateShape { conv: [self.taps - 1, self.channels], scan: [0; 3] }
    }
}

/// Weights of a short convolution between two gates:
/// `y = output (output_gate x * conv(input_gate x * input x))`. Files join the first three matrices
/// in one.
#[derive(Debug, Clone)]
pub struct ShortConvWeights {
    /// `[channels, d]`
    pub input_gate: Linear,
    /// `[channels, d]`
    pub output_gate: Linear,
    /// `[channels, d]`
    pub input: Linear,
    /// Convolution of the gated inputs.
    pub conv: ShortConv,
    /// `[d, channels]`
    pub output: Linear,
}

impl MixerWeights for ShortConvWeights {
    fn inputs(&self) -> SmallVec<[&Linear; 4]> {
        smallvec![&self.input, &self.input_gate, &self.output_gate]
    }

    fn conv(&self) -> Option<&ShortConv> {
        Some(&self.conv)
    }

    fn vectors(&self) -> SmallVec<[&[f32]; 4]> {
        SmallVec::new()
    }

    fn output(&self) -> &Linear {
        &self.output
    }
}

/// Loads the short convolution `{stem}` with `taps` taps per channel.
pub(crate) fn load_short_conv(loader: &Loader<'_>, stem: &str, channels: usize, taps: usize) -> Result<ShortConv> {
    let Linear { weight, bias } = loader.linear(stem, channels, taps)?;
    let mut taps_of = vec![0.0; channels * taps];
    taps_of.chunks_exact_mut(taps).enumerate().for_each(|(channel, taps)| weight.dequantise_row(channel, taps));
    Ok(ShortConv::new(&taps_of, taps, bias))
}
