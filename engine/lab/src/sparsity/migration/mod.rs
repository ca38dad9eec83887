//! Adaptive placement: a hot set that follows the text. The hot set is chosen from firing
//! frequencies measured on some corpus, but a conversation has its own topic.
//!
//! [`DecayedCounts`] counts a layer's firings with exponential decay. [`exchange`] finds pairs of
//! neurons that should exchange places with statistical certainty. [`ExpertScores`] counts experts
//! with the half-life by which most choices would have hit. [`RecallControl`] corrects a
//! predictor's threshold until its recall meets the target. A [`Follower`] does all of this for a
//! model, token by token, within a budget of bytes.
//!
//! This module does not depend on a device. Its inputs are firing masks, its outputs placements and
//! threshold corrections. [`follow`] measures the benefit on a text.

mod exchange;
mod experiment;
mod follower;
mod recall_control;
mod recency;
#[cfg(test)]
mod tests;
mod token_bucket;

pub use exchange::{SlotExchange, exchange, exchange_experts};
pub use experiment::{FollowTrace, TokenHits, follow};
pub use follower::{FollowOptions, Follower};
pub use recall_control::RecallControl;
pub use recency::{ExpertScores, HALF_LIVES};

pub(super) use recency::ShadowCache;
pub use thermocline_base::telemetry::DecayedCounts;
