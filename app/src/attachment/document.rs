//! A file that was read.

use std::{fs::File, io::Read, path::Path};

use super::{
    AttachmentError, DocumentKind, Passage,
    docx::{self, DocxError},
    passage::{of_lines, of_pages, of_paragraphs},
    pdf::{self, PdfError},
    text::{self, NotText},
};

/// Most bytes of a file, and of its text.
const LARGEST_FILE: u64 = 64 << 20;
const LARGEST_TEXT: u64 = 8 << 20;

/// A file as text, in passages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// File name, without folders.
    pub name: String,
    /// Format of the file.
    pub kind: DocumentKind,
    /// Its text.
    pub passages: Vec<Passage>,
}

impl Document {
    /// Reads a file. What it is its first bytes say, then its name.
    ///
    /// # Errors
    /// A sentence for the person who chose it.
    pub fn open(path: &Path) -> Result<Self, AttachmentError> {
        let name =
            path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
        let unreadable = |source| AttachmentError::Unreadable { name: name.clone(), source };
        let about = path.metadata().map_err(unreadable)?;
        if !about.is_file() {
            return Err(AttachmentError::NoFile { name });
        }
        if about.len() > LARGEST_FILE {
            return Err(AttachmentError::TooLarge { name, size: about.len(), most: LARGEST_FILE });
        }
        let mut bytes = Vec::new();
        // The file may grow while it is read.
        File::open(path).and_then(|file| file.take(LARGEST_FILE).read_to_end(&mut bytes)).map_err(unreadable)?;
        Self::read(name, DocumentKind::from_path(path), &bytes)
    }

    /// Reads the contents of a file of this name.
    ///
    /// # Errors
    /// As [`Document::open`].
    pub fn read(name: String, kind: DocumentKind, bytes: &[u8]) -> Result<Self, AttachmentError> {
        let kind = if bytes.starts_with(b"%PDF-") { DocumentKind::Pdf } else { kind };
        if bytes.is_empty() {
            return Err(AttachmentError::Empty { name });
        }
        let damaged = |kind, reason| AttachmentError::Damaged { name: name.clone(), kind, reason };
        let encrypted = || AttachmentError::Encrypted { name: name.clone() };
        let passages = match kind {
            DocumentKind::Pdf => of_pages(pdf::pages(bytes).map_err(|error| match error {
                PdfError::Encrypted => encrypted(),
                PdfError::Damaged(reason) => damaged("PDF", reason),
            })?),
            DocumentKind::Docx => of_paragraphs(docx::paragraphs(bytes).map_err(|error| match error {
                DocxError::Encrypted => encrypted(),
                DocxError::Damaged(reason) => damaged("docx", reason),
            })?),
            DocumentKind::Text | DocumentKind::Markdown | DocumentKind::Code => match text::decode(bytes) {
                Ok(text) => of_lines(&text),
                Err(NotText::Binary) => return Err(AttachmentError::Binary { name }),
                Err(NotText::UnknownEncoding) => return Err(AttachmentError::UnknownEncoding { name }),
            },
        };
        let document = Document { name, kind, passages };
        let size = document.passages.iter().map(|passage| passage.text.len() as u64).sum();
        let name = || document.name.clone();
        match () {
            () if size > LARGEST_TEXT => Err(AttachmentError::TooLarge { name: name(), size, most: LARGEST_TEXT }),
            () if document.passages.iter().any(|passage| !passage.text.trim().is_empty()) => Ok(document),
            () if kind == DocumentKind::Pdf => Err(AttachmentError::OnlyPictures { name: name() }),
            () => Err(AttachmentError::Empty { name: name() }),
        }
    }

    /// All of its text.
    pub fn text(&self) -> String {
        self.passages.iter().map(|passage| passage.text.as_str()).collect()
    }
}
