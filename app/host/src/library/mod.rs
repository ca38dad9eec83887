//! The models on this machine. [`scan`] finds them in folders. A [`ModelCard`] describes a model
//! without loading it.

mod card;
mod scan;

pub use card::{ModelCard, ModelId, is_prepared};
pub use scan::{FoundModel, scan};
