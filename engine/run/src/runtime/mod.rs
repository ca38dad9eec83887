//! The forward pass: [`Forward`] runs a model's steps, and a [`Processor`] computes them.
//! [`CpuProcessor`] (`cpu`) computes all steps from RAM. A [`Pass`] computes tokens of one or
//! several [`Sequences`]. [`KvCache`] holds the keys and values of every layer. Rows in another
//! processor's memory are opaque [`OffHostRows`]. A [`Probe`] observes the layers.

mod call_inputs;
pub(crate) mod cpu;
mod finite;
mod forward;
mod kept_rows;
mod kv_cache;
mod kv_layer;
mod off_host;
mod pass;
mod picture_spans;
mod placed_state;
mod predict;
mod probe;
mod processor;
mod recurrent_layer;
mod recurrent_state;
mod residency;
mod rotary;
mod route_preference;
pub(crate) mod scratch;
mod sequences;
mod shortlist;
mod snapshots;
mod tower;

pub use call_inputs::{CallInputs, PlacedPicture};
pub use cpu::{ChosenExperts, LayerInputs, TokenInputs};
pub use cpu::{CpuFfn, CpuProcessor, FfnBlock, FfnTask, FfnWork, PredictionSource, RouterInputs, Routing};
pub(crate) use finite::check_finite;
pub use finite::check_logits;
pub use forward::compute_layer;
pub use forward::{DEFAULT_CHUNK, Forward, Outputs};
pub(crate) use kept_rows::KeptRows;
pub use kept_rows::LONGEST_PASS;
pub(crate) use kv_cache::LayerRows;
pub use kv_cache::{CacheBytes, KvCache};
pub use kv_layer::KvLayer;
pub(crate) use off_host::{OffHostRows, OffHostState};
pub use pass::{InputRows, Pass, ThresholdCorrection};
pub(crate) use picture_spans::{PictureSpan, PictureSpans};
pub(crate) use placed_state::AdvancedState;
pub use predict::predictor_scores;
pub use probe::{ExpertHidden, LayerFiring, PassPart, Probe};
pub use processor::Processor;
pub use recurrent_layer::RecurrentState;
pub use recurrent_state::MOST_PLANES;
pub use residency::Residency;
pub use rotary::Rotary;
pub use route_preference::{HeldExperts, RoutePreference, always_taken};
pub(crate) use route_preference::{LayerPreference, LayerPreferences};
pub use sequences::Sequences;
pub use shortlist::{MAX_SHORTLIST, Shortlist};
pub(crate) use tower::{PartEmbeddings, PatchOrder, rope_table};
pub use tower::{PictureEmbeddings, TowerProcessor, tower_scratch};

pub use thermocline_cpu::ops::KvType;
pub use thermocline_model::Sparsity;
