//! Encoding of pictures: as files that every browser shows, and as files without metadata for other
//! computers.

use std::io::Cursor;

use image::{
    ExtendedColorType, ImageEncoder,
    codecs::{jpeg::JpegEncoder, png::PngEncoder},
};

use super::{Picture, PictureFile};
use thermocline_base::error::{Error, Result};

/// Quality of JPEG files, from 1 to 100. Differences to the decoded pixels are invisible.
const JPEG_QUALITY: u8 = 92;

/// Returns `picture` as a PNG file.
pub(super) fn png(picture: &Picture) -> Result<PictureFile> {
    let mut bytes = Cursor::new(Vec::new());
    write(picture, PngEncoder::new(&mut bytes))?;
    Ok(PictureFile { media_type: "image/png", bytes: bytes.into_inner().into() })
}

/// Returns `picture` as a JPEG file.
pub(super) fn jpeg(picture: &Picture) -> Result<PictureFile> {
    let mut bytes = Cursor::new(Vec::new());
    write(picture, JpegEncoder::new_with_quality(&mut bytes, JPEG_QUALITY))?;
    Ok(PictureFile { media_type: "image/jpeg", bytes: bytes.into_inner().into() })
}

fn write(picture: &Picture, encoder: impl ImageEncoder) -> Result<()> {
    // Sides of pictures fit 16 bits.
    let (width, height) = (picture.width() as u32, picture.height() as u32);
    let written = encoder.write_image(&picture.rgb()?, width, height, ExtendedColorType::Rgb8);
    written.map_err(|error| Error::invalid("picture", "pixels that the format can hold", error))
}
