//! Files attached to messages. [`Document::open`] reads a file: text ([`text`]), PDF ([`pdf`]) or
//! docx ([`docx`]). It cuts the text into [`Passage`]s, each with its place in the file. [`prompt`]
//! writes files into the prompt: whole if the context has room, otherwise the passages that fit the
//! question best. This module does not depend on chats or windows.

mod document;
mod docx;
mod error;
mod kind;
mod passage;
mod pdf;
pub mod prompt;
mod text;

pub use document::Document;
pub use error::{AttachmentError, AttachmentFault};
pub use kind::DocumentKind;
pub use passage::{Passage, SourcePart};
pub use text::{NotText, decode};

#[cfg(any(test, feature = "test-hooks"))]
pub mod fixtures;
#[cfg(test)]
mod tests;
