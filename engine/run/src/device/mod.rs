//! The device's side of a model: its last layers, and perhaps the head, are in a device's memory
//! and computed there ([`device_model`]). The caller decides which neurons are on the device. The
//! CPU computes a layer's cold neurons, and `hybrid` combines the results.
//!
//! - Layer parts: `attention` (with `scores` and `latent`), `recurrent` (`delta_net`, `mamba2`),
//!   `norm`, `ffn`, `per_layer`, `altup`, `embedding` and `head`. They are made of `product`,
//!   `elementwise` and `neuron_rows` and work on [`registers`]. `step` prepares and records a step
//!   of a layer's program, in buffers that layers share (`part_buffers`). [`GpuLayers`] holds all
//!   layers on the device.
//! - Resident units: `slot_table` maps slots to neurons or experts. [`resident_neurons`] and
//!   `resident_experts` hold the weights (of `neuron_weights` or `expert_matrices`), a
//!   `neuron_block` or `expert_block` per block of slots, and scratch buffers (`neuron_buffers`,
//!   `expert_buffers`, `expert_latent`). [`neuron_pass`] and
//!   [`expert_pass`] record a pass; [`resident_pass`] is the part that the CPU waits for.
//!   `predictor` selects the neurons to compute. [`device_ffn`] is a layer's FFN, whichever part of
//!   it is on the device.
//! - KV and states: [`GpuKv`] (laid out by `kv_rows`, in one or several pages of `kv_page`) and
//!   [`GpuState`] belong to one layer of one conversation. `caches` moves them with their layers.
//! - Segment and hand-over: the commands of a chunk are recorded in one [`Segment`], which submits
//!   as much at once as the device's pace allows. `submission_clock` times it, and `scores` divides
//!   attention. A split layer hands over to the CPU in the middle of a segment ([`hand_over`]).
//!   Masks of fired neurons (`fired`) are read back with the results ([`firing_log`]).
//! - Streaming: cold neurons and experts of a prompt pass through a [`streaming_buffer`]
//!   (`streamed_neurons`, `streamed_experts`).
//! - Loading and moving: [`load`] describes the part of a model to load, and [`GpuLoader`] uploads
//!   it. [`moves`] changes the part between two chunks. [`device_bytes`] counts its bytes in
//!   advance.
//! - Pictures: `tower` computes the layers of a vision tower beside the model.
//!
//! When a layer is loaded, its weights are uploaded by role and every dispatch is prepared with its
//! buffers. Dispatches that depend on a context are prepared with its cache. At the start of a
//! chunk the token ids are uploaded if the embedding is on the device as the head. Otherwise the
//! CPU decodes the embedding rows and uploads them. The positions' rotations are uploaded too. At
//! the end the requested logits are read back. With everything on the device, decoding a token
//! allocates nothing, submits once and reads back once.
//!
//! A register is a buffer, `[chunk, pitch(d_model)]`. Adding `Out` to the residual stream is
//! deferred until a step reads the stream. That step is usually the next norm, which adds while it
//! reads.

mod altup;
mod attention;
mod caches;
mod device_bytes;
pub(crate) mod device_ffn;
pub(crate) mod device_model;
mod elementwise;
mod embedding;
mod expert_block;
mod expert_buffers;
mod expert_latent;
pub(crate) mod expert_matrices;
pub(crate) mod expert_pass;
mod ffn;
mod fired;
pub(crate) mod firing_log;
pub(crate) mod hand_over;
mod head;
mod kv;
mod kv_page;
mod kv_rows;
mod latent;
mod layer;
pub(crate) mod layers;
mod limits;
pub(crate) mod load;
mod loader;
pub(crate) mod moves;
mod neuron_block;
mod neuron_buffers;
pub(crate) mod neuron_pass;
mod neuron_rows;
pub(crate) mod neuron_weights;
mod norm;
mod part_buffers;
mod per_layer;
mod predictor;
mod product;
mod recurrent;
pub(crate) mod registers;
mod resident_experts;
pub(crate) mod resident_neurons;
pub(crate) mod resident_pass;
mod scores;
mod segment;
mod slot_table;
mod state;
mod step;
mod streamed_experts;
mod streamed_neurons;
pub(crate) mod streaming_buffer;
mod submission_clock;
mod tower;

pub use device_bytes::device_bytes;
pub(crate) use kv::GpuKv;
pub(crate) use layers::GpuLayers;
pub use limits::{caps_of, limits_of};
pub use load::{GpuLoad, device_support};
pub(crate) use loader::GpuLoader;
pub(crate) use segment::Segment;
pub use state::GpuState;
pub use tower::tower_bytes;
pub(crate) use tower::{TowerOutputs, compute_tower, has_device_form};
