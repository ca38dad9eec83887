//! Files for tests.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::io::{Cursor, Write};

use pdf_extract::{Dictionary, Document, EncryptionState, EncryptionVersion, Object, Permissions, Stream};
use zip::{ZipWriter, write::SimpleFileOptions};

/// A PDF file whose pages contain these lines of Latin letters.
pub fn pdf(pages: &[&[&str]]) -> Vec<u8> {
    let kids: Vec<String> = (0..pages.len()).map(|page| format!("{} 0 R", 4 + 2 * page)).collect();
    let mut objects = vec![
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        format!("<< /Type /Pages /Kids [{}] /Count {} >>", kids.join(" "), pages.len()),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>".to_owned(),
    ];
    for (page, lines) in pages.iter().enumerate() {
        let shown: Vec<String> = lines.iter().map(|line| format!("({line}) Tj 0 -16 Td")).collect();
        let stream = format!("BT /F1 12 Tf 72 720 Td {} ET", shown.join(" "));
        objects.push(format!(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {} 0 R /Resources << /Font << /F1 3 0 R >> >> >>",
            5 + 2 * page
        ));
        objects.push(format!("<< /Length {} >>\nstream\n{stream}\nendstream", stream.len()));
    }
    let (mut file, mut offsets) = ("%PDF-1.5\n".to_owned(), Vec::new());
    for (at, object) in objects.iter().enumerate() {
        offsets.push(file.len());
        file.push_str(&format!("{} 0 obj\n{object}\nendobj\n", at + 1));
    }
    let table = file.len();
    file.push_str(&format!("xref\n0 {}\n0000000000 65535 f \n", offsets.len() + 1));
    offsets.iter().for_each(|offset| file.push_str(&format!("{offset:010} 00000 n \n")));
    let id = "<00112233445566778899aabbccddeeff>";
    let trailer = format!("<< /Size {} /Root 1 0 R /ID [{id} {id}] >>", offsets.len() + 1);
    file.push_str(&format!("trailer\n{trailer}\nstartxref\n{table}\n%%EOF\n"));
    file.into_bytes()
}

/// [`pdf`] with an image of this colour space and of `side` pixels a side, black or red, on each
/// page without lines.
pub fn scanned_pdf(pages: &[&[&str]], colors: &str, side: usize) -> Vec<u8> {
    let mut document = Document::load_mem(&pdf(pages)).unwrap();
    let samples = match colors {
        "DeviceRGB" => [200, 0, 0].repeat(side * side),
        _ => vec![0; side * side],
    };
    let name = |name: &str| Object::Name(name.into());
    let image = Dictionary::from_iter([
        ("Type", name("XObject")),
        ("Subtype", name("Image")),
        ("Width", Object::Integer(side as i64)),
        ("Height", Object::Integer(side as i64)),
        ("ColorSpace", name(colors)),
        ("BitsPerComponent", Object::Integer(8)),
    ]);
    let mut image = Stream::new(image, samples);
    image.compress().unwrap();
    let image = document.add_object(image);
    for (lines, (_, page)) in pages.iter().zip(document.get_pages()) {
        let resources =
            document.get_dictionary_mut(page).unwrap().get_mut(b"Resources").unwrap().as_dict_mut().unwrap();
        if lines.is_empty() {
            resources.set("XObject", Dictionary::from_iter([("Im0", Object::Reference(image))]));
        }
    }
    let mut bytes = Vec::new();
    document.save_to(&mut bytes).unwrap();
    bytes
}

/// [`pdf`] encrypted with `password`. An empty password opens without asking.
pub fn encrypted_pdf(pages: &[&[&str]], password: &str) -> Vec<u8> {
    let mut document = Document::load_mem(&pdf(pages)).unwrap();
    assert!(matches!(document.trailer.get(b"ID"), Ok(Object::Array(_))));
    let version = EncryptionVersion::V2 {
        document: &document,
        owner_password: "owner",
        user_password: password,
        key_length: 128,
        permissions: Permissions::all(),
    };
    let state = EncryptionState::try_from(version).unwrap();
    document.encrypt(&state).unwrap();
    let mut bytes = Vec::new();
    document.save_to(&mut bytes).unwrap();
    bytes
}

/// A docx file with this XML as its body.
pub fn docx(body: &str) -> Vec<u8> {
    archive(&[("word/document.xml", &document(body))])
}

/// The main part of a docx file, with this XML as its body.
pub fn document(body: &str) -> String {
    format!(
        r#"<?xml version="1.0" encoding="UTF-8" standalone="yes"?>
<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>{body}</w:body></w:document>"#
    )
}

/// A zip archive of files with these names and contents.
pub fn archive(files: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    let mut writer = ZipWriter::new(&mut bytes);
    for (name, contents) in files {
        writer.start_file(*name, SimpleFileOptions::default()).unwrap();
        writer.write_all(contents.as_bytes()).unwrap();
    }
    writer.finish().unwrap();
    bytes.into_inner()
}

/// A long text about many things, with `needle` in the middle.
pub fn haystack(needle: &str) -> String {
    let line =
        |at: usize| format!("Item {at} of the register is a boat that lies in the harbour and waits for its crew.\n");
    let half = |from: usize| (from..from + 400).map(line).collect::<String>();
    half(1) + needle + "\n" + &half(401)
}
