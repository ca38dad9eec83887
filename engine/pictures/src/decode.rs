//! Decoding of picture files. A file's own size is checked before its pixels are decoded, and the
//! decoder may allocate only a limited number of bytes.

use std::io::Cursor;

use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits};

use super::{Picture, foreign_format, picture::check_size};
use thermocline_base::error::{Error, Result};

/// Longest side of a picture, in pixels.
pub const MOST_SIDE: usize = 65_535;

/// Most pixels of a picture. The largest cameras of telephones have 108 million pixels in files
/// that people send.
pub const MOST_PIXELS: usize = 120_000_000;

/// Most bytes that a decoder may allocate: [`MOST_PIXELS`] of four 16-bit samples, and as much
/// again for the decoder's own buffers.
const MOST_BYTES: u64 = 2 * 8 * MOST_PIXELS as u64;

/// Formats that are read.
const FORMATS: [ImageFormat; 6] =
    [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP, ImageFormat::Gif, ImageFormat::Bmp, ImageFormat::Tiff];

/// Names of [`FORMATS`] for messages.
const NAMES: &str = "PNG, JPEG, WebP, GIF, BMP, TIFF";

impl Picture {
    /// Decodes the file `bytes`. The format is recognised by the file's first bytes. Animations
    /// give their first frame. The rotation in EXIF data is applied. Transparent pixels are drawn
    /// over white.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for other formats; [`Error::Invalid`] for pictures that are too large
    /// and for damaged files.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let format = image::guess_format(bytes).ok().filter(|format| FORMATS.contains(format));
        let Some(format) = format else {
            let got = foreign_format::name(bytes).unwrap_or("unknown to this program");
            return Err(Error::unsupported("picture format", got, NAMES));
        };
        let damaged = |error: &ImageError| Error::invalid("picture", format!("a whole {} file", name(format)), error);
        let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
        let mut limits = Limits::default();
        limits.max_alloc = Some(MOST_BYTES);
        reader.limits(limits);
        let mut decoder = reader.into_decoder().map_err(|error| damaged(&error))?;
        let (width, height) = decoder.dimensions();
        check_size(width.into(), height.into())?;
        let bytes = decoder.total_bytes();
        if bytes > MOST_BYTES / 2 {
            return Err(Error::invalid("picture", format!("at most {} bytes of pixels", MOST_BYTES / 2), bytes));
        }
        // Damaged EXIF data do not make a picture unreadable.
        let orientation = decoder.orientation().unwrap_or(image::metadata::Orientation::NoTransforms);
        let mut image = DynamicImage::from_decoder(decoder).map_err(|error| damaged(&error))?;
        image.apply_orientation(orientation);
        let (width, height) = (image.width() as usize, image.height() as usize);
        Picture::from_rgb(width, height, over_white(image))
    }
}

/// Returns the name of a format of [`FORMATS`].
fn name(format: ImageFormat) -> &'static str {
    FORMATS.iter().position(|known| *known == format).and_then(|at| NAMES.split(", ").nth(at)).unwrap_or("picture")
}

/// Returns the pixels as RGB, with transparent ones drawn over white.
fn over_white(image: DynamicImage) -> Vec<u8> {
    if !image.color().has_alpha() {
        return image.into_rgb8().into_raw();
    }
    let rgba = image.into_rgba8().into_raw();
    let over = |sample: u8, alpha: u8| {
        let (sample, alpha) = (u32::from(sample), u32::from(alpha));
        ((sample * alpha + 255 * (255 - alpha) + 127) / 255) as u8
    };
    rgba.as_chunks::<4>().0.iter().flat_map(|&[r, g, b, alpha]| [r, g, b].map(|sample| over(sample, alpha))).collect()
}
