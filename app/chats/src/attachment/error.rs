//! Why a file cannot be attached, in words for the person who chose it.

use std::io;

use thermocline_engine::Error;
use thermocline_host::units::bytes;

/// A file that cannot be attached.
#[derive(Debug, thiserror::Error)]
#[error("{name} {fault}")]
pub struct AttachmentError {
    /// File name.
    pub name: String,
    /// Why it cannot be read.
    pub fault: AttachmentFault,
}

/// Why a file cannot be attached, as words that follow its name.
#[derive(Debug, thiserror::Error)]
pub enum AttachmentFault {
    /// The system refused to read it.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// It is a folder or a device.
    #[error("is not a file. Attach the files of a folder one by one")]
    NoFile,
    /// It has no text.
    #[error("is empty")]
    Empty,
    /// It is a PDF without text and without pictures that can be decoded.
    #[error(
        "contains no text, and no pictures that Thermocline can read. Convert it with a text recognition (OCR) program first"
    )]
    OnlyPictures,
    /// It is larger than the limit.
    #[error("has {}. The limit for a file is {}", bytes(*size), bytes(*most))]
    TooLarge {
        /// Size of the file or of its text, in bytes.
        size: u64,
        /// Size limit in bytes.
        most: u64,
    },
    /// It opens only with a password.
    #[error("is encrypted. Save a copy without a password and attach the copy")]
    Encrypted,
    /// It is a picture that cannot be decoded.
    #[error("is not a picture that Thermocline can read: {0}")]
    Picture(Box<Error>),
    /// It is not text, and its format is not supported.
    #[error("is not a text file. You can attach pictures, and text, code, Markdown, PDF and docx files")]
    Binary,
    /// It is text in an encoding that cannot be recognised for sure.
    #[error("has an unknown text encoding. Save it as UTF-8 and attach it again")]
    UnknownEncoding,
    /// Its contents do not match its name, or it is incomplete.
    #[error("is damaged, or not a {kind} file: {reason}")]
    Damaged {
        /// The expected format, by name.
        kind: &'static str,
        /// The fault found, as one clause.
        reason: String,
    },
}
