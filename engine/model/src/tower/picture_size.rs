//! The size that a picture is resized to before it is cut into patches.

use super::{PictureSlices, picture_slices::MARKS};
use thermocline_base::error::{Error, Result};

/// Largest ratio of a picture's sides.
pub(super) const MOST_RATIO: usize = 200;

/// Rule for the size that a tower's pictures are resized to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PictureSizes {
    /// One square for all pictures.
    Square {
        /// Its side, in pixels.
        side: usize,
    },
    /// About the picture's own proportions, and as large as the area allows, as the image processor
    /// of Gemma 4 does.
    Filled {
        /// Divisor of both sides, in pixels.
        multiple: usize,
        /// Largest area, in pixels.
        most: usize,
    },
    /// About the picture's own proportions and size. Larger pictures shrink until their sides are
    /// at most `longest` pixels. Sides then grow to multiples, as with the image processor of
    /// Pixtral.
    Longest {
        /// Divisor of both sides, in pixels.
        multiple: usize,
        /// Longest side, in pixels.
        longest: usize,
    },
    /// About the picture's own proportions, as the image processor of Qwen2-VL does.
    Fitted {
        /// Divisor of both sides, in pixels.
        multiple: usize,
        /// Smallest area, in pixels.
        least: usize,
        /// Largest area, in pixels.
        most: usize,
    },
    /// An overview of about the area of a square, and slices of the same area for large pictures,
    /// as the image processor of MiniCPM-V does.
    Sliced(PictureSlices),
}

impl PictureSizes {
    /// Returns the largest area of a picture, or of a part of a sliced one, in pixels.
    pub fn most_pixels(&self) -> usize {
        match *self {
            PictureSizes::Square { side } => side * side,
            PictureSizes::Filled { most, .. } | PictureSizes::Fitted { most, .. } => most,
            PictureSizes::Longest { multiple, longest } => longest.next_multiple_of(multiple).pow(2),
            PictureSizes::Sliced(slices) => slices.most_cells() * slices.multiple * slices.multiple,
        }
    }

    /// Makes pictures of about their own proportions smaller, or gives them fewer slices, so that
    /// each has about `tokens` tokens at most. The marks of slices count as tokens. Other rules
    /// have their own limits.
    pub fn limit(&mut self, tokens: usize) {
        match self {
            PictureSizes::Fitted { multiple, least, most } => {
                let token = multiple.saturating_mul(*multiple);
                *most = (*most).min(tokens.saturating_mul(token)).max(*least);
            }
            PictureSizes::Sliced(slices) => {
                let parts = tokens / slices.tokens.saturating_add(MARKS);
                slices.most = slices.most.min(parts.saturating_sub(1)).max(1);
            }
            _ => {}
        }
    }

    /// Returns the rule by which large pictures are sliced, if they are.
    pub fn slices(&self) -> Option<&PictureSlices> {
        match self {
            PictureSizes::Sliced(slices) => Some(slices),
            _ => None,
        }
    }

    /// Returns the width and height for a picture of `width` and `height` pixels, or of its
    /// overview if large pictures are sliced.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one side is more than 200 times as long as the other.
    pub fn fit(&self, width: usize, height: usize) -> Result<[usize; 2]> {
        let (short, long) = (width.min(height), width.max(height));
        if short == 0 || long > short.saturating_mul(MOST_RATIO) {
            let expected = format!("sides with a ratio of at most {MOST_RATIO}");
            return Err(Error::invalid("picture", expected, format!("{width} x {height} pixels")));
        }
        let (multiple, least, most) = match *self {
            PictureSizes::Square { side } => return Ok([side; 2]),
            PictureSizes::Longest { multiple, longest } => return Ok(shrink([width, height], multiple, longest)),
            PictureSizes::Filled { multiple, most } => return Ok(fill([width, height], multiple, most)),
            PictureSizes::Sliced(slices) => return Ok(slices.overview(width, height)),
            PictureSizes::Fitted { multiple, least, most } => (multiple as f64, least as f64, most as f64),
        };
        let sides = [width as f64, height as f64];
        let area = sides[0] * sides[1];
        // Python rounds halves to even numbers.
        let near = sides.map(|side| (side / multiple).round_ties_even() * multiple);
        let fitted = if near[0] * near[1] > most {
            let shrink = (area / most).sqrt();
            sides.map(|side| ((side / shrink / multiple).floor() * multiple).max(multiple))
        } else if near[0] * near[1] < least {
            let grow = (least / area).sqrt();
            sides.map(|side| (side * grow / multiple).ceil() * multiple)
        } else {
            near
        };
        Ok(fitted.map(|side| side as usize))
    }
}

