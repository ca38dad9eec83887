//! Text of docx files, in the order in which the document shows it: the main part with its text
//! boxes, the notes and comments, and the page headers and footers. [`package`] finds the parts,
//! and [`paragraphs`] reads a part.

mod package;
mod paragraphs;

use self::{
    package::Package,
    paragraphs::{NOTES, Paragraphs},
};
use super::{AttachmentFault, passage::SourcePart};

/// First bytes of the container in which word processors encrypt a file.
const ENCRYPTED: &[u8] = &[0xd0, 0xcf, 0x11, 0xe0, 0xa1, 0xb1, 0x1a, 0xe1];

fn damaged(error: impl ToString) -> AttachmentFault {
    AttachmentFault::Damaged { kind: "docx", reason: error.to_string() }
}

/// Reads the paragraphs of a docx file that have text.
pub(super) fn paragraphs(bytes: &[u8]) -> Result<Vec<SourcePart>, AttachmentFault> {
    if bytes.starts_with(ENCRYPTED) {
        return Err(AttachmentFault::Encrypted);
    }
    let mut package = Package::open(bytes)?;
    let main = package.main()?;
    let mut text = Paragraphs::default();
    text.read(&package.part(&main)?.ok_or_else(|| damaged(format!("{main} is missing")))?)?;
    for (element, _) in NOTES {
        for part in package.related(&main, &format!("{element}s"))? {
            if let Some(xml) = package.part(&part)? {
                text.read(&xml)?;
            }
        }
    }
    for relation in ["header", "footer"] {
        for part in package.related(&main, relation)? {
            if let Some(xml) = package.part(&part)? {
                text.read_once(&xml)?;
            }
        }
    }
    Ok(text.done)
}
