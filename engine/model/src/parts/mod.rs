//! The parts of a layer, one file each: sizes, weights, shared loading code, and the form that a
//! step names ([`BoundAttention`] and the like). `runtime/cpu` computes each part under the same
//! name, and `device` records it. [`LayerPart`] lists the parts that are not an FFN, and
//! `recurrent` lists the recurrent mixers.

mod altup;
mod attention;
mod attention_config;
mod embedding_head;
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
mod state_input;

pub use altup::{AltupConfig, AltupStep, AltupTable, AltupWeights};
pub use attention::{AttentionWeights, BoundAttention};
pub use attention_config::{
    AttentionConfig, GateFunction, HeadGates, HeadPositions, QueryScale, ScoreScaling, ValueScaling,
};
pub(crate) use embedding_head::RANK;
pub use embedding_head::{Classifier, ClassifierActivation, EmbeddingHead, Pooling};
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
pub use state_input::StateInput;
