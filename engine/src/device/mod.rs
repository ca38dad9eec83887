//! The last layers of a model on a device ([`GpuLayers`]), but for the question which neurons are there: that is `hybrid`'s. When
//! a layer comes, its weights are uploaded by role and every dispatch is prepared with its buffers ([`GpuLoader`]); dispatches that
//! depend on a context are prepared with its cache ([`GpuKv`]). A chunk is then recorded into one [`Segment`]: up go the tokens' ids
//! if the embedding is on the device as the head, else its rows, decoded on the CPU, and the positions' rotations; down come the
//! logits that were asked for. With everything on the device, decoding a token allocates nothing, submits once and reads back once.
//!
//! A register is a buffer of its own, `[chunk, pitch(d_model)]`. The sum of `Out` into the residual stream is put off until a step
//! reads the stream: usually the next norm, which adds on the way.

pub(crate) mod altup;
pub(crate) mod attention;
mod caches;
mod delta_net;
pub(crate) mod device_bytes;
pub(crate) mod device_ffn;
pub(crate) mod device_model;
pub(crate) mod elementwise;
pub(crate) mod embedding;
pub(crate) mod expert_block;
pub(crate) mod expert_buffers;
mod expert_latent;
pub(crate) mod expert_pass;
pub(crate) mod ffn;
pub(crate) mod fired;
pub(crate) mod firing_log;
pub(crate) mod hand_over;
pub(crate) mod head;
pub(crate) mod kv;
mod latent;
pub(crate) mod layer;
pub(crate) mod layers;
pub(crate) mod load;
pub(crate) mod loader;
mod mamba2;
pub(crate) mod moves;
pub(crate) mod neuron_block;
pub(crate) mod neuron_buffers;
pub(crate) mod neuron_pass;
pub(crate) mod neuron_rows;
pub(crate) mod neuron_weights;
pub(crate) mod norm;
pub(crate) mod per_layer;
pub(crate) mod predictor;
pub(crate) mod product;
pub(crate) mod recurrent;
pub(crate) mod registers;
pub(crate) mod resident_experts;
pub(crate) mod resident_neurons;
pub(crate) mod resident_pass;
pub(crate) mod segment;
pub(crate) mod slot_table;
pub(crate) mod state;
pub(crate) mod streaming_buffer;

pub use device_bytes::device_bytes;
pub(crate) use kv::GpuKv;
pub(crate) use layers::GpuLayers;
pub use load::{GpuLoad, device_support};
pub(crate) use loader::GpuLoader;
pub(crate) use segment::Segment;
pub(crate) use state::GpuState;
