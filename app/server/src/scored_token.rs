//! Tokens with log probabilities.

/// A token of a prompt or an answer with its log probability.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoredToken {
    /// Its text.
    pub bytes: Vec<u8>,
    /// It is part of the text; special tokens are not.
    pub visible: bool,
    /// Its log probability; `None` if nothing predicts it.
    pub logprob: Option<f32>,
    /// The likeliest tokens at its place, by text.
    pub top: Vec<(Vec<u8>, f32)>,
}
