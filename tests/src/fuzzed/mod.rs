//! Properties of everything that reads files of others, one function per reader, each on one input: no panic, no hang, and what was read is
//! written unchanged. The fuzz targets search inputs for them; the tests hold them against mutated fixtures.

pub mod gguf;
pub mod gpuidx;
pub mod sidecar;
pub mod template;
pub mod tokenizer;
