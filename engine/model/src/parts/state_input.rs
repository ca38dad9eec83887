//! The input of a draft head: an embedding and a hidden state.

use super::{Linear, Norm, NormKind};
use crate::load::Loader;
use thermocline_base::error::Result;

/// Weights that combine a token's embedding `e` with the hidden state `h` of the token before it:
/// `projection [norm(e); norm(h)]`. Hidden states are taken after the final norm of the model, or
/// of the draft head itself.
#[derive(Debug, Clone)]
pub struct StateInput {
    /// Norm of embeddings, `[d]`
    pub embedding_norm: Norm,
    /// Norm of hidden states, `[d]`
    pub state_norm: Norm,
    /// `[d, 2 d]`; the columns of the embedding come first.
    pub projection: Linear,
}

impl StateInput {
    /// Loads the weights, if the checkpoint has them.
    pub(crate) fn load(loader: &Loader<'_>, d_model: usize) -> Result<Option<Self>> {
        if !loader.has("nextn.eh_proj.weight") {
            return Ok(None);
        }
        Ok(Some(StateInput {
            embedding_norm: loader.norm("nextn.enorm", NormKind::Rms, d_model)?,
            state_norm: loader.norm("nextn.hnorm", NormKind::Rms, d_model)?,
            projection: loader.linear("nextn.eh_proj", d_model, 2 * d_model)?,
        }))
    }
}
