//! Opens a draft model: a small model, or an assistant, that proposes tokens to another model. Both
//! must have the same tokens, because the proposed ids go to the larger model as they are.

use std::path::Path;

use thermocline_base::error::{Error, Result};
use thermocline_formats::format::ReadMode;
use thermocline_model::{LoadOptions, Model};
use thermocline_text::Tokenizer;

/// Most characters of a token in an error.
const SHOWN: usize = 40;

/// Opens the draft model in `path` for `model`.
///
/// # Errors
/// The errors of [`Model::drafting_for`]; [`Error::Invalid`] if its tokens differ from the tokens
/// of `model`. The error names the first difference.
pub fn open_draft_model(path: &Path, mode: ReadMode, model: &Model) -> Result<Model> {
    open(path, mode, model, &Tokenizer::from_checkpoint(&model.checkpoint)?)
}

/// [`open_draft_model`] for a model with the tokenizer `tokens`.
pub(super) fn open(path: &Path, mode: ReadMode, model: &Model, tokens: &Tokenizer) -> Result<Model> {
    let options = LoadOptions { read_mode: mode, activation: None };
    let draft = Model::drafting_for(model, Model::open_checkpoint(path, mode)?, &options)?;
    let own = Tokenizer::from_checkpoint(&draft.checkpoint)?;
    if let Some(id) = tokens.first_difference(&own) {
        let target = model.checkpoint.path.display();
        let expected = format!("the tokens of {target}, in which token {id} is {}", shown(tokens, id));
        return Err(Error::invalid("draft model", expected, format!("{} in {}", shown(&own, id), path.display())));
    }
    // Both read the ids of all tokens. Their heads may have different numbers of rows after these.
    let (rows, needed) = (draft.config.n_vocab, tokens.unpadded_len());
    if rows < needed {
        let expected = format!("embeddings of the {needed} tokens");
        return Err(Error::invalid("draft model", expected, format!("{rows} in {}", path.display())));
    }
    Ok(draft)
}

/// The text of token `id` in quotes, without the end of a long one.
fn shown(tokens: &Tokenizer, id: u32) -> String {
    if id as usize >= tokens.unpadded_len() {
        return "missing".to_owned();
    }
    let text = String::from_utf8_lossy(tokens.token_bytes(id)).into_owned();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}..", &text[..end]),
        None => format!("{text:?}"),
    }
}
