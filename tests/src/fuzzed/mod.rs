//! Properties of every reader of foreign files, one function per reader, each on one input. No
//! reader may panic or hang, and files that were read are written unchanged. The fuzz targets
//! search for inputs that break a property. The tests check the properties on mutated fixtures.

pub mod gguf;
pub mod gpuidx;
pub mod pictures;
pub mod sidecar;
pub mod template;
pub mod tokenizer;
