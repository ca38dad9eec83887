//! A decoded picture.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use super::{MOST_PIXELS, MOST_SIDE, PictureHash, decode, encode};
use thermocline_base::error::{Error, Result};

/// Pixels of a picture, 8 bits each of red, green and blue. Copies share the pixels.
#[derive(Clone)]
pub struct Picture {
    width: usize,
    height: usize,
    /// `[height, width, 3]`; `None` if they are decoded from the file each time.
    rgb: Option<Arc<[u8]>>,
    /// The file that was decoded, and its type, if it has one that browsers show.
    pub(super) file: Option<PictureFile>,
    computed: Arc<ComputedParts>,
}

/// Values that are computed from the pixels when they are first needed.
#[derive(Default)]
struct ComputedParts {
    hash: OnceLock<PictureHash>,
    /// The file for other computers.
    bare: OnceLock<PictureFile>,
}

/// A picture as a file. Copies share the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct PictureFile {
    /// Its media type, such as `image/png`.
    pub media_type: &'static str,
    /// Its contents.
    pub bytes: Arc<[u8]>,
}

/// Pictures are equal if their pixels are. Damaged ones are equal if their files are.
impl PartialEq for Picture {
    fn eq(&self, other: &Self) -> bool {
        match (self.hash(), other.hash()) {
            (Ok(hash), Ok(of_other)) => hash == of_other,
            (Err(_), Err(_)) => self.file == other.file,
            _ => false,
        }
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
        Ok(Picture { width, height, rgb: Some(rgb.into()), file: None, computed: Arc::default() })
    }

    /// Creates a picture of this width and height whose pixels stay in `file`.
    pub(super) fn in_file(width: usize, height: usize, file: PictureFile) -> Self {
        Picture { width, height, rgb: None, file: Some(file), computed: Arc::default() }
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
    ///
    /// # Errors
    /// [`Error::Invalid`] if the pixels of a [deferred](Picture::deferred) picture are damaged.
    pub fn rgb(&self) -> Result<Arc<[u8]>> {
        match (&self.rgb, &self.file) {
            (Some(rgb), _) => Ok(Arc::clone(rgb)),
            (None, Some(file)) => decode::rgb(&file.bytes).map(Arc::from),
            (None, None) => Err(Error::invalid("picture", "pixels or a file", "neither")),
        }
    }

    /// The part of `size` pixels, width and height, whose upper left pixel is at `corner`, column
    /// and row.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the part is empty or ends outside the picture, or if pixels are
    /// damaged.
    pub fn cut(&self, corner: [usize; 2], size: [usize; 2]) -> Result<Self> {
        let [left, top] = corner;
        let [width, height] = size;
        let ends = [left.checked_add(width), top.checked_add(height)];
        let inside = |end: Option<usize>, side: usize| end.is_some_and(|end| end <= side);
        if !inside(ends[0], self.width) || !inside(ends[1], self.height) {
            let expected = format!("a part of {} x {} pixels", self.width, self.height);
            return Err(Error::invalid("picture", expected, format!("{width} x {height} pixels at {corner:?}")));
        }
        let rgb = self.rgb()?;
        let rows = rgb.chunks_exact(self.width * 3).skip(top).take(height);
        let rgb = rows.flat_map(|row| &row[left * 3..(left + width) * 3]).copied().collect();
        Picture::from_rgb(width, height, rgb)
    }

    /// The picture as a file that browsers show: the decoded one, with all that its camera wrote
    /// into it, or a PNG file. Files for other computers are [`Picture::bare_file`]s.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the pixels cannot be encoded.
    pub fn file(&self) -> Result<PictureFile> {
        match &self.file {
            Some(file) => Ok(file.clone()),
            None => encode::png(self),
        }
    }

    /// The picture as a file that has nothing but the pixels: neither place, time and camera nor
    /// other text. It needs no rotation and is nowhere transparent. A photograph becomes a JPEG
    /// file, any other picture a PNG file. Copies share the file.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the pixels cannot be encoded; the errors of [`Picture::rgb`].
    pub fn bare_file(&self) -> Result<PictureFile> {
        if let Some(file) = self.computed.bare.get() {
            return Ok(file.clone());
        }
        // These formats lose details, so another loss is small, and PNG files would be large.
        let lossy = self.file.as_ref().is_some_and(|file| matches!(file.media_type, "image/jpeg" | "image/webp"));
        let file = if lossy { encode::jpeg(self)? } else { encode::png(self)? };
        Ok(self.computed.bare.get_or_init(|| file).clone())
    }

    /// Bytes of memory that the picture and its copies hold together: pixels, the file, and the
    /// bare file once it was needed.
    pub fn held_bytes(&self) -> usize {
        let of = |file: Option<&PictureFile>| file.map_or(0, |file| file.bytes.len());
        self.rgb.as_ref().map_or(0, |rgb| rgb.len()) + of(self.file.as_ref()) + of(self.computed.bare.get())
    }

    /// True if [`Picture::hash`] has been computed, so that it is known at once.
    pub fn has_hash(&self) -> bool {
        self.computed.hash.get().is_some()
    }

    /// The identity of the picture. Equal pictures have equal hashes.
    ///
    /// # Errors
    /// The errors of [`Picture::rgb`].
    pub fn hash(&self) -> Result<PictureHash> {
        if let Some(hash) = self.computed.hash.get() {
            return Ok(*hash);
        }
        let hash = PictureHash::of(self.width, self.height, &self.rgb()?);
        Ok(*self.computed.hash.get_or_init(|| hash))
    }
}

impl fmt::Debug for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Picture({} x {}", self.width, self.height)?;
        // Only what is known: no pixels are decoded to be shown here.
        self.computed.hash.get().map_or(Ok(()), |hash| write!(f, ", {hash}"))?;
        f.write_str(")")
    }
}

