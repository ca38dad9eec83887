//! The description of a vision tower, which turns pictures into embeddings of a model: its
//! configuration ([`TowerConfig`]) and its weights by role ([`TowerWeights`]). A projector is one
//! file in `projectors`. It reads the description from `mmproj-*.gguf` under llama.cpp's names,
//! and maps Hugging Face folders to these names. [`Tower`] does not depend on projectors.

mod config;
mod import;
mod opened;
mod picture_size;
mod projectors;
mod weights;

pub use config::{RowEnds, TowerConfig, TowerRope};
pub(crate) use import::{ImportedTower, import};
pub use opened::Tower;
pub use picture_size::PictureSizes;
pub use weights::{
    HeadNorms, Merger, PatchNorms, PatchPositions, PooledHead, TowerHead, TowerLayer, TowerLinear, TowerWeights,
    ValueLimits,
};
