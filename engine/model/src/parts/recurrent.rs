//! Recurrent mixers: token mixers whose memory is a state of fixed size instead of keys and values.
//! Each kind has a file, and a variant in each enum here.

mod delta_net;
mod mamba2;
mod short_conv;

pub use delta_net::{DeltaNetConfig, DeltaNetWeights};
pub(crate) use mamba2::STEP_LIMITS;
pub use mamba2::{Mamba2Config, Mamba2Weights};
pub(crate) use short_conv::load_short_conv;
pub use short_conv::{ShortConvConfig, ShortConvWeights};

use super::{LayerNorms, Linear, MixerConfig, MixerWeights, StateShape};
use crate::Register;

/// Sizes of a recurrent mixer by kind.
#[derive(Debug, Clone, PartialEq)]
pub enum RecurrentConfig {
    /// Gated delta net.
    DeltaNet(DeltaNetConfig),
    /// Mamba-2.
    Mamba2(Mamba2Config),
    /// Short convolution between two gates.
    ShortConv(ShortConvConfig),
}

impl RecurrentConfig {
    fn mixer(&self) -> &dyn MixerConfig {
        match self {
            RecurrentConfig::DeltaNet(of) => of,
            RecurrentConfig::Mamba2(of) => of,
            RecurrentConfig::ShortConv(of) => of,
        }
    }

    /// Returns the mixer's name in messages.
    pub fn name(&self) -> &'static str {
        self.mixer().name()
    }

    /// Returns the shape of the mixer's state.
    pub fn state(&self) -> StateShape {
        self.mixer().state()
    }
}

/// Weights of a recurrent mixer by kind.
#[derive(Debug, Clone)]
pub enum RecurrentWeights {
    /// Gated delta net.
    DeltaNet(Box<DeltaNetWeights>),
    /// Mamba-2.
    Mamba2(Box<Mamba2Weights>),
    /// Short convolution between two gates.
    ShortConv(Box<ShortConvWeights>),
}

impl RecurrentWeights {
    /// Returns matrices and vectors through the interface of all kinds.
    pub fn mixer(&self) -> &dyn MixerWeights {
        match self {
            RecurrentWeights::DeltaNet(of) => &**of,
            RecurrentWeights::Mamba2(of) => &**of,
            RecurrentWeights::ShortConv(of) => &**of,
        }
    }

    /// Iterates over the matrices, starting with those that are read first.
    pub fn linears(&self) -> impl Iterator<Item = &Linear> {
        let mixer = self.mixer();
        mixer.inputs().into_iter().chain([mixer.output()])
    }
}

/// Sizes and weights of a recurrent mixer by kind.
#[derive(Debug, Clone, Copy)]
pub enum BoundMixer<'m> {
    /// Gated delta net.
    DeltaNet(&'m DeltaNetConfig, &'m DeltaNetWeights),
    /// Mamba-2.
    Mamba2(&'m Mamba2Config, &'m Mamba2Weights),
    /// Short convolution between two gates.
    ShortConv(&'m ShortConvConfig, &'m ShortConvWeights),
}

/// Recurrent mixer of a layer, bound to a step.
#[derive(Debug, Clone, Copy)]
pub struct BoundRecurrent<'m> {
    /// Index of the layer.
    pub layer: usize,
    /// Input.
    pub from: Register,
    /// Kind and sizes.
    pub config: &'m RecurrentConfig,
    /// Weights of that kind.
    pub weights: &'m RecurrentWeights,
    /// Sizes and weights, by kind.
    pub mixer: BoundMixer<'m>,
    /// Norms of the layer.
    pub norms: LayerNorms<'m>,
}

impl<'m> BoundRecurrent<'m> {
    /// Binds the recurrent mixer of `layer`. `None` for a layer without one, or with weights of
    /// another kind.
    pub(crate) fn new(
        layer: usize,
        from: Register,
        config: Option<&'m RecurrentConfig>,
        weights: Option<&'m RecurrentWeights>,
        norms: LayerNorms<'m>,
    ) -> Option<Self> {
        let (config, weights) = config.zip(weights)?;
        let mixer = match (config, weights) {
            (RecurrentConfig::DeltaNet(config), RecurrentWeights::DeltaNet(of)) => BoundMixer::DeltaNet(config, of),
            (RecurrentConfig::Mamba2(config), RecurrentWeights::Mamba2(of)) => BoundMixer::Mamba2(config, of),
            (RecurrentConfig::ShortConv(config), RecurrentWeights::ShortConv(of)) => BoundMixer::ShortConv(config, of),
            _ => return None,
        };
        Some(BoundRecurrent { layer, from, config, weights, mixer, norms })
    }
}
