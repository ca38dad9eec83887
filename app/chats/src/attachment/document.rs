//! A file read as text or as a picture.

use std::{fs::File, io::Read, path::Path};

use thermocline_engine::pictures::Picture;

use super::{
    AttachmentError, AttachmentFault, DocumentKind, Passage, docx,
    passage::{of_lines, of_pages, of_paragraphs},
    pdf,
    text::{self, NotText},
};

/// Largest size of a file, and of its text, in bytes.
const LARGEST_FILE: u64 = 64 << 20;
const LARGEST_TEXT: u64 = 8 << 20;

/// A file as text, in passages, or as a picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// File name, without folders.
    pub name: String,
    /// Format of the file.
    pub kind: DocumentKind,
    /// Its text.
    pub passages: Vec<Passage>,
    /// Its pictures: the file itself if it is a picture, and the pages of a PDF without text.
    pub pictures: Vec<Picture>,
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
        if kind == DocumentKind::Picture {
            return match Picture::decode(bytes) {
                Ok(picture) => Ok(Self::of_picture(name, picture)),
                Err(error) => Err(AttachmentError { name, fault: AttachmentFault::Picture(error.into()) }),
            };
        }
        match contents(kind, bytes) {
            Ok(contents) => Ok(Document { name, kind, passages: contents.passages, pictures: contents.pictures }),
            // The name may hide that the file is a picture.
            Err(fault @ AttachmentFault::Binary) => match Picture::decode(bytes) {
                Ok(picture) => Ok(Self::of_picture(name, picture)),
                Err(_) => Err(AttachmentError { name, fault }),
            },
            Err(fault) => Err(AttachmentError { name, fault }),
        }
    }

    /// A picture with this name.
    pub fn of_picture(name: String, picture: Picture) -> Self {
        Document { name, kind: DocumentKind::Picture, passages: Vec::new(), pictures: vec![picture] }
    }

    /// The whole text of the file.
    pub fn text(&self) -> String {
        self.passages.iter().map(|passage| passage.text.as_str()).collect()
    }
}

/// The text and the pictures of a file.
struct DocumentContents {
    passages: Vec<Passage>,
    pictures: Vec<Picture>,
}

impl DocumentContents {
    fn text(passages: Vec<Passage>) -> Self {
        DocumentContents { passages, pictures: Vec::new() }
    }
}

fn contents(kind: DocumentKind, bytes: &[u8]) -> Result<DocumentContents, AttachmentFault> {
    if bytes.is_empty() {
        return Err(AttachmentFault::Empty);
    }
    let contents = match kind {
        DocumentKind::Pdf => {
            let pdf = pdf::read(bytes)?;
            DocumentContents { passages: of_pages(pdf.pages), pictures: pdf.pictures }
        }
        DocumentKind::Docx => DocumentContents::text(of_paragraphs(docx::paragraphs(bytes)?)),
        DocumentKind::Text | DocumentKind::Markdown | DocumentKind::Code | DocumentKind::Picture => {
            match text::decode(bytes) {
                Ok(text) => DocumentContents::text(of_lines(&text)),
                Err(NotText::Binary) => return Err(AttachmentFault::Binary),
                Err(NotText::UnknownEncoding) => return Err(AttachmentFault::UnknownEncoding),
            }
        }
    };
    let passages = &contents.passages;
    let size: u64 = passages.iter().map(|passage| passage.text.len() as u64).sum();
    match () {
        () if size > LARGEST_TEXT => Err(AttachmentFault::TooLarge { size, most: LARGEST_TEXT }),
        () if !contents.pictures.is_empty() => Ok(contents),
        () if passages.iter().any(|passage| !passage.text.trim().is_empty()) => Ok(contents),
        () if kind == DocumentKind::Pdf => Err(AttachmentFault::OnlyPictures),
        () => Err(AttachmentFault::Empty),
    }
}
