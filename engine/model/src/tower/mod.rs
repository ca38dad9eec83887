//! The description of a vision tower, which turns pictures into embeddings of a model: its
//! configuration ([`TowerConfig`]) and its weights by role ([`TowerWeights`]). A projector is one
//! file in `projectors`. It reads the description from `mmproj-*.gguf` under llama.cpp's names,
//! and maps Hugging Face folders to these names. [`Tower`] does not depend on projectors.

mod config;
mod import;
mod opened;
mod picture_parts;
mod picture_size;
mod picture_slices;
mod projectors;
mod weights;

pub use config::{RowEnds, TowerConfig, TowerRope};
pub(crate) use import::{ImportedTower, import};
pub use opened::Tower;
pub use picture_parts::{PictureCell, PicturePart};
pub use picture_size::PictureSizes;
pub use picture_slices::{PictureSlices, SliceGrid};
pub use weights::{
    HeadNorms, Merger, PatchJoin, PatchNorms, PatchPositions, PooledHead, Resampler, TowerHead, TowerLayer,
    TowerLinear, TowerWeights, ValueLimits,
};
