//! The device's side of a model: its last layers and perhaps the head in a device's memory, computed there ([`device_model`]).
//! Which neurons are there is its caller's decision; a layer's cold ones are the CPU's, and `hybrid` brings the two together.
//!
//! - Layer parts: `attention` (with `scores` and `latent`), `recurrent` (`delta_net`, `mamba2`), `norm`, `ffn`, `per_layer`,
//!   `altup`, `embedding` and `head`, made of `product`, `elementwise` and `neuron_rows`, work on [`registers`]. `step`
//!   prepares and records a step of a layer's program with them, in buffers that layers share (`part_buffers`), and
//!   [`GpuLayers`] has all layers that are here.
//! - Resident units: `slot_table` says which neuron or expert is in which slot. [`resident_neurons`] and `resident_experts` have
//!   the weights, a `neuron_block` or `expert_block` per block of slots, and scratch (`neuron_buffers`, `expert_buffers`,
//!   `expert_latent`); [`neuron_pass`] and [`expert_pass`] record a pass of them, and [`resident_pass`] is the part of it that
//!   the CPU waits for. `predictor` says which neurons to look at. [`device_ffn`] is a layer's FFN, however much of it is here.
//! - KV and states: [`GpuKv`] (its rows lie as `kv_rows` says, in a `kv_page` or several) and [`GpuState`] are one layer's of one
//!   conversation; `caches` moves them with their layers.
//! - Segment and hand-over: the commands of a chunk go into one [`Segment`], which submits as much at once as the device's pace
//!   allows (`submission_clock` times it, `scores` divides attention). A split layer hands over to the CPU in the middle of it
//!   ([`hand_over`]). Masks of neurons that fired (`fired`) come back with its results ([`firing_log`]).
//! - Streaming: cold neurons of a prompt pass through a [`streaming_buffer`].
//! - [`self_test`](fn@self_test) holds every kernel of a device against the CPU before one is trusted.
//! - Coming and going: [`load`] says which part of a model comes, [`GpuLoader`] uploads it, [`moves`] changes it between two
//!   chunks, and [`device_bytes`] counts its bytes beforehand.
//!
//! When a layer comes, its weights are uploaded by role and every dispatch is prepared with its buffers; dispatches that depend
//! on a context are prepared with its cache. When a chunk begins, up go the tokens' ids if the embedding is on the device as the
//! head, else its rows, decoded on the CPU, and the positions' rotations; down come the logits that were asked for. With
//! everything on the device, decoding a token allocates nothing, submits once and reads back once.
//!
//! A register is a buffer of its own, `[chunk, pitch(d_model)]`. The sum of `Out` into the residual stream is put off until a
//! step reads the stream: usually the next norm, which adds on the way.

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
mod layers;
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
mod self_test;
mod slot_table;
mod state;
mod step;
pub(crate) mod streaming_buffer;
mod submission_clock;

pub use device_bytes::device_bytes;
pub(crate) use kv::GpuKv;
pub(crate) use layers::GpuLayers;
pub use limits::{caps_of, limits_of};
pub use load::{GpuLoad, device_support};
pub(crate) use loader::GpuLoader;
pub(crate) use segment::Segment;
pub use self_test::{KernelOutcome, KernelVerdict, SelfTest, self_test};
pub use state::GpuState;
