//! Kinds of files that can be attached.

use std::path::Path;

/// The format of an attached file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentKind {
    /// Plain text.
    Text,
    /// Markdown.
    Markdown,
    /// Source code, or data as text.
    Code,
    /// Portable Document Format.
    Pdf,
    /// A document of Word or of another word processor.
    Docx,
    /// A picture.
    Picture,
}

impl DocumentKind {
    /// All kinds.
    pub const ALL: [DocumentKind; 6] = [
        DocumentKind::Text,
        DocumentKind::Markdown,
        DocumentKind::Code,
        DocumentKind::Pdf,
        DocumentKind::Docx,
        DocumentKind::Picture,
    ];

    /// The name of this kind in the store and in files of chats.
    pub const fn name(self) -> &'static str {
        match self {
            DocumentKind::Text => "text",
            DocumentKind::Markdown => "markdown",
            DocumentKind::Code => "code",
            DocumentKind::Pdf => "pdf",
            DocumentKind::Docx => "docx",
            DocumentKind::Picture => "picture",
        }
    }

    /// The kind with this [`DocumentKind::name`].
    pub fn from_name(name: &str) -> Option<DocumentKind> {
        DocumentKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The kind that a file name stands for; text if its extension is unknown.
    pub fn from_path(path: &Path) -> DocumentKind {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        match extension.to_ascii_lowercase().as_str() {
            "pdf" => DocumentKind::Pdf,
            "docx" => DocumentKind::Docx,
            "md" | "markdown" => DocumentKind::Markdown,
            "png" | "jpg" | "jpeg" | "webp" | "gif" | "bmp" | "tif" | "tiff" | "avif" | "heic" | "heif" => {
                DocumentKind::Picture
            }
            "" | "txt" | "text" | "log" | "rst" | "tex" | "srt" => DocumentKind::Text,
            _ => DocumentKind::Code,
        }
    }
}
