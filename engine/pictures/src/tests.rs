//! Tests against Pillow and the image processor of Qwen2-VL, whose results
//! `tests/reference/pictures.py` writes, and tests with damaged files.

use std::{fs, path::PathBuf};

use proptest::{prelude::*, sample::Index};

use super::{Picture, ResizeFilter};

/// Returns the files of a folder of fixtures without their expected pictures, in order.
fn fixtures(folder: &str) -> Vec<PathBuf> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/pictures")).join(folder);
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|path| !path.to_str().unwrap().ends_with(".golden.png")).collect();
    files.sort();
    files
}

fn open(path: &PathBuf) -> Picture {
    Picture::decode(&fs::read(path).unwrap()).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Mean and largest difference of the samples of two pictures of equal size.
fn difference(a: &Picture, b: &Picture) -> (f64, u8) {
    assert_eq!((a.width(), a.height()), (b.width(), b.height()));
    let (a, b) = (a.rgb().unwrap(), b.rgb().unwrap());
    let each = || a.iter().zip(&*b).map(|(a, b)| a.abs_diff(*b));
    (each().map(f64::from).sum::<f64>() / a.len() as f64, each().max().unwrap_or(0))
}

#[test]
fn every_format_has_the_pixels_that_pillow_reads() {
    let files = fixtures("files");
    assert_eq!(files.len(), 20);
    for path in files {
        let golden = open(&path.with_file_name(format!("{}.golden.png", path.file_name().unwrap().to_str().unwrap())));
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        // Decoders of JPEG and of lossy WebP may round differently.
        let lossy = name.contains("jpeg") || name == "webp.webp";
        let (mean, most) = difference(&open(&path), &golden);
        let limits = if lossy { (1.0, 8) } else { (0.5, 1) };
        assert!(mean <= limits.0 && most <= limits.1, "{name}: mean {mean}, most {most}");
    }
}

/// Inserts text that a camera could have written into the file `bytes`.
fn with_metadata(bytes: &[u8]) -> Vec<u8> {
    const TEXT: &[u8] = b"Place\0Bonn";
    let chunk = |name: &[u8; 4]| [&name[..], TEXT].concat();
    match bytes {
        [0xff, 0xd8, rest @ ..] => {
            let length = (TEXT.len() as u16 + 2).to_be_bytes();
            [&bytes[..2], &[0xff, 0xfe], &length, TEXT, rest, TEXT].concat()
        }
        [0x89, b'P', b'N', b'G', ..] => {
            let chunk = chunk(b"tEXt");
            let (length, crc) = ((TEXT.len() as u32).to_be_bytes(), crc32(&chunk).to_be_bytes());
            [&bytes[..33], &length, &chunk, &crc, &bytes[33..]].concat()
        }
        [b'R', b'I', b'F', b'F', ..] => {
            let length = (TEXT.len() as u32).to_le_bytes();
            let whole = [&bytes[8..], b"XMP ", &length, TEXT].concat();
            [&b"RIFF"[..], &(whole.len() as u32).to_le_bytes(), &whole].concat()
        }
        _ => [bytes, TEXT].concat(),
    }
}

#[test]
fn bare_files_have_the_upright_pixels_and_nothing_else() {
    for path in fixtures("files") {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let marked = with_metadata(&fs::read(&path).unwrap());
        let has_text = |bytes: &[u8]| bytes.windows(4).any(|four| four == b"Bonn");
        let picture = Picture::decode(&marked).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(picture, open(&path), "{name}");
        let shown = !name.starts_with("bmp") && !name.starts_with("tiff");
        assert_eq!(has_text(&picture.file().unwrap().bytes), shown, "{name}");

        let held = picture.held_bytes();
        let bare = picture.bare_file().unwrap();
        assert_eq!(picture.clone().held_bytes(), held + bare.bytes.len(), "{name}");
        assert!(!has_text(&bare.bytes) && !bare.bytes.windows(4).any(|four| four == b"Exif"), "{name}");
        assert!(std::ptr::eq(&*bare.bytes, &*picture.clone().bare_file().unwrap().bytes), "{name}");
        let again = Picture::decode(&bare.bytes).unwrap();
        let lossy = name.contains("jpeg") || name.contains("webp");
        assert_eq!(bare.media_type, if lossy { "image/jpeg" } else { "image/png" }, "{name}");
        let (mean, _) = difference(&again, &picture);
        assert!(mean <= if lossy { 6.0 } else { 0.0 }, "{name}: {mean}");
    }
}

#[test]
fn deferred_pictures_are_the_decoded_ones() {
    for path in fixtures("files") {
        let (bytes, whole) = (fs::read(&path).unwrap(), open(&path));
        let deferred = Picture::deferred(&bytes).unwrap();
        let sides = |of: &Picture| (of.width(), of.height());
        assert_eq!((sides(&deferred), &deferred), (sides(&whole), &whole), "{}", path.display());
        assert_eq!(deferred.file().unwrap(), whole.file().unwrap());
    }
    // The end of a file is read only with its pixels.
    let png = fs::read(fixtures("files").iter().find(|path| path.ends_with("png-grey.png")).unwrap()).unwrap();
    let cut = Picture::deferred(&png[..png.len() - 40]).unwrap();
    assert!(cut.rgb().is_err() && cut.hash().is_err() && cut.resized(2, 2, ResizeFilter::Bilinear).is_err());
    assert!(cut == cut.clone() && cut != Picture::decode(&png).unwrap());
    assert!(cut.rgb().unwrap_err().to_string().contains("a whole PNG file"));
    assert!(Picture::deferred(&png[..20]).is_err());
}

#[test]
fn resized_pictures_equal_those_of_the_reference() {
    let files = fixtures("resized");
    assert_eq!(files.len(), 10);
    for path in files {
        let golden = open(&path.with_extension("golden.png"));
        let resized = open(&path).resized(golden.width(), golden.height(), ResizeFilter::Bicubic).unwrap();
        let (mean, most) = difference(&resized, &golden);
        assert!(mean <= 0.5 && most <= 2, "{}: mean {mean}, most {most}", path.display());
    }
}

#[test]
fn formats_that_are_not_read_are_refused_by_name() {
    for (bytes, name) in [(&b"\0\0\0\x20ftypavif\0\0\0\0"[..], "AVIF"), (b"\0\0\0\x20ftypheic\0\0\0\0", "HEIC")] {
        let error = Picture::decode(bytes).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("PNG, JPEG"), "{error}");
    }
    assert!(Picture::decode(b"").unwrap_err().to_string().contains("unknown"));
}

