//! Text to token ids and back, and chat templates.
//!
//! A [`Tokenizer`] is built from GGUF metadata or from a Hugging Face `tokenizer.json`. Byte-level BPE runs on the
//! `tokenizers` library ([`bpe`]); SentencePiece vocabularies with scores, which that library cannot represent, run on the
//! merge in [`sentence_piece`]. Special tokens are split off the text beforehand ([`added`]), so that they are
//! recognised only when the caller asks. Going back, every token is a string of bytes ([`vocab`]); a [`Detokeniser`]
//! joins them without ever splitting a UTF-8 character. A [`ChatTemplate`] turns messages into a [`PromptText`], in
//! which control tokens are those of the template alone ([`control_texts`]);
//! [`reasoning`] tells thoughts and answer apart in what comes back, [`tools`] text and calls. [`fence`] recognises code in Markdown.

// They panic where nobody reads.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod added;
mod bpe;
mod byte_level;
mod chat;
mod control_texts;
mod detokeniser;
mod export;
pub mod fence;
mod gguf;
mod infill;
mod json;
mod pre_tokenizer;
mod prompt_text;
pub mod reasoning;
mod sentence_piece;
mod special_ids;
#[cfg(test)]
mod test_vocabulary;
mod tokenizer;
pub mod tools;
mod vocab;

pub use byte_level::byte_char;
pub use chat::{ChatMessage, ChatTemplate, RenderOptions, TemplateOrigin};
pub use detokeniser::Detokeniser;
pub use export::export_metadata;
pub use prompt_text::ContentGuard;
pub use prompt_text::PromptText;
pub use tokenizer::{EncodeOptions, Tokenizer};
pub use vocab::TokenKind;
