//! Sizes and variants of a vision tower, and the keys that all projectors share.

use super::{PictureSizes, projectors::Projector};
use crate::{Activation, NormKind, load::Loader};
use thermocline_base::error::{Error, Location, Result};
use thermocline_cpu::ops::HeadSizes;
use thermocline_formats::format::{Array, Value};
use thermocline_pictures::ResizeFilter;

/// Largest accepted width, head count or side. Products of three such numbers fit in 64 bits.
pub(super) const MAX_SIZE: usize = 1 << 20;

/// Sizes and variants of a vision tower.
#[derive(Debug, Clone, PartialEq)]
pub struct TowerConfig {
    /// llama.cpp's name of the projector.
    pub projector: &'static str,
    /// Architectures of the text models that use such a tower.
    pub texts: &'static [&'static str],
    /// Width of the tower's residual stream.
    pub width: usize,
    /// Neurons of a layer's FFN.
    pub n_ff: usize,
    /// Attention heads.
    pub heads: HeadSizes,
    /// Side of a patch, in pixels.
    pub patch_size: usize,
    /// Side of the square of patches that become one token.
    pub merge: usize,
    /// Side of the squares of patches that a layer joins to one, for towers that merge in two
    /// steps; 1 for others.
    pub first_merge: usize,
    /// Side of a window of attention, in tokens, for towers with windows.
    pub window: Option<usize>,
    /// Kind of the norms.
    pub norm: NormKind,
    /// Epsilon of the norms.
    pub norm_eps: f32,
    /// Activation of the layers' FFNs.
    pub activation: Activation,
    /// Rotation by row and column, for towers with one.
    pub rope: Option<TowerRope>,
    /// Tokens of the text that end the rows of a picture's tokens, if there are any.
    pub row_ends: Option<RowEnds>,
    /// Factor of query-key products.
    pub score_scale: f32,
    /// Rule for the size that a picture is resized to.
    pub sizes: PictureSizes,
    /// Filter that resizes pictures.
    pub filter: ResizeFilter,
    /// Mean of each channel, of samples from 0 to 1.
    pub mean: [f32; 3],
    /// Standard deviation of each channel.
    pub deviation: [f32; 3],
    /// Length of the embeddings, which is the width of the text model.
    pub d_model: usize,
}

/// Rotation of heads by the place of their patch. One half of a head's pairs rotates by the row,
/// the other half by the column.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TowerRope {
    /// Base of the frequencies of each half.
    pub base: f64,
    /// True if the first half rotates by the column.
    pub columns_first: bool,
    /// True if the halves take the frequencies of one sequence alternately. Otherwise both have the
    /// same frequencies.
    pub alternating: bool,
    /// True if the elements of a pair are neighbours. Otherwise they are half a head apart.
    pub interleaved: bool,
}

/// Names of the text tokens that end the rows of a picture's tokens. They are no tokens of the
/// picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowEnds {
    /// After every row but the last.
    pub between: &'static str,
    /// After the last row.
    pub last: &'static str,
}

impl TowerConfig {
    /// Returns the configuration of a tower of `projector` with layer norms and GELU, whose patches
    /// are tokens. It has no windows, no rotation and no tokens that end rows. Samples are
    /// normalised as the file says.
    pub(super) fn new(
        loader: &Loader<'_>,
        projector: &Projector,
        tower: &TowerSizes,
        sizes: PictureSizes,
    ) -> Result<Self> {
        let TowerSizes { width, n_ff, heads, patch_size, norm_eps, d_model } = *tower;
        Ok(TowerConfig {
            projector: projector.name,
            texts: projector.texts,
            width,
            n_ff,
            heads,
            patch_size,
            merge: 1,
            first_merge: 1,
            window: None,
            norm: NormKind::Layer,
            norm_eps,
            activation: Activation::GeluTanh,
            rope: None,
            row_ends: None,
            score_scale: 1.0 / (heads.head_dim.max(1) as f32).sqrt(),
            sizes,
            filter: ResizeFilter::Bicubic,
            mean: channels(loader, "image_mean", false)?,
            deviation: channels(loader, "image_std", true)?,
            d_model,
        })
    }

    /// Returns the number of inputs of the patch embedding: the samples of a patch.
    pub fn patch_samples(&self) -> usize {
        3 * self.patch_size * self.patch_size
    }
}

/// Sizes that every tower has, as its file stores them.
#[derive(Debug, Clone, Copy)]
pub(super) struct TowerSizes {
    pub(super) width: usize,
    pub(super) n_ff: usize,
    pub(super) heads: HeadSizes,
    pub(super) patch_size: usize,
    pub(super) norm_eps: f32,
    pub(super) d_model: usize,
}

impl TowerSizes {
    /// Reads the sizes and checks them against each other.
    pub(super) fn read(loader: &Loader<'_>) -> Result<Self> {
        Self::of_width(loader, loader.required_size("projection_dim", 1..=MAX_SIZE)?)
    }

    /// Reads the sizes of a tower whose embeddings have `d_model` elements.
    pub(super) fn of_width(loader: &Loader<'_>, d_model: usize) -> Result<Self> {
        let size = |suffix: &str| loader.required_size(suffix, 1..=MAX_SIZE);
        let (width, n_head) = (size("embedding_length")?, size("attention.head_count")?);
        if !width.is_multiple_of(4 * n_head) {
            let expected = format!("a number whose quadruple divides embedding_length {width}");
            return Err(loader.key_error("attention.head_count", expected, n_head));
        }
        let head_dim = width / n_head;
        Ok(TowerSizes {
            width,
            n_ff: size("feed_forward_length")?,
            heads: HeadSizes { n_head, n_kv_head: n_head, head_dim, value_dim: head_dim },
            patch_size: loader.required_size("patch_size", 1..=1024)?,
            norm_eps: loader.norm_eps("attention.layer_norm_epsilon")?,
            d_model,
        })
    }
}

/// Reads one number per channel; the numbers are finite, and positive if `positive`.
fn channels(loader: &Loader<'_>, suffix: &str, positive: bool) -> Result<[f32; 3]> {
    let metadata = &loader.checkpoint.metadata;
    let key = loader.key(suffix);
    let expected = if positive { "three positive numbers" } else { "three numbers" };
    let fits = |value: &f32| value.is_finite() && (!positive || *value > 0.0);
    match metadata.get(&key) {
        Some(Value::Array(Array::F32(values))) if values.iter().all(fits) => {
            values[..].try_into().map_err(|_| loader.key_error(suffix, expected, format!("{} numbers", values.len())))
        }
        Some(_) => Err(loader.key_error(suffix, expected, "another value")),
        None => Err(metadata.missing(&key, expected)),
    }
}

/// Returns the name of the projector that `loader`'s file has.
pub(super) fn projector_name<'a>(loader: &Loader<'a>) -> Result<&'a str> {
    let metadata = &loader.checkpoint.metadata;
    let key = "clip.projector_type";
    let named = match metadata.str("clip.vision.projector_type")? {
        Some(named) => Some(named),
        None => metadata.str(key)?,
    };
    named.ok_or_else(|| {
        Error::malformed(&loader.checkpoint.path, Location::Key(key.to_owned()), "the name of a projector", "nothing")
    })
}
