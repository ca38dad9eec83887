//! Why a file cannot be attached, in words for the person who chose it.

use std::io;

use crate::units::bytes;

/// A file that cannot be read as text.
#[derive(Debug, thiserror::Error)]
pub enum AttachmentError {
    /// The system refused.
    #[error("{name} cannot be read: {source}")]
    Unreadable {
        /// File name.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// It is a folder or a device.
    #[error("{name} is not a file; attach the files in it one by one")]
    NoFile {
        /// File name.
        name: String,
    },
    /// It has nothing to read.
    #[error("{name} is empty")]
    Empty {
        /// File name.
        name: String,
    },
    /// A PDF without letters.
    #[error(
        "{name} has no text, only pictures of it: it would have to be recognised first, which this program does not do"
    )]
    OnlyPictures {
        /// File name.
        name: String,
    },
    /// It is larger than a file may be.
    #[error("{name} has {}; at most {} can be attached", bytes(*size), bytes(*most))]
    TooLarge {
        /// File name.
        name: String,
        /// Its bytes, of the file or of its text.
        size: u64,
        /// Most of them.
        most: u64,
    },
    /// It opens with a password only.
    #[error("{name} is encrypted; save a copy without a password and attach that")]
    Encrypted {
        /// File name.
        name: String,
    },
    /// It is no text, and of no kind that is read.
    #[error("{name} is not text; what can be attached is text, code, Markdown, PDF and docx")]
    Binary {
        /// File name.
        name: String,
    },
    /// It is text of an encoding that cannot be told for sure.
    #[error("{name} is not UTF-8, and its encoding cannot be recognised; save it as UTF-8 and attach that")]
    UnknownEncoding {
        /// File name.
        name: String,
    },
    /// It is not what its name says, or it is incomplete.
    #[error("{name} is damaged, or not a {kind} file: {reason}")]
    Damaged {
        /// File name.
        name: String,
        /// The expected format, by name.
        kind: &'static str,
        /// The fault found, as one clause.
        reason: String,
    },
}
