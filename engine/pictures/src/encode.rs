//! Encoding of pictures that come from no file, or from a file that few programs read.

use std::io::Cursor;

use image::{ExtendedColorType, ImageEncoder, codecs::png::PngEncoder};

use super::{Picture, PictureFile};
use thermocline_base::error::{Error, Result};

/// Returns `picture` as a PNG file.
pub(super) fn png(picture: &Picture) -> Result<PictureFile> {
    let mut bytes = Cursor::new(Vec::new());
    // Sides of pictures fit 16 bits.
    let (width, height) = (picture.width() as u32, picture.height() as u32);
    let written = PngEncoder::new(&mut bytes).write_image(picture.rgb(), width, height, ExtendedColorType::Rgb8);
    written.map_err(|error| Error::invalid("picture", "pixels that a PNG file can hold", error))?;
    Ok(PictureFile { media_type: "image/png", bytes: bytes.into_inner().into() })
}
