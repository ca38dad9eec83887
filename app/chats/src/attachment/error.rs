//! Why a file cannot be attached, in words for the person who chose it.

use std::io;

use thermocline_host::units::bytes;

/// A file that cannot be read as text.
#[derive(Debug, thiserror::Error)]
#[error("{name} {fault}")]
pub struct AttachmentError {
    /// File name.
    pub name: String,
    /// The fault.
    pub fault: AttachmentFault,
}

/// The fault of a file that cannot be read as text, after its name.
#[derive(Debug, thiserror::Error)]
pub enum AttachmentFault {
    /// The system refused.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// It is a folder or a device.
    #[error("is not a file; attach the files in it one by one")]
    NoFile,
    /// It has nothing to read.
    #[error("is empty")]
    Empty,
    /// A PDF without letters.
    #[error("has no text, only pictures of it: it would have to be recognised first, which this program does not do")]
    OnlyPictures,
    /// It is larger than a file may be.
    #[error("has {}; at most {} can be attached", bytes(*size), bytes(*most))]
    TooLarge {
        /// Its bytes, of the file or of its text.
        size: u64,
        /// Most of them.
        most: u64,
    },
    /// It opens with a password only.
    #[error("is encrypted; save a copy without a password and attach that")]
    Encrypted,
    /// It is no text, and of no kind that is read.
    #[error("is not text; what can be attached is text, code, Markdown, PDF and docx")]
    Binary,
    /// It is text of an encoding that cannot be told for sure.
    #[error("is not UTF-8, and its encoding cannot be recognised; save it as UTF-8 and attach that")]
    UnknownEncoding,
    /// It is not what its name says, or it is incomplete.
    #[error("is damaged, or not a {kind} file: {reason}")]
    Damaged {
        /// The expected format, by name.
        kind: &'static str,
        /// The fault found, as one clause.
        reason: String,
    },
}
