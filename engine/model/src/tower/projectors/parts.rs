//! What several projectors share: limits of a picture's area, and names of tensors.

use super::super::{
    PictureSizes,
    import::{TowerDraft, TowerFolder},
};
use crate::{
    import::{Naming, Transform},
    load::Loader,
};
use thermocline_base::error::Result;

/// Fewest and most tokens of a picture.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenLimits {
    pub(super) least: usize,
    pub(super) most: usize,
}

/// Reads the sizes of pictures whose sides are multiples of `multiple`, the side of a token. Files
/// that do not name an area take that of `limits`.
pub(super) fn picture_sizes(loader: &Loader<'_>, multiple: usize, limits: TokenLimits) -> Result<PictureSizes> {
    let area = |suffix: &str, tokens: usize| {
        let named = loader.size(suffix, 1..=1 << 40)?;
        Ok::<_, thermocline_base::error::Error>(named.unwrap_or(tokens * multiple * multiple))
    };
    let (least, most) = (area("image_min_pixels", limits.least)?, area("image_max_pixels", limits.most)?);
    match least <= most {
        true => Ok(PictureSizes::Fitted { multiple, least, most }),
        false => Err(loader.key_error("image_min_pixels", format!("at most image_max_pixels {most}"), least)),
    }
}

/// Sets the limits of a picture's area from the settings of Qwen's image processor.
pub(super) fn import_picture_sizes(from: &TowerFolder<'_>, draft: &mut TowerDraft) {
    for (suffix, names) in [
        ("image_min_pixels", [&["size", "shortest_edge"][..], &["min_pixels"]]),
        ("image_max_pixels", [&["size", "longest_edge"], &["max_pixels"]]),
    ] {
        if let Some(area) = names.into_iter().find_map(|path| from.processor_size(path)) {
            draft.set_size(suffix, usize::try_from(area).unwrap_or(usize::MAX));
        }
    }
}

/// Adds the names of a patch embedding over two frames.
pub(super) fn two_frames(naming: &mut Naming) {
    for (frame, name) in ["v.patch_embd.weight", "v.patch_embd.weight.1"].into_iter().enumerate() {
        naming.whole("visual.patch_embed.proj.weight", name, Transform::Frame(frame));
    }
}
