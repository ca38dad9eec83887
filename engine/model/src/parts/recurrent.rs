//! Recurrent mixers: mixers of tokens whose memory is a state of fixed size, in place of keys and values. Each kind is one file
//! and an arm of each enum here.

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
    /// A gated delta net's.
    DeltaNet(DeltaNetConfig),
    /// Mamba-2's.
    Mamba2(Mamba2Config),
    /// A short convolution's.
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

    /// Its name in messages.
    pub fn name(&self) -> &'static str {
        self.mixer().name()
    }

    /// Shape of its state.
    pub fn state(&self) -> StateShape {
        self.mixer().state()
    }
}

/// Weights of a recurrent mixer by kind.
#[derive(Debug, Clone)]
pub enum RecurrentWeights {
    /// A gated delta net's.
    DeltaNet(Box<DeltaNetWeights>),
    /// Mamba-2's.
    Mamba2(Box<Mamba2Weights>),
    /// A short convolution's.
    ShortConv(Box<ShortConvWeights>),
}

impl RecurrentWeights {
    /// Its matrices and vectors.
    pub fn mixer(&self) -> &dyn MixerWeights {
        match self {
            RecurrentWeights::DeltaNet(of) => &**of,
            RecurrentWeights::Mamba2(of) => &**of,
            RecurrentWeights::ShortConv(of) => &**of,
        }
    }

    /// Its matrices, those first that are read first.
    pub fn linears(&self) -> impl Iterator<Item = &Linear> {
        let mixer = self.mixer();
        mixer.inputs().into_iter().chain([mixer.output()])
    }
}

/// Sizes and weights of a recurrent mixer by kind.
#[derive(Debug, Clone, Copy)]
pub enum BoundMixer<'m> {
    /// A gated delta net.
    DeltaNet(&'m DeltaNetConfig, &'m DeltaNetWeights),
    /// Mamba-2.
    Mamba2(&'m Mamba2Config, &'m Mamba2Weights),
    /// A short convolution between two gates.
    ShortConv(&'m ShortConvConfig, &'m ShortConvWeights),
}

/// The recurrent mixer of a layer.
#[derive(Debug, Clone, Copy)]
pub struct BoundRecurrent<'m> {
    /// Number of the layer.
    pub layer: usize,
    /// Input.
    pub from: Register,
    /// Kind and sizes.
    pub config: &'m RecurrentConfig,
    /// Weights of that kind.
    pub weights: &'m RecurrentWeights,
    /// Both, by kind.
    pub mixer: BoundMixer<'m>,
    /// Norms of the layer.
    pub norms: LayerNorms<'m>,
}

impl<'m> BoundRecurrent<'m> {
    /// The recurrent mixer of `layer`; `None` for a layer without one, or with the weights of another kind.
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
