//! Common parts of several projectors: sizes of pictures, positions, and names of tensors.

use super::super::{
    PatchPositions, PictureSizes, PictureSlices,
    config::TowerSizes,
    import::{TowerDraft, TowerFolder},
    weights::patch_positions,
};
use crate::{
    Activation,
    import::{HfConfig, Naming, Transform},
    load::Loader,
};
use thermocline_base::error::Result;
use thermocline_formats::format::Value;

/// Fewest and most tokens of a picture.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenLimits {
    pub(super) least: usize,
    pub(super) most: usize,
}

/// Reads the sizes of pictures whose sides are multiples of `multiple`, the side of a token. Files
/// that do not name an area take the area of `limits`.
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

/// Key for the largest number of slices of a picture. llama.cpp has no such key.
const MOST_SLICES: &str = "max_slice_nums";

/// Side of an overview, in pixels, and largest number of slices, for files that do not name them.
const SLICE_SIDE: usize = 448;
const SLICES: usize = 9;

/// Reads the sizes of sliced pictures. All sides are multiples of `multiple`, and a part has about
/// `tokens` tokens.
pub(super) fn sliced_sizes(loader: &Loader<'_>, multiple: usize, tokens: usize) -> Result<PictureSizes> {
    let side = loader.required_size("image_size", multiple..=1 << 14)?;
    let most = loader.size(MOST_SLICES, 1..=1 << 10)?.unwrap_or(SLICES);
    Ok(PictureSizes::Sliced(PictureSlices { side, multiple, most, tokens }))
}

/// Sets side and number of slices from the settings of MiniCPM-V's image processor.
pub(super) fn import_slices(from: &TowerFolder<'_>, draft: &mut TowerDraft) -> Result<()> {
    let number = |name: &str| from.processor_size(&[name]).map(|size| usize::try_from(size).unwrap_or(usize::MAX));
    let side = match number("scale_resolution") {
        Some(side) => side,
        None => from.text.or_default(&["image_size"], SLICE_SIDE)?,
    };
    let sliced = from.processor.get("slice_mode").and_then(serde_json::Value::as_bool).unwrap_or(true);
    draft.set_size("image_size", side);
    draft.set_size(MOST_SLICES, if sliced { number(MOST_SLICES).unwrap_or(SLICES) } else { 1 });
    Ok(())
}

/// Reads learned embeddings of the places of a square, which other grids are stretched to.
pub(super) fn stretched_positions(loader: &Loader<'_>, sizes: &TowerSizes) -> Result<PatchPositions> {
    Ok(match patch_positions(loader, sizes)? {
        PatchPositions::Square { side, table } => PatchPositions::Stretched { side, table },
        other => other,
    })
}

/// Epsilon of SigLIP's norms, for folders whose configuration has no epsilon.
const SIGLIP_EPS: f32 = 1e-6;

/// Sets the sizes of SigLIP without its last `dropped` layers. Folders may leave out the sizes of
/// the published model.
pub(super) fn import_siglip(vision: &HfConfig, draft: &mut TowerDraft, dropped: usize) -> Result<()> {
    for (suffix, size) in [
        ("patch_size", vision.or_default(&["patch_size"], 14)?),
        ("embedding_length", vision.or_default(&["hidden_size"], 1152)?),
        ("feed_forward_length", vision.or_default(&["intermediate_size"], 4304)?),
        ("block_count", vision.or_default(&["num_hidden_layers"], 27)?.saturating_sub(dropped)),
        ("attention.head_count", vision.or_default(&["num_attention_heads"], 16)?),
    ] {
        draft.set_size(suffix, size);
    }
    draft.set("attention.layer_norm_epsilon", Value::F32(vision.f32(&["layer_norm_eps"])?.unwrap_or(SIGLIP_EPS)));
    let activation = vision.activation(&["hidden_act"], Activation::GeluTanh)?;
    if activation != Activation::GeluTanh {
        return Err(vision.unsupported("activation of the vision tower", "hidden_act", activation));
    }
    draft.keys.set("clip.use_gelu", Value::Bool(true));
    Ok(())
}

/// Adds the names of SigLIP's tensors, which begin with `vision.`.
pub(super) fn siglip_names(naming: &mut Naming) {
    for (hf, gguf) in [
        ("embeddings.patch_embedding", "v.patch_embd"),
        ("embeddings.position_embedding", "v.position_embd"),
        ("post_layernorm", "v.post_ln"),
        ("encoder.layers.*.layer_norm1", "v.blk.*.ln1"),
        ("encoder.layers.*.layer_norm2", "v.blk.*.ln2"),
        ("encoder.layers.*.self_attn.q_proj", "v.blk.*.attn_q"),
        ("encoder.layers.*.self_attn.k_proj", "v.blk.*.attn_k"),
        ("encoder.layers.*.self_attn.v_proj", "v.blk.*.attn_v"),
        ("encoder.layers.*.self_attn.out_proj", "v.blk.*.attn_out"),
        ("encoder.layers.*.mlp.fc1", "v.blk.*.ffn_up"),
        ("encoder.layers.*.mlp.fc2", "v.blk.*.ffn_down"),
    ] {
        naming.add(format!("vision.{hf}"), gguf);
    }
}
