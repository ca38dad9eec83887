//! Vision towers on the CPU: a picture becomes [`PictureEmbeddings`] of a text model.
//! [`TowerProcessor`] brings the picture to a size that the tower takes, cuts it into `patches`,
//! adds their `positions`, runs the layers, and merges squares of patches to tokens. Patches are
//! in the order of windows and squares from the start, so that neither moves data.

mod embeddings;
mod patches;
mod positions;
mod processor;

pub use embeddings::PictureEmbeddings;
pub use processor::TowerProcessor;