/// Returns sides that are at most `longest`, rounded up to multiples of `multiple`.
fn shrink(sides: [usize; 2], multiple: usize, longest: usize) -> [usize; 2] {
    let ratio = sides.map(|side| side as f64 / longest as f64).into_iter().fold(1.0, f64::max);
    sides.map(|side| ((side as f64 / ratio) as usize).max(1).next_multiple_of(multiple))
}

/// Returns the largest sides of at most `most` pixels that are multiples of `multiple`. The short
/// side of a very long picture is one multiple.
fn fill(sides: [usize; 2], multiple: usize, most: usize) -> [usize; 2] {
    let factor = (most as f64 / (sides[0] as f64 * sides[1] as f64)).sqrt();
    let filled = sides.map(|side| (side as f64 * factor / multiple as f64) as usize);
    let longest = (most / (multiple * multiple)).max(1);
    match filled {
        [0, 0] => [multiple; 2],
        [0, _] => [multiple, (sides[1] / sides[0]).min(longest) * multiple],
        [_, 0] => [(sides[0] / sides[1]).min(longest) * multiple, multiple],
        _ => filled.map(|side| side * multiple),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes that transformers' `smart_resize` returns.
    #[test]
    fn limited_pictures_have_no_more_tokens_and_no_fewer_than_the_least() {
        let photo = |tokens: usize| {
            let mut sizes = PictureSizes::Fitted { multiple: 28, least: 4 * 784, most: 16_384 * 784 };
            sizes.limit(tokens);
            let [width, height] = sizes.fit(4032, 3024).unwrap();
            width * height / 784
        };
        assert_eq!(photo(usize::MAX), 15_552);
        assert!((1900..=2048).contains(&photo(2048)), "{}", photo(2048));
        assert!((2..=4).contains(&photo(0)), "{}", photo(0));
    }

    #[test]
    fn sizes_equal_those_of_the_reference() {
        let sizes = PictureSizes::Fitted { multiple: 32, least: 65_536, most: 16_777_216 };
        for (picture, fitted) in [
            ([1024, 1024], [1024, 1024]),
            ([1920, 1080], [1920, 1088]),
            ([80, 16], [576, 128]),
            ([100, 100], [256, 256]),
            ([6000, 8000], [3520, 4704]),
            ([48, 2000], [64, 1984]),
        ] {
            assert_eq!(sizes.fit(picture[0], picture[1]).unwrap(), fitted, "{picture:?}");
        }
        let filled = PictureSizes::Filled { multiple: 48, most: 280 * 48 * 48 };
        for (picture, fitted) in [([1024, 1024], [768, 768]), ([100, 60], [1008, 576]), ([4000, 30], [9264, 48])] {
            assert_eq!(filled.fit(picture[0], picture[1]).unwrap(), fitted, "{picture:?}");
        }
        let longest = PictureSizes::Longest { multiple: 28, longest: 1540 };
        for (picture, fitted) in [
            ([1024, 1024], [1036, 1036]),
            ([1540, 28], [1540, 28]),
            ([3000, 2001], [1540, 1036]),
            ([29, 5000], [28, 1540]),
        ] {
            assert_eq!(longest.fit(picture[0], picture[1]).unwrap(), fitted, "{picture:?}");
        }
        assert_eq!(PictureSizes::Square { side: 896 }.fit(30, 7).unwrap(), [896; 2]);
        assert!(sizes.fit(1, 201).is_err() && sizes.fit(0, 1).is_err());
    }

    #[test]
    fn sides_are_multiples_within_the_limits() {
        let sides = [1, 27, 28, 29, 100, 333, 1024, 4000, 8999];
        let pictures = sides.iter().flat_map(|width| sides.map(|height| [*width, height]));
        for ([width, height], cells) in pictures.flat_map(|it| [4, 5, 64, 199].map(|cells| (it, cells))) {
            let most = 28 * 28 * cells;
            let sizes = PictureSizes::Fitted { multiple: 28, least: 28 * 28 * 4, most };
            let Ok([w, h]) = sizes.fit(width, height) else { continue };
            assert!(w > 0 && h > 0 && w % 28 == 0 && h % 28 == 0, "{width} x {height}: {w} x {h}");
            // Small pictures grow in whole cells, and a very long one keeps at least one across.
            let grown = (w - 28) * (h - 28) < 28 * 28 * 4;
            assert!(w * h <= most || grown || w == 28 || h == 28, "{width} x {height}: {w} x {h}");
        }
    }
}
