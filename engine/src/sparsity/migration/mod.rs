//! A hot set that follows the text. What is hot was chosen from firing frequencies measured on some corpus; a conversation has a
//! topic of its own. [`Heat`] counts a layer's firings and forgets them again, [`exchange`] finds the pairs of neurons that should
//! change places and is sure of it, [`Recall`] holds a predictor to the share of firings it has to find, and a [`Follower`] does all
//! of that for a model, token by token, within a budget of bytes. Nothing here knows a device: masks go in, placements and
//! thresholds come out. [`follow`] measures what it is worth on a text.

mod exchange;
mod experiment;
mod follower;
mod heat;
mod recall;
#[cfg(test)]
mod tests;

pub use exchange::{Exchange, exchange};
pub use experiment::{FollowTrace, TokenHits, follow};
pub use follower::{FollowOptions, Follower};
pub use heat::Heat;
pub use recall::Recall;
