//! Text of PDF files, page by page.

use std::panic::{self, AssertUnwindSafe};

use pdf_extract::{Document, PlainTextOutput, output_doc_page};

use super::{AttachmentFault, passage::SourcePart};

fn damaged(reason: impl ToString) -> AttachmentFault {
    AttachmentFault::Damaged { kind: "PDF", reason: reason.to_string() }
}

/// The pages of a PDF file that have text.
pub(super) fn pages(bytes: &[u8]) -> Result<Vec<SourcePart>, AttachmentFault> {
    // The PDF reader may panic on a damaged file.
    let read = panic::catch_unwind(AssertUnwindSafe(|| read(bytes)));
    read.unwrap_or_else(|_| Err(damaged("its contents contradict each other")))
}

fn read(bytes: &[u8]) -> Result<Vec<SourcePart>, AttachmentFault> {
    let mut document = Document::load_mem(bytes).map_err(|error| match error {
        pdf_extract::Error::InvalidPassword | pdf_extract::Error::Decryption(_) => AttachmentFault::Encrypted,
        error => damaged(error),
    })?;
    if document.is_encrypted() && document.decrypt("").is_err() {
        return Err(AttachmentFault::Encrypted);
    }
    let numbers: Vec<u32> = document.get_pages().into_keys().collect();
    if numbers.is_empty() {
        return Err(damaged("it has no pages"));
    }
    let (mut pages, mut failed) = (Vec::new(), None);
    for number in numbers {
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
            pages.push(SourcePart { number: number as usize, text });
        }
    }
    match failed {
        Some(error) if pages.is_empty() => Err(error),
        _ => Ok(pages),
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
