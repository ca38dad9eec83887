//! The GPU as a [`Processor`](super::Processor): the same program that the CPU walks, recorded and submitted at once. When a
//! model is loaded, its weights are uploaded by role and every dispatch is prepared with its buffers ([`Loader`]); what
//! depends on a context is prepared when its cache is made ([`GpuKv`]). A chunk is then recorded into one [`Segment`]: up go
//! the tokens' ids where the embedding is on the device as the head, else its rows, decoded on the CPU, and the positions'
//! rotations; down come the logits that were asked for. Decoding a token makes nothing, submits once and reads back once.
//!
//! A processor may hold the last layers only, and some of their neurons ([`hot`]) or of their experts ([`experts`]); [`split`] is the FFN of such a layer, [`stream`]
//! that of a long prompt's chunk, and [`moves`] changes what is held.
//!
//! A register is a buffer of its own, `[chunk, pitch(d_model)]`. The sum of `Out` into the residual stream is put off until
//! somebody reads the stream: usually the next norm, which adds on the way.

mod attention;
mod bytes;
mod cold;
mod elementwise;
mod embedding;
mod expert_buffers;
mod expert_extent;
mod experts;
mod extent;
mod ffn;
mod fired;
mod firing;
mod head;
mod hot;
mod kv;
mod layer;
mod loader;
mod moves;
mod neurons;
mod norm;
mod predictor;
mod processor;
mod product;
mod registers;
mod segment;
mod slab;
mod split;
mod stream;

pub use bytes::{DeviceBytes, LayerBytes, device_row_bytes};
pub(crate) use cold::{ColdSide, ColdWork};
pub use loader::GpuLoad;
pub(crate) use loader::{FfnShare, Loader, Share};
pub(crate) use moves::Holding;
pub use processor::GpuProcessor;

pub(crate) use kv::GpuKv;
pub(crate) use segment::Segment;
