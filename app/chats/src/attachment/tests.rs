use std::fs;

use super::{fixtures::*, *};
use thermocline_engine::pictures::Picture;

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
fn pages_of_a_pdf_without_text_are_read_as_pictures() {
    for (colors, rgb) in [("DeviceRGB", [200, 0, 0]), ("DeviceGray", [0; 3])] {
        let document = read("scan.pdf", &scanned_pdf(&[&["The first page."], &[], &[]], colors, 200)).unwrap();
        assert_eq!((document.kind, document.text().as_str()), (DocumentKind::Pdf, "The first page.\n"));
        assert_eq!(document.pictures.len(), 2);
        let picture = &document.pictures[1];
        assert_eq!((picture.width(), picture.height(), &picture.rgb().unwrap()[..3]), (200, 200, &rgb[..]));
    }
    // A rule or a logo is no page, and other colour spaces are not read.
    for (colors, side) in [("DeviceRGB", 40), ("DeviceCMYK", 200)] {
        let why = refusal("scan.pdf", &scanned_pdf(&[&[]], colors, side));
        assert!(why.starts_with("scan.pdf contains no text, and no pictures"), "{why}");
    }
}

#[test]
fn pictures_are_told_by_their_names_or_their_contents() {
    let png = Picture::from_rgb(3, 2, vec![7; 18]).unwrap().file().unwrap().bytes;
    for name in ["a.png", "a", "a.rs"] {
        let document = read(name, &png).unwrap();
        assert_eq!((document.kind, document.pictures.len(), document.text().len()), (DocumentKind::Picture, 1, 0));
    }
    assert!(refusal("a.jpg", b"words").starts_with("a.jpg is not a picture that Thermocline can read: "));
    assert!(refusal("a.heic", b"\0\0\0\x18ftypheic\0\0\0\0").contains("HEIC"));
}

