//! Adaptive placement: a hot set that follows the text. The hot set is chosen from firing frequencies measured on some
//! corpus; a conversation has a topic of its own. [`DecayedCounts`] counts a layer's firings with exponential decay,
//! [`exchange`] finds the pairs of neurons that should change places with statistical certainty, [`ExpertScores`] counts experts with the
//! half-life by which most choices would have hit, [`RecallControl`] corrects
//! a predictor's threshold until its recall meets the target, and a [`Follower`] does all of that for a model, token by
//! token, within a budget of bytes. Nothing here knows a device: firing masks go in, placements and threshold corrections
//! come out. [`follow`] measures the benefit on a text.

mod decayed_counts;
mod exchange;
mod experiment;
mod follower;
mod recall_control;
mod recency;
#[cfg(test)]
mod tests;
mod token_bucket;

pub use decayed_counts::DecayedCounts;
pub use exchange::{SlotExchange, exchange, exchange_experts};
pub use experiment::{FollowTrace, TokenHits, follow};
pub use follower::{FollowOptions, Follower};
pub use recall_control::RecallControl;
pub use recency::{ExpertScores, HALF_LIVES};

pub(super) use recency::ShadowCache;
