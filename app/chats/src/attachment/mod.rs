//! Files that go with a message. [`Document::open`] reads one: text of any kind ([`text`]), PDF ([`pdf`]) or docx ([`docx`]), cut into
//! [`Passage`]s that know their place in the file. [`prompt`] says how they are put before the model: whole where the context has
//! room for the file, else those passages that fit the question best. Nothing here knows chats or windows.

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
