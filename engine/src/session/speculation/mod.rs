//! Speculative decoding. A source drafts the next tokens, and one pass computes the drafts together
//! with the next token. The sampler draws tokens as usual, and drafts that it does not draw are
//! dropped. [`PromptLookup`] drafts tokens that followed the latest tokens before. The
//! [`DraftController`] decides in every step which source drafts and how many tokens. It knows the
//! measured [`pass_costs`] and each source's measured [`acceptance`].

mod acceptance;
mod controller;
mod draft_counts;
mod lookup;
mod pass_costs;
mod running_mean;

pub use draft_counts::{DraftCounts, DraftsBySource};

pub(super) use controller::{DraftController, DraftPlan};
pub(super) use lookup::PromptLookup;

/// Largest number of tokens that any source drafts.
const MOST_DRAFTS: usize = 16;

/// The origin of drafted tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftSource {
    /// Tokens that followed an earlier occurrence of the latest tokens.
    Lookup,
    /// The model's own multi-token-prediction head.
    Head,
    /// A smaller model with the same vocabulary.
    Model,
}

impl DraftSource {
    /// Every source.
    pub const ALL: [DraftSource; 3] = [DraftSource::Lookup, DraftSource::Head, DraftSource::Model];

    /// Name of the source in JSON.
    pub fn name(self) -> &'static str {
        match self {
            DraftSource::Lookup => "lookup",
            DraftSource::Head => "mtp",
            DraftSource::Model => "model",
        }
    }

    /// Largest number of tokens that the source drafts for one pass. Acceptance of a head or a
    /// model falls with every draft, but a lookup may quote a long text.
    fn most_drafts(self) -> usize {
        match self {
            DraftSource::Lookup => MOST_DRAFTS,
            DraftSource::Head | DraftSource::Model => 4,
        }
    }
}
