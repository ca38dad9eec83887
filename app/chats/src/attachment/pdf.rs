//! Text of PDF files, page by page, and the pictures of pages without text.

use std::panic::{self, AssertUnwindSafe};

use pdf_extract::{Document, ObjectId, PlainTextOutput, output_doc_page, xobject::PdfImage};
use thermocline_engine::pictures::{MOST_PIXELS, Picture};

use super::{AttachmentFault, passage::SourcePart};

fn damaged(reason: impl ToString) -> AttachmentFault {
    AttachmentFault::Damaged { kind: "PDF", reason: reason.to_string() }
}

/// Most pictures that are read from a file.
const MOST_PICTURES: usize = 32;

/// Shortest side of a picture that counts as a scanned page, in pixels.
const LEAST_SIDE: usize = 128;

/// The contents of a PDF file.
pub(super) struct PdfContents {
    /// The pages that have text.
    pub pages: Vec<SourcePart>,
    /// The pictures of the other pages.
    pub pictures: Vec<Picture>,
}

/// Reads a PDF file.
pub(super) fn read(bytes: &[u8]) -> Result<PdfContents, AttachmentFault> {
    // The PDF reader may panic on a damaged file.
    let read = panic::catch_unwind(AssertUnwindSafe(|| read_or_panic(bytes)));
    read.unwrap_or_else(|_| Err(damaged("its contents contradict each other")))
}

fn read_or_panic(bytes: &[u8]) -> Result<PdfContents, AttachmentFault> {
    let mut document = Document::load_mem(bytes).map_err(|error| match error {
        pdf_extract::Error::InvalidPassword | pdf_extract::Error::Decryption(_) => AttachmentFault::Encrypted,
        error => damaged(error),
    })?;
    if document.is_encrypted() && document.decrypt("").is_err() {
        return Err(AttachmentFault::Encrypted);
    }
    let numbers = document.get_pages();
    if numbers.is_empty() {
        return Err(damaged("it has no pages"));
    }
    let (mut contents, mut failed) = (PdfContents { pages: Vec::new(), pictures: Vec::new() }, None);
    for (number, page) in numbers {
        let mut text = String::new();
        let mut output = PlainTextOutput::new(&mut text);
        // If one page cannot be read, the other pages still are.
        let read = panic::catch_unwind(AssertUnwindSafe(|| output_doc_page(&document, &mut output, number)));
        match read {
            Ok(Ok(())) => {}
            Ok(Err(error)) => failed = Some(damaged(error)),
            Err(_) => failed = Some(damaged(format!("page {number} cannot be read"))),
        }
        let text = tidy(&text);
        if !text.is_empty() {
            contents.pages.push(SourcePart { number: number as usize, text });
        } else if contents.pictures.len() < MOST_PICTURES {
            contents.pictures.extend(picture_of(&document, page));
        }
    }
    match failed {
        Some(error) if contents.pages.is_empty() && contents.pictures.is_empty() => Err(error),
        _ => Ok(contents),
    }
}

/// The largest picture of a page, if this program can decode it: a scanned page is one picture.
fn picture_of(document: &Document, page: ObjectId) -> Option<Picture> {
    let images = document.get_page_images(page).ok()?;
    let largest = images.into_iter().max_by_key(|image| image.width.saturating_mul(image.height))?;
    let picture = decoded(document, &largest)?;
    (picture.width().min(picture.height()) >= LEAST_SIDE).then_some(picture)
}

/// Decodes JPEG data, and compressed samples of 8 bits in grey or RGB.
fn decoded(document: &Document, image: &PdfImage<'_>) -> Option<Picture> {
    let filters = image.filters.as_deref().unwrap_or_default();
    match filters {
        [filter] if filter == "DCTDecode" => Picture::decode(image.content).ok(),
        [filter] if filter == "FlateDecode" && image.bits_per_component == Some(8) => {
            if image.width.checked_mul(image.height)? > MOST_PIXELS as i64 {
                return None;
            }
            let samples = document.get_object(image.id).ok()?.as_stream().ok()?.decompressed_content().ok()?;
            let rgb = match image.color_space.as_deref() {
                Some("DeviceGray" | "CalGray") => samples.into_iter().flat_map(|grey| [grey; 3]).collect(),
                Some("DeviceRGB" | "CalRGB") => samples,
                _ => return None,
            };
            let picture = Picture::from_rgb(image.width.try_into().ok()?, image.height.try_into().ok()?, rgb).ok()?;
            // The store keeps the encoded file.
            Picture::decode(&picture.file().ok()?.bytes).ok()
        }
        _ => None,
    }
}

/// Removes spaces at the ends of lines, and repeated empty lines.
fn tidy(text: &str) -> String {
    let mut tidy = String::with_capacity(text.len());
    let mut empty = true;
    for line in text.lines().map(str::trim_end) {
        if !line.is_empty() || !empty {
            tidy.push_str(line);
            tidy.push('\n');
        }
        empty = line.is_empty();
    }
    tidy.truncate(tidy.trim_end().len());
    if !tidy.is_empty() {
        tidy.push('\n');
    }
    tidy
}
