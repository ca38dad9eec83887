use std::fs;

use super::{fixtures::*, *};

fn read(name: &str, bytes: &[u8]) -> Result<Document, AttachmentError> {
    Document::read(name.to_owned(), DocumentKind::from_path(name.as_ref()), bytes)
}

fn refusal(name: &str, bytes: &[u8]) -> String {
    read(name, bytes).unwrap_err().to_string()
}

#[test]
fn pdf_text_is_read_page_by_page() {
    let file = pdf(&[&["The first page.", "It has two lines."], &[], &["Caf\\351 \\(open\\)"]]);
    let document = read("a.pdf", &file).unwrap();
    let passages: Vec<(&str, &str)> = document.passages.iter().map(|it| (&*it.place, &*it.text)).collect();
    assert_eq!(passages, [("page 1", "The first page.\nIt has two lines.\n"), ("page 3", "Café (open)\n")]);
    assert_eq!(read("no extension", &file).unwrap().kind, DocumentKind::Pdf, "its first bytes say so");
}

#[test]
fn pdf_files_that_cannot_be_read_say_why() {
    let secret = encrypted_pdf(&[&["secret"]], "key");
    assert_eq!(refusal("a.pdf", &secret), "a.pdf is encrypted; save a copy without a password and attach that");
    let open = encrypted_pdf(&[&["for all to read"]], "");
    assert_eq!(read("a.pdf", &open).unwrap().text(), "for all to read\n");
    assert!(refusal("a.pdf", &pdf(&[&[], &[]])).starts_with("a.pdf has no text, only pictures"));
    let whole = pdf(&[&["some words"]]);
    assert!(refusal("a.pdf", b"%PDF-1.7\nnothing").starts_with("a.pdf is damaged, or not a PDF file: "));
    assert!(refusal("a.pdf", b"words").starts_with("a.pdf is damaged"), "not what its name says");
    // Whatever is cut off or changed, there is an answer and no panic.
    for at in (0..whole.len()).step_by(7) {
        let _ = read("a.pdf", &whole[..at]);
        let mut other = whole.clone();
        other[at] ^= 0x15;
        let _ = read("a.pdf", &other);
    }
}

#[test]
fn docx_paragraphs_headings_lists_and_tables_are_read() {
    let cell = |words: &str| format!("<w:tc><w:p><w:r><w:t>{words}</w:t></w:r></w:p></w:tc>");
    let body = format!(
        "<w:p><w:pPr><w:pStyle w:val=\"Heading2\"/></w:pPr><w:r><w:t>Of R&amp;D</w:t></w:r></w:p>\
         <w:p/>\
         <w:p><w:r><w:t xml:space=\"preserve\">Two </w:t></w:r><w:r><w:t>runs&#x2014;na&#239;ve</w:t><w:br/><w:t>more</w:t></w:r></w:p>\
         <w:p><w:pPr><w:numPr><w:ilvl w:val=\"1\"/></w:numPr></w:pPr><w:r><w:t>item</w:t></w:r></w:p>\
         <w:tbl><w:tr>{}{}</w:tr><w:tr>{}{}</w:tr></w:tbl>",
        cell("a"),
        cell("b"),
        cell("c"),
        cell("d")
    );
    let document = read("a.docx", &docx(&body)).unwrap();
    assert_eq!(document.text(), "## Of R&D\nTwo runs—naïve\nmore\n  - item\na  | b\nc  | d\n");
    assert_eq!(document.passages[0].place, "paragraphs 1–6");
}

#[test]
fn docx_files_that_cannot_be_read_say_why() {
    let encrypted = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1 and what follows";
    assert!(refusal("a.docx", encrypted).starts_with("a.docx is encrypted"));
    assert!(refusal("a.docx", b"no archive").starts_with("a.docx is damaged, or not a docx file: "));
    let other = archive("content.xml", "<x/>");
    assert!(refusal("a.docx", &other).ends_with("there is no word/document.xml in it"));
    assert_eq!(refusal("a.docx", &docx("<w:p/>")), "a.docx is empty");
    assert!(refusal("a.docx", &docx("<w:p><w:t>x</w:p>")).starts_with("a.docx is damaged"));
}

#[test]
fn open_reads_text_and_refuses_what_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        Document::open(&path)
    };
    let code = file("main.rs", b"fn main() {}\n").unwrap();
    assert_eq!((&*code.name, code.kind, &*code.text()), ("main.rs", DocumentKind::Code, "fn main() {}\n"));
    let why = |name, bytes: &[u8]| file(name, bytes).unwrap_err().to_string();
    assert_eq!(why("nothing.txt", b""), "nothing.txt is empty");
    assert_eq!(why("blank.md", b" \n\n"), "blank.md is empty");
    assert!(why("picture.png", b"\x89PNG\r\n\x1a\n\0\0\0").starts_with("picture.png is not text; what can"));
    let long = why("long.txt", &b"words and words\n".repeat(600_000));
    assert_eq!(long, "long.txt has 9.2 MiB; at most 8.0 MiB can be attached");
    let large = folder.path().join("large.bin");
    fs::File::create(&large).unwrap().set_len(65 << 20).unwrap();
    let why = |path| Document::open(path).unwrap_err().to_string();
    assert_eq!(why(&large), "large.bin has 65.0 MiB; at most 64.0 MiB can be attached");
    assert!(why(folder.path()).ends_with("is not a file; attach the files in it one by one"));
    assert!(why(&folder.path().join("gone.txt")).starts_with("gone.txt cannot be read: "));
}
