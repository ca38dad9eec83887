//! The icon files, read as operating systems read them.

#![allow(clippy::unwrap_used)]

use std::{fs, path::Path};

fn icon(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/icon").join(name)).unwrap()
}

fn big(bytes: &[u8]) -> usize {
    u32::from_be_bytes(bytes.try_into().unwrap()) as usize
}

fn little(bytes: &[u8]) -> usize {
    u32::from_le_bytes(bytes.try_into().unwrap()) as usize
}

/// Returns the width of a square PNG with an alpha channel.
fn png(bytes: &[u8]) -> usize {
    assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n");
    assert_eq!(&bytes[bytes.len() - 8..bytes.len() - 4], b"IEND");
    let (width, height) = (big(&bytes[16..20]), big(&bytes[20..24]));
    assert_eq!((width, &bytes[24..26]), (height, &[8, 6][..]), "square, 8 bits, RGBA");
    width
}

#[test]
fn pictures_have_the_sizes_of_their_names() {
    for size in [16, 24, 32, 48, 64, 128, 256, 512, 1024] {
        assert_eq!(png(&icon(&format!("png/{size}.png"))), size);
    }
    assert_eq!(png(&icon("png/mac-512.png")), 512);
}

#[test]
fn ico_file_has_every_size() {
    let file = icon("thermocline.ico");
    assert_eq!(&file[..4], [0, 0, 1, 0]);
    let mut sizes: Vec<usize> = (0..usize::from(file[4]))
        .map(|n| {
            let entry = &file[6 + 16 * n..22 + 16 * n];
            let (length, start) = (little(&entry[8..12]), little(&entry[12..16]));
            let picture = &file[start..start + length];
            // 0 means 256, which is a PNG. The other images are 32-bit bitmaps of twice the height,
            // because they include a mask.
            if entry[0] == 0 {
                return png(picture);
            }
            let size = usize::from(entry[0]);
            let header = (little(&picture[..4]), little(&picture[4..8]), little(&picture[8..12]), picture[14]);
            assert_eq!(header, (40, size, 2 * size, 32));
            size
        })
        .collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [16, 24, 32, 48, 64, 128, 256]);
}

#[test]
fn icns_file_has_every_size_for_both_densities() {
    let file = icon("thermocline.icns");
    assert_eq!((&file[..4], big(&file[4..8])), (&b"icns"[..], file.len()));
    let (mut rest, mut found) = (&file[8..], Vec::new());
    while !rest.is_empty() {
        let (entry, behind) = rest.split_at(big(&rest[4..8]));
        found.push((std::str::from_utf8(&entry[..4]).unwrap().to_owned(), png(&entry[8..])));
        rest = behind;
    }
    let points = |size: usize, plain: &str, dense: &str| [(plain.to_owned(), size), (dense.to_owned(), 2 * size)];
    let mut wanted = [
        points(16, "icp4", "ic11"),
        points(32, "icp5", "ic12"),
        points(128, "ic07", "ic13"),
        points(256, "ic08", "ic14"),
        points(512, "ic09", "ic10"),
    ]
    .concat();
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);
}