#[test]
fn pdf_files_that_cannot_be_read_say_why() {
    let secret = encrypted_pdf(&[&["secret"]], "key");
    assert_eq!(refusal("a.pdf", &secret), "a.pdf is encrypted. Save a copy without a password and attach the copy");
    let open = encrypted_pdf(&[&["for all to read"]], "");
    assert_eq!(read("a.pdf", &open).unwrap().text(), "for all to read\n");
    assert!(refusal("a.pdf", &pdf(&[&[], &[]])).starts_with("a.pdf contains no text, and no pictures"));
    let whole = pdf(&[&["some words"]]);
    assert!(refusal("a.pdf", b"%PDF-1.7\nnothing").starts_with("a.pdf is damaged, or not a PDF file: "));
    assert!(refusal("a.pdf", b"words").starts_with("a.pdf is damaged"), "not what its name says");
    // However the file is cut or changed, reading it returns and does not panic.
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

/// A docx run with this text.
fn run(words: &str) -> String {
    format!("<w:r><w:t xml:space=\"preserve\">{words}</w:t></w:r>")
}

/// A relations file with these kinds and targets.
fn relations(of: &[(&str, &str)]) -> String {
    let relation = |(kind, target): &(&str, &str)| {
        let kind = format!("http://schemas.openxmlformats.org/officeDocument/2006/relationships/{kind}");
        format!("<Relationship Id=\"r\" Type=\"{kind}\" Target=\"{target}\"/>")
    };
    format!("<Relationships>{}</Relationships>", of.iter().map(relation).collect::<String>())
}

#[test]
fn docx_text_is_what_the_document_shows_once() {
    let boxed = format!("<w:txbxContent><w:p>{}</w:p></w:txbxContent>", run("Boxed words."));
    let body = format!(
        "<w:p><w:pPr><w:tabs><w:tab w:val=\"left\"/></w:tabs></w:pPr>{before}<w:r><mc:AlternateContent>\
         <mc:Choice Requires=\"wps\"><w:drawing>{boxed}</w:drawing></mc:Choice>\
         <mc:Fallback><w:pict><v:textbox>{boxed}</v:textbox></w:pict></mc:Fallback></mc:AlternateContent></w:r>{behind}</w:p>\
         <w:p><w:r><mc:AlternateContent><mc:Fallback>{old}</mc:Fallback></mc:AlternateContent></w:r></w:p>\
         <w:p><w:pPr><w:pStyle w:val=\"Normal\"/><w:pPrChange><w:pPr><w:pStyle w:val=\"Heading1\"/></w:pPr></w:pPrChange></w:pPr>\
         {price}<w:del w:id=\"1\"><w:r><w:delText>100</w:delText><w:t>100</w:t></w:r></w:del><w:ins w:id=\"2\">{now}</w:ins>{point}\
         <w:r><w:rPr><w:vanish/></w:rPr><w:t>Hidden.</w:t><w:tab/></w:r><w:r><w:rPr><w:vanish w:val=\"0\"/></w:rPr><w:t> Seen.</w:t></w:r></w:p>\
         <w:p><w:moveFrom w:id=\"3\">{moved}<w:r><w:footnoteReference w:id=\"9\"/></w:r></w:moveFrom></w:p>\
         <w:p><w:moveTo w:id=\"4\">{moved}</w:moveTo></w:p>\
         <w:tbl><w:tr><w:tc><w:p>{cell}<w:r><w:pict>{boxed}</w:pict></w:r></w:p></w:tc><w:tc><w:p>{cell}</w:p></w:tc></w:tr></w:tbl>",
        before = run("Before the box, "),
        behind = run("and behind it."),
        old = run("Only for old programs."),
        price = run("The price is "),
        now = run("250"),
        point = run("."),
        moved = run("Moved sentence."),
        cell = run("cell"),
    );
    let document = read("a.docx", &docx(&body)).unwrap();
    let want = "Before the box, and behind it.\nBoxed words.\nOnly for old programs.\nThe price is 250. Seen.\n\
        Moved sentence.\ncell  | cell\nBoxed words.\n";
    assert_eq!(document.text(), want);
}

#[test]
fn docx_notes_headers_and_a_main_part_of_another_name_are_read() {
    let paragraph = |words: &str| format!("<w:p>{}</w:p>", run(words));
    let note = |kind: &str, id: &str, words: &str| {
        format!("<w:{kind} w:id=\"{id}\" w:author=\"\">{}</w:{kind}>", paragraph(words))
    };
    let body = format!(
        "<w:p>{}<w:r><w:footnoteReference w:id=\"7\"/></w:r>{}<w:r><w:endnoteReference w:id=\"2\"/></w:r>\
         <w:r><w:footnoteReference w:id=\"3\"/></w:r><w:r><w:commentReference w:id=\"0\"/></w:r></w:p>",
        run("See the note"),
        run(" and more")
    );
    let footnotes = [
        note("footnote", "3", "Third."),
        note("footnote", "7", "Only the note says so."),
        note("footnote", "8", "Unused."),
    ];
    let comment = note("comment", "0", "Is this so?").replace("author=\"\"", "author=\"Ann\"");
    let parts = |name: &str| {
        archive(&[
            ("_rels/.rels", &relations(&[("officeDocument", &format!("/word/{name}.xml"))])),
            (&format!("word/{name}.xml"), &document(&body)),
            (
                &format!("word/_rels/{name}.xml.rels"),
                &relations(&[
                    ("footnotes", "footnotes.xml"),
                    ("endnotes", "notes/end.xml"),
                    ("comments", "comments.xml"),
                    ("header", "header1.xml"),
                    ("header", "header2.xml"),
                    ("footer", "gone.xml"),
                ]),
            ),
            ("word/footnotes.xml", &format!("<w:footnotes>{}</w:footnotes>", footnotes.concat())),
            ("word/notes/end.xml", &format!("<w:endnotes>{}</w:endnotes>", note("endnote", "2", "At the end."))),
            ("word/comments.xml", &format!("<w:comments>{comment}</w:comments>")),
            ("word/header1.xml", &format!("<w:hdr>{}</w:hdr>", paragraph("Contract 5"))),
            ("word/header2.xml", &format!("<w:hdr>{}</w:hdr>", paragraph("Contract 5"))),
        ])
    };
    let want = "See the note[^1] and more[^e1][^2][^c1]\n[^2]: Third.\n[^1]: Only the note says so.\n[^e1]: At the end.\n\
        [^c1]: Ann: Is this so?\nContract 5\n";
    for name in ["document", "document2"] {
        assert_eq!(read("a.docx", &parts(name)).unwrap().text(), want, "{name}");
    }
    // Some programs write no relations.
    let bare = archive(&[
        ("word/document.xml", &document(&body)),
        ("word/footnotes.xml", &format!("<w:footnotes>{}</w:footnotes>", footnotes[1])),
    ]);
    assert!(read("a.docx", &bare).unwrap().text().ends_with("\n[^1]: Only the note says so.\n"));
}

#[test]
fn docx_files_that_cannot_be_read_say_why() {
    let encrypted = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1 and what follows";
    assert!(refusal("a.docx", encrypted).starts_with("a.docx is encrypted"));
    assert!(refusal("a.docx", b"no archive").starts_with("a.docx is damaged, or not a docx file: "));
    let other = archive(&[("content.xml", "<x/>")]);
    assert!(refusal("a.docx", &other).ends_with("word/document.xml is missing"));
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
    let short = [0xc4, 0xe0];
    assert!(why("short.txt", &short).starts_with("short.txt has an unknown text encoding. Save it"));
    assert!(why("code.rs", b"\x89PNG\r\n\x1a\n\0\0\0").starts_with("code.rs is not a text file. You can"));
    let long = why("long.txt", &b"words and words\n".repeat(600_000));
    assert_eq!(long, "long.txt has 9.2 MiB. The limit for a file is 8.0 MiB");
    let large = folder.path().join("large.bin");
    fs::File::create(&large).unwrap().set_len(65 << 20).unwrap();
    let why = |path| Document::open(path).unwrap_err().to_string();
    assert_eq!(why(&large), "large.bin has 65.0 MiB. The limit for a file is 64.0 MiB");
    assert!(why(folder.path()).ends_with("is not a file. Attach the files of a folder one by one"));
    assert!(why(&folder.path().join("gone.txt")).starts_with("gone.txt cannot be read: "));
}