impl fmt::Debug for PictureFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PictureFile({}, {} bytes)", self.media_type, self.bytes.len())
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
    fn parts_are_cut_inside_the_picture() {
        let picture = Picture::from_rgb(3, 2, (0..18).collect()).unwrap();
        let part = picture.cut([1, 1], [2, 1]).unwrap();
        assert_eq!((part.width(), part.height()), (2, 1));
        assert_eq!(*part.rgb().unwrap(), [12, 13, 14, 15, 16, 17]);
        assert_eq!(picture.cut([0, 0], [3, 2]).unwrap(), picture);
        for (corner, size) in [([2, 0], [2, 1]), ([0, 2], [1, 1]), ([0, 0], [0, 1]), ([usize::MAX, 0], [2, 1])] {
            assert!(picture.cut(corner, size).is_err(), "{corner:?} {size:?}");
        }
    }

    #[test]
    fn hashes_differ_if_pixels_or_sides_differ() {
        let hash = |width, height, rgb: &[u8]| Picture::from_rgb(width, height, rgb.to_vec()).unwrap().hash().unwrap();
        let all = [hash(2, 1, &[0; 6]), hash(1, 2, &[0; 6]), hash(2, 1, &[0, 0, 0, 0, 0, 1])];
        assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2]);
        assert_eq!(all[0], hash(2, 1, &[0; 6]));
        assert_eq!(all[0].to_string().len(), 64);
    }

    #[test]
    fn debug_text_has_no_pixels() {
        let picture = Picture::from_rgb(2, 1, vec![0; 6]).unwrap();
        let file = picture.file().unwrap();
        assert_eq!(format!("{file:?}"), format!("PictureFile(image/png, {} bytes)", file.bytes.len()));
        assert_eq!(format!("{picture:?}"), "Picture(2 x 1)");
        let hash = picture.hash().unwrap();
        assert_eq!(format!("{picture:?}"), format!("Picture(2 x 1, {hash})"));
    }
}
