//! Converts text to token ids and back, and renders chat templates.
//!
//! A [`Tokenizer`] is built from GGUF metadata or from a Hugging Face `tokenizer.json`. Byte-level
//! BPE, WordPiece and Unigram use the `tokenizers` library ([`subwords`]). SentencePiece
//! vocabularies whose scores order merges, which that library cannot represent, use the merge in
//! [`sentence_piece`]. Special tokens are split off the text beforehand ([`added`]), so that they
//! are recognised only if the caller asks.
//!
//! For decoding, every token is a string of bytes ([`vocab`]). A [`Detokeniser`] joins them without
//! splitting a UTF-8 character.
//!
//! A [`ChatTemplate`] turns messages into a [`PromptText`], in which only the template itself can
//! write control tokens ([`control_texts`]). [`reasoning`] separates thoughts from the answer, and
//! [`tools`] separates text from tool calls. [`fence`] recognises code in Markdown.

// The print macros panic if the output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod added;
mod bpe;
mod byte_level;
mod character_map;
mod chat;
mod control_texts;
mod detokeniser;
mod export;
pub mod fence;
mod gguf;
mod infill;
mod json;
mod picture_marks;
mod pre_tokenizer;
mod prompt_text;
pub mod reasoning;
mod sentence_piece;
mod special_ids;
mod subwords;
#[cfg(test)]
mod test_vocabulary;
mod tokenizer;
pub mod tools;
mod unigram;
mod vocab;
mod word_piece;

pub use byte_level::byte_char;
pub use chat::{ChatMessage, ChatTemplate, RenderOptions, TemplateOrigin};
pub use detokeniser::Detokeniser;
pub use export::export_metadata;
pub use picture_marks::PictureMarks;
pub use prompt_text::ContentGuard;
pub use prompt_text::PromptText;
pub use tokenizer::{EncodeOptions, TokenPair, Tokenizer};
pub use vocab::TokenKind;
