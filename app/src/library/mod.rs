//! The models on this machine. [`scan`] finds them in folders; a [`Card`] says what one is without loading it.

mod card;
mod scan;

pub use card::{Card, ModelId};
pub use scan::{Found, scan};
