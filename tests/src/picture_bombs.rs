//! Small files whose headers say that the picture is large.

use crate::mutations::seeds;

/// The formats of pictures that are read, by the endings of their fixtures.
pub const FORMATS: [&str; 6] = [".png", ".jpg", ".webp", ".gif", ".bmp", ".tif"];

/// The fixtures of pictures of one format, with headers that claim sides of `side` pixels, or the
/// longest sides that the format can claim.
///
/// # Panics
/// If a fixture has no header that can be changed.
pub fn bombs(format: &str, side: u32) -> Vec<Vec<u8>> {
    let all = seeds("pictures/files", format);
    all.into_iter().map(|file| enlarged(file, side)).collect()
}

fn enlarged(mut file: Vec<u8>, side: u32) -> Vec<u8> {
    let short = u16::try_from(side).unwrap_or(u16::MAX);
    match &file[..4] {
        b"\x89PNG" => {
            write(&mut file, 16, &[side.to_be_bytes(), side.to_be_bytes()].concat());
            let crc = crc32(&file[12..29]);
            write(&mut file, 29, &crc.to_be_bytes());
        }
        b"GIF8" => write(&mut file, 6, &[short.to_le_bytes(), short.to_le_bytes()].concat()),
        b"II*\0" => enlarge_tiff(&mut file, side),
        b"RIFF" => enlarge_webp(&mut file, side),
        [b'B', b'M', ..] => write(&mut file, 18, &[side.to_le_bytes(), side.to_le_bytes()].concat()),
        _ => enlarge_jpeg(&mut file, short),
    }
    file
}

fn write(file: &mut [u8], at: usize, bytes: &[u8]) {
    file[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Changes the tags 256 and 257, width and height.
fn enlarge_tiff(file: &mut [u8], side: u32) {
    let at = |from: usize| u32::from_le_bytes([file[from], file[from + 1], file[from + 2], file[from + 3]]) as usize;
    let directory = at(4);
    let tags = usize::from(u16::from_le_bytes([file[directory], file[directory + 1]]));
    for tag in (0..tags).map(|tag| directory + 2 + 12 * tag) {
        if file[tag + 1] == 1 && file[tag] <= 1 {
            // A number of 32 bits.
            write(file, tag + 2, &[&[4, 0, 1, 0, 0, 0], &side.to_le_bytes()[..]].concat());
        }
    }
}

fn enlarge_webp(file: &mut [u8], side: u32) {
    let fourteen_bits = side.min((1 << 14) - 1);
    match &file[12..16] {
        b"VP8X" => {
            let canvas = (side - 1).to_le_bytes();
            write(file, 24, &[&canvas[..3], &canvas[..3]].concat());
        }
        b"VP8L" => {
            let sides = (fourteen_bits - 1) | ((fourteen_bits - 1) << 14);
            write(file, 21, &sides.to_le_bytes());
        }
        _ => {
            let side = (fourteen_bits as u16).to_le_bytes();
            write(file, 26, &[side, side].concat());
        }
    }
}

/// Changes the frame header.
fn enlarge_jpeg(file: &mut [u8], side: u16) {
    let mut at = 2;
    while !matches!(file[at + 1], 0xc0..=0xc2) {
        at += 2 + usize::from(u16::from_be_bytes([file[at + 2], file[at + 3]]));
    }
    write(file, at + 5, &[side.to_be_bytes(), side.to_be_bytes()].concat());
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}
