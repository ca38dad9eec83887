//! A decoded picture.

use std::{fmt, sync::Arc};

use super::{MOST_PIXELS, MOST_SIDE, PictureHash, encode};
use thermocline_base::error::{Error, Result};

/// Pixels of a picture, 8 bits each of red, green and blue. Copies share the pixels.
#[derive(Clone)]
pub struct Picture {
    width: usize,
    height: usize,
    /// `[height, width, 3]`
    rgb: Arc<[u8]>,
    hash: PictureHash,
    /// The file that was decoded, and its type, if it has one that browsers show.
    pub(super) file: Option<PictureFile>,
}

/// A picture as a file. Copies share the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PictureFile {
    /// Its media type, such as `image/png`.
    pub media_type: &'static str,
    /// Its contents.
    pub bytes: Arc<[u8]>,
}

/// Pictures are equal if their pixels are.
impl PartialEq for Picture {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl Eq for Picture {}

impl Picture {
    /// Creates a picture from `rgb`, `[height, width, 3]`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a side is 0 or too long, or the number of bytes does not match.
    pub fn from_rgb(width: usize, height: usize, rgb: Vec<u8>) -> Result<Self> {
        check_size(width as u64, height as u64)?;
        if rgb.len() != width * height * 3 {
            let expected = format!("{} bytes for {width} x {height} pixels", width * height * 3);
            return Err(Error::invalid("picture", expected, rgb.len()));
        }
        let hash = PictureHash::of(width, height, &rgb);
        Ok(Picture { width, height, rgb: rgb.into(), hash, file: None })
    }

    /// Number of columns of pixels.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Number of rows of pixels.
    pub fn height(&self) -> usize {
        self.height
    }

    /// The pixels, `[height, width, 3]`.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }

    /// The picture as a file that browsers and servers read: the decoded one, or a PNG file.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the pixels cannot be encoded.
    pub fn file(&self) -> Result<PictureFile> {
        match &self.file {
            Some(file) => Ok(file.clone()),
            None => encode::png(self),
        }
    }

    /// The identity of the picture. Equal pictures have equal hashes.
    pub fn hash(&self) -> PictureHash {
        self.hash
    }
}

impl fmt::Debug for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Picture({} x {}, {})", self.width, self.height, self.hash)
    }
}

/// Checks the size of a picture before any pixel is decoded.
pub(super) fn check_size(width: u64, height: u64) -> Result<()> {
    let most_side = MOST_SIDE as u64;
    let fits = (1..=most_side).contains(&width) && (1..=most_side).contains(&height);
    if fits && width * height <= MOST_PIXELS as u64 {
        return Ok(());
    }
    let expected = format!("sides from 1 to {MOST_SIDE} pixels and at most {MOST_PIXELS} pixels in total");
    Err(Error::invalid("picture", expected, format!("{width} x {height} pixels")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_bytes_are_checked() {
        for (width, height, bytes, fits) in
            [(2, 1, 6, true), (2, 1, 5, false), (0, 1, 0, false), (60_000, 60_000, 3, false), (70_000, 1, 3, false)]
        {
            let picture = Picture::from_rgb(width, height, vec![7; bytes]);
            assert_eq!(picture.is_ok(), fits, "{width} x {height}: {picture:?}");
        }
    }

    #[test]
    fn hashes_differ_if_pixels_or_sides_differ() {
        let hash = |width, height, rgb: &[u8]| Picture::from_rgb(width, height, rgb.to_vec()).unwrap().hash();
        let all = [hash(2, 1, &[0; 6]), hash(1, 2, &[0; 6]), hash(2, 1, &[0, 0, 0, 0, 0, 1])];
        assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2]);
        assert_eq!(all[0], hash(2, 1, &[0; 6]));
        assert_eq!(all[0].to_string().len(), 64);
    }
}
