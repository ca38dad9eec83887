//! Decoding of picture files. A file's own size is checked before its pixels are decoded, and the
//! decoder may allocate only a limited number of bytes.

use std::{
    fs::File,
    io::{Cursor, Read},
    path::Path,
};

use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits, metadata::Orientation};

use super::{Picture, PictureFile, foreign_format, picture::check_size};
use thermocline_base::error::{Error, FileAction, Result};

/// Longest side of a picture, in pixels.
pub const MOST_SIDE: usize = 65_535;

/// Most pixels of a picture. The largest cameras of telephones have 108 million pixels in files
/// that people send.
pub const MOST_PIXELS: usize = 120_000_000;

/// Most bytes of a picture's file.
pub const MOST_FILE: u64 = 256 << 20;

/// Most bytes of decoded samples: [`MOST_PIXELS`] of four 8-bit samples, or half as many of 16
/// bits.
const MOST_SAMPLES: u64 = 4 * MOST_PIXELS as u64;

/// Most bytes that a decoder may allocate: the samples, and as much again for its own buffers.
const MOST_BYTES: u64 = 2 * MOST_SAMPLES;

/// Formats that are read.
const FORMATS: [ImageFormat; 6] =
    [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP, ImageFormat::Gif, ImageFormat::Bmp, ImageFormat::Tiff];

/// Names of [`FORMATS`] for messages.
const NAMES: &str = "PNG, JPEG, WebP, GIF, BMP, TIFF";

impl Picture {
    /// Reads and decodes a file.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read; the errors of [`Picture::decode`].
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |action| move |source| Error::Io { path: path.to_owned(), action, source };
        let file = File::open(path).map_err(failed(FileAction::Open))?;
        let mut bytes = Vec::new();
        file.take(MOST_FILE + 1).read_to_end(&mut bytes).map_err(failed(FileAction::Read))?;
        Picture::decode(&bytes)
    }

    /// Decodes the file `bytes`. The format is recognised by the file's first bytes. Animations
    /// give their first frame. The rotation in EXIF data is applied. Transparent pixels are drawn
    /// over white.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for other formats; [`Error::Invalid`] for pictures that are too large
    /// and for damaged files.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let file = open_file(bytes)?;
        let shown = file.shown(bytes);
        let (width, height) = file.size();
        let mut picture = Picture::from_rgb(width, height, file.rgb()?)?;
        picture.file = shown;
        Ok(picture)
    }

    /// Reads the size of the picture in the file `bytes`, as [`Picture::decode`] does. Pixels are
    /// decoded each time they are needed, so the picture takes only the memory of its file.
    ///
    /// # Errors
    /// The errors of [`Picture::decode`]. Some damage is found only when pixels are decoded.
    pub fn deferred(bytes: &[u8]) -> Result<Self> {
        let file = open_file(bytes)?;
        match file.shown(bytes) {
            Some(shown) => {
                let (width, height) = file.size();
                Ok(Picture::in_file(width, height, shown))
            }
            None => Picture::decode(bytes),
        }
    }
}

/// Decodes a file that was opened before.
pub(super) fn rgb(bytes: &[u8]) -> Result<Vec<u8>> {
    open_file(bytes)?.rgb()
}

/// A file whose header was read and is within the limits.
struct OpenFile<D> {
    format: ImageFormat,
    decoder: D,
    orientation: Orientation,
}

/// Reads the header of a file.
fn open_file(bytes: &[u8]) -> Result<OpenFile<impl ImageDecoder + '_>> {
    if bytes.len() as u64 > MOST_FILE {
        return Err(Error::invalid("picture", format!("a file of at most {MOST_FILE} bytes"), "a larger one"));
    }
    let format = image::guess_format(bytes).ok().filter(|format| FORMATS.contains(format));
    let Some(format) = format else {
        let got = foreign_format::name(bytes).unwrap_or("unknown to this program");
        return Err(Error::unsupported("picture format", got, NAMES));
    };
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut limits = Limits::default();
    limits.max_alloc = Some(MOST_BYTES);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(|error| damaged(format, &error))?;
    let (width, height) = decoder.dimensions();
    check_size(width.into(), height.into())?;
    let bytes = decoder.total_bytes();
    if bytes > MOST_SAMPLES {
        return Err(Error::invalid("picture", format!("at most {MOST_SAMPLES} bytes of pixels"), bytes));
    }
    // Damaged EXIF data do not make a picture unreadable.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    Ok(OpenFile { format, decoder, orientation })
}

impl<D: ImageDecoder> OpenFile<D> {
    /// The file, if browsers show it.
    fn shown(&self, bytes: &[u8]) -> Option<PictureFile> {
        media_type(self.format).map(|media_type| PictureFile { media_type, bytes: bytes.into() })
    }

    /// Width and height of the rotated picture.
    fn size(&self) -> (usize, usize) {
        use Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
        let (width, height) = self.decoder.dimensions();
        let (width, height) = (width as usize, height as usize);
        match self.orientation {
            Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH => (height, width),
            _ => (width, height),
        }
    }

    /// Decodes the pixels.
    fn rgb(self) -> Result<Vec<u8>> {
        let format = self.format;
        let mut image = DynamicImage::from_decoder(self.decoder).map_err(|error| damaged(format, &error))?;
        image.apply_orientation(self.orientation);
        Ok(over_white(image))
    }
}

fn damaged(format: ImageFormat, error: &ImageError) -> Error {
    Error::invalid("picture", format!("a whole {} file", name(format)), error)
}

/// Returns the media type of a format that every browser shows, and that servers accept.
fn media_type(format: ImageFormat) -> Option<&'static str> {
    Some(format)
        .filter(|format| !matches!(format, ImageFormat::Bmp | ImageFormat::Tiff))
        .map(|format| format.to_mime_type())
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
