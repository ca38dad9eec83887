//! The parts of a layer, one file each: sizes, weights, how they are loaded where families share that, and the form in which a step
//! names them ([`BoundAttention`] and the like). A part has the same name in `runtime/cpu`, which computes it on the CPU, and in
//! `device`, which records it; [`LayerPart`] is the table of those that are not an FFN, and `recurrent` that of recurrent mixers.

mod altup;
mod attention;
mod experts;
mod ffn;
mod latent;
mod linear;
mod mixer;
mod norm;
mod part;
mod per_layer;
mod predictor;
pub mod recurrent;
mod router;
mod state;

pub use altup::{AltupConfig, AltupStep, AltupTable, AltupWeights};
pub use attention::{AttentionConfig, AttentionWeights, BoundAttention, HeadGate, QueryScale};
pub use experts::{ExpertLatent, ExpertWeights, Experts, SharedExpert};
pub use ffn::{BoundFfn, Down, Ffn, FfnKind, FfnWeights};
pub(super) use latent::load_latent_attention;
pub use latent::{BoundLatent, LatentConfig, LatentWeights};
pub use linear::Linear;
pub use mixer::{MixerConfig, MixerWeights};
pub use norm::{LayerNorms, Norm, NormKind, NormSlot};
pub use part::LayerPart;
pub use per_layer::{PerLayerTable, PerLayerWeights};
pub use predictor::{Predictor, PredictorInput, PredictorKind, PredictorQuality};
pub use recurrent::{BoundMixer, BoundRecurrent, RecurrentConfig, RecurrentWeights};
pub use router::{ExpertGroups, Router, RouterScore};
pub use state::StateShape;
