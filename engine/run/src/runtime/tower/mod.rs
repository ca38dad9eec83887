//! Vision towers on the CPU: a picture becomes [`PictureEmbeddings`] of a text model.
//! [`TowerProcessor`] brings the picture to a size that the tower takes, or to an overview and
//! slices. It cuts them into `patches`, adds their `positions`, runs the layers, and merges squares
//! of patches to tokens. Patches are in the order of windows and squares from the start, so that
//! neither moves data. A tower may `join` patches between two layers, or end with a `resampler`.

mod embeddings;
mod join;
mod layer_pass;
mod patches;
mod positions;
mod processor;
mod resampler;
mod scratch;

pub(crate) use embeddings::PartEmbeddings;
pub use embeddings::PictureEmbeddings;
pub(crate) use patches::PatchOrder;
pub(crate) use positions::rope_table;
pub use processor::TowerProcessor;
pub use scratch::tower_scratch;