/// Files of a few bytes that claim 60,000 x 60,000 pixels.
#[test]
fn pictures_larger_than_the_limit_are_refused_before_decoding() {
    let side = 60_000u32;
    let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
    png.extend([side.to_be_bytes(), side.to_be_bytes()].concat());
    png.extend([8, 2, 0, 0, 0]);
    // CRC of the header.
    png.extend(crc32(&png[12..]).to_be_bytes());
    png.extend(b"\0\0\0\x04IDAT");
    png.extend([0; 8]);
    let mut bmp = b"BM\0\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0".to_vec();
    bmp.extend([side.to_le_bytes(), side.to_le_bytes()].concat());
    bmp.extend([1, 0, 24, 0]);
    bmp.extend([0; 24]);
    let mut gif = b"GIF89a".to_vec();
    gif.extend([(side as u16).to_le_bytes(), (side as u16).to_le_bytes()].concat());
    gif.extend([0; 3]);
    // An image of one pixel and the end of the file.
    gif.extend(b",\0\0\0\0\x01\0\x01\0\0\x02\x02\x44\x01\0;");
    for bytes in [png, bmp, gif] {
        let error = Picture::decode(&bytes).unwrap_err().to_string();
        assert!(error.contains("60000 x 60000"), "{error}");
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// A damaged file gives an error or a picture, and no panic.
    #[test]
    fn damaged_files_do_not_panic(
        file: Index,
        changes in prop::collection::vec((any::<Index>(), any::<u8>()), 0..8),
        kept: Index,
        cut: bool,
    ) {
        let files = fixtures("files");
        let mut bytes = fs::read(file.get(&files)).unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if cut {
            bytes.truncate(kept.index(bytes.len()));
        }
        if let Ok(picture) = Picture::decode(&bytes) {
            prop_assert_eq!(picture.rgb().unwrap().len(), picture.width() * picture.height() * 3);
        }
    }
}
