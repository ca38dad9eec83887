//! The models on this machine. [`scan`] finds them in folders. A [`ModelCard`] describes a model
//! without loading it. An [`AssistantCard`] describes an assistant, which drafts for a model.

mod assistant_card;
mod card;
mod scan;

pub use assistant_card::AssistantCard;
pub use card::{ModelCard, ModelId, embeds, is_prepared};
pub use scan::{FoundModel, scan};
