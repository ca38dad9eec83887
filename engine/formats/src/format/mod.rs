//! Model files as tensors and metadata. GGUF (v2, v3, split), PowerInfer's variant of it and
//! Hugging Face folders are mapped into memory and read without copying weights. Every count,
//! length, offset and product is checked against the file before use. Every container gives a
//! [`Checkpoint`]: metadata under GGUF's key names and tensors under GGUF's tensor names.

mod blank;
mod byte_range;
mod bytes;
mod checkpoint;
pub mod gguf;
mod hf;
mod mapped_file;
mod matrix;
mod metadata;
mod mmap;
mod open;
mod paging;
pub mod powerinfer;
mod safetensors;
mod sentence_modules;
mod tensor;

pub use blank::Blank;
pub use bytes::Bytes;
pub use checkpoint::{Checkpoint, Container, MappedFiles, TokenizerSource};
pub use hf::HfFolder;
pub use mapped_file::MappedFile;
pub use matrix::{Matrix, RecordPart};
pub use metadata::{Array, Metadata, Value};
pub use mmap::anonymous;
pub use mmap::{ReadMode, UncachedFile, survive_lost_files};
pub use open::{Opened, open};
pub use paging::{EXPERT_PIECE, PagedAccess, PagedTensor, Pager, PagerFigures, REQUEST_BYTES, ReadRows, WHOLE_PIECE};
pub use sentence_modules::{DenseModule, SentenceModules};
pub use tensor::Tensor;
