//! Resizing with the filters of Pillow, which the processors of vision towers use. A filter is
//! applied to columns, then to rows. If the picture shrinks, the filter is as much wider, so that
//! every source pixel contributes. Weights are integers, and each pass rounds to 8 bits.

use super::Picture;
use thermocline_base::error::Result;

/// Bits after the point of a weight: 32 bits less those of a sample and of two sums.
const BITS: u32 = 22;

/// Filter of a resizing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResizeFilter {
    /// Triangle of two source pixels' width.
    Bilinear,
    /// Cubic convolution over four source pixels (Keys 1981, a = -1/2).
    Bicubic,
}

impl ResizeFilter {
    /// Distance in source pixels beyond which weights are 0.
    fn support(self) -> f64 {
        match self {
            ResizeFilter::Bilinear => 1.0,
            ResizeFilter::Bicubic => 2.0,
        }
    }

    /// Weight of a source pixel at distance `x`.
    fn weight(self, x: f64) -> f64 {
        const A: f64 = -0.5;
        let x = x.abs();
        match self {
            ResizeFilter::Bilinear => (1.0 - x).max(0.0),
            ResizeFilter::Bicubic if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
            ResizeFilter::Bicubic if x < 2.0 => A * (((x - 5.0) * x + 8.0) * x - 4.0),
            ResizeFilter::Bicubic => 0.0,
        }
    }
}

/// Source pixels of one target pixel.
struct Taps {
    first: usize,
    /// Weights in units of `2^-BITS`, which sum to one.
    weights: Vec<i32>,
}

/// Returns the source pixels of every target pixel of one side.
fn taps(from: usize, to: usize, filter: ResizeFilter) -> Vec<Taps> {
    let scale = from as f64 / to as f64;
    let stretch = scale.max(1.0);
    let support = filter.support() * stretch;
    let of_pixel = |at: usize| {
        let center = (at as f64 + 0.5) * scale;
        let first = (center - support + 0.5).max(0.0) as usize;
        let end = ((center + support + 0.5) as usize).min(from);
        let weights: Vec<f64> =
            (first..end).map(|source| filter.weight((source as f64 - center + 0.5) / stretch)).collect();
        let sum: f64 = weights.iter().sum();
        let fixed = |weight: f64| (weight / sum * f64::from(1u32 << BITS)).round() as i32;
        Taps { first, weights: weights.into_iter().map(fixed).collect() }
    };
    (0..to).map(of_pixel).collect()
}

/// Rounds a sum of weighted samples to a sample.
fn sample(sum: i32) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}

/// Half a unit of a sample, so that [`sample`] rounds to the nearest.
const HALF: i32 = 1 << (BITS - 1);

/// Resizes the rows of `rgb`, `[rows, width, 3]`, to one column per element of `taps`.
fn columns(rgb: &[u8], width: usize, taps: &[Taps]) -> Vec<u8> {
    let mut out = Vec::with_capacity(rgb.len() / width * taps.len());
    for row in rgb.chunks_exact(width * 3) {
        for Taps { first, weights } in taps {
            let mut sums = [HALF; 3];
            for (pixel, weight) in row[first * 3..].as_chunks::<3>().0.iter().zip(weights) {
                for (sum, channel) in sums.iter_mut().zip(pixel) {
                    *sum += i32::from(*channel) * weight;
                }
            }
            out.extend(sums.map(sample));
        }
    }
    out
}

/// Resizes `rgb`, rows of `row` samples, to one row per element of `taps`.
fn rows(rgb: &[u8], row: usize, taps: &[Taps]) -> Vec<u8> {
    let mut out = Vec::with_capacity(row * taps.len());
    let mut sums = vec![0; row];
    for Taps { first, weights } in taps {
        sums.fill(HALF);
        for (source, weight) in rgb[first * row..].chunks_exact(row).zip(weights) {
            for (sum, channel) in sums.iter_mut().zip(source) {
                *sum += i32::from(*channel) * weight;
            }
        }
        out.extend(sums.iter().map(|sum| sample(*sum)));
    }
    out
}

impl Picture {
    /// Returns the picture in another size, without regard to its proportions.
    ///
    /// # Errors
    /// As [`Picture::from_rgb`], for the new size; the errors of [`Picture::rgb`].
    pub fn resized(&self, width: usize, height: usize, filter: ResizeFilter) -> Result<Self> {
        super::picture::check_size(width as u64, height as u64)?;
        if (width, height) == (self.width(), self.height()) {
            return Ok(self.clone());
        }
        let rgb = self.rgb()?;
        let narrowed = (width != self.width()).then(|| columns(&rgb, self.width(), &taps(self.width(), width, filter)));
        let narrowed = narrowed.as_deref().unwrap_or(&rgb);
        let rgb = match height == self.height() {
            true => narrowed.to_vec(),
            false => rows(narrowed, width * 3, &taps(self.height(), height, filter)),
        };
        Picture::from_rgb(width, height, rgb)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// A picture of one colour keeps it in every size.
        #[test]
        fn one_colour_stays_the_same(
            colour: [u8; 3],
            from in (1usize..40, 1usize..40),
            to in (1usize..80, 1usize..80),
            cubic: bool,
        ) {
            let filter = if cubic { ResizeFilter::Bicubic } else { ResizeFilter::Bilinear };
            let picture = Picture::from_rgb(from.0, from.1, colour.repeat(from.0 * from.1)).unwrap();
            let resized = picture.resized(to.0, to.1, filter).unwrap();
            prop_assert_eq!((resized.width(), resized.height()), to);
            prop_assert!(resized.rgb().unwrap().chunks_exact(3).all(|pixel| pixel == colour));
        }
    }

    #[test]
    fn a_size_without_pixels_is_refused() {
        let picture = Picture::from_rgb(2, 2, vec![0; 12]).unwrap();
        assert!(picture.resized(0, 3, ResizeFilter::Bicubic).is_err());
    }
}
