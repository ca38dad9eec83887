//! A file read as text.

use std::{fs::File, io::Read, path::Path};

use super::{
    AttachmentError, AttachmentFault, DocumentKind, Passage, docx,
    passage::{of_lines, of_pages, of_paragraphs},
    pdf,
    text::{self, NotText},
};

/// Largest size of a file, and of its text, in bytes.
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
    /// Reads a file. Its first bytes decide its format, then its name.
    ///
    /// # Errors
    /// A sentence for the person who chose the file.
    pub fn open(path: &Path) -> Result<Self, AttachmentError> {
        let name =
            path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
        let refused = |fault| AttachmentError { name: name.clone(), fault };
        let unreadable = |error| refused(AttachmentFault::Unreadable(error));
        let about = path.metadata().map_err(unreadable)?;
        if !about.is_file() {
            return Err(refused(AttachmentFault::NoFile));
        }
        if about.len() > LARGEST_FILE {
            return Err(refused(AttachmentFault::TooLarge { size: about.len(), most: LARGEST_FILE }));
        }
        let mut bytes = Vec::new();
        // Limit the read, because the file may grow meanwhile.
        File::open(path).and_then(|file| file.take(LARGEST_FILE).read_to_end(&mut bytes)).map_err(unreadable)?;
        Self::read(name, DocumentKind::from_path(path), &bytes)
    }

    /// Reads the contents of a file with this name.
    ///
    /// # Errors
    /// The errors of [`Document::open`].
    pub fn read(name: String, kind: DocumentKind, bytes: &[u8]) -> Result<Self, AttachmentError> {
        let kind = if bytes.starts_with(b"%PDF-") { DocumentKind::Pdf } else { kind };
        match passages(kind, bytes) {
            Ok(passages) => Ok(Document { name, kind, passages }),
            Err(fault) => Err(AttachmentError { name, fault }),
        }
    }

    /// The whole text of the file.
    pub fn text(&self) -> String {
        self.passages.iter().map(|passage| passage.text.as_str()).collect()
    }
}

fn passages(kind: DocumentKind, bytes: &[u8]) -> Result<Vec<Passage>, AttachmentFault> {
    if bytes.is_empty() {
        return Err(AttachmentFault::Empty);
    }
    let passages = match kind {
        DocumentKind::Pdf => of_pages(pdf::pages(bytes)?),
        DocumentKind::Docx => of_paragraphs(docx::paragraphs(bytes)?),
        DocumentKind::Text | DocumentKind::Markdown | DocumentKind::Code => match text::decode(bytes) {
            Ok(text) => of_lines(&text),
            Err(NotText::Binary) => return Err(AttachmentFault::Binary),
            Err(NotText::UnknownEncoding) => return Err(AttachmentFault::UnknownEncoding),
        },
    };
    let size: u64 = passages.iter().map(|passage| passage.text.len() as u64).sum();
    match () {
        () if size > LARGEST_TEXT => Err(AttachmentFault::TooLarge { size, most: LARGEST_TEXT }),
        () if passages.iter().any(|passage| !passage.text.trim().is_empty()) => Ok(passages),
        () if kind == DocumentKind::Pdf => Err(AttachmentFault::OnlyPictures),
        () => Err(AttachmentFault::Empty),
    }
}
