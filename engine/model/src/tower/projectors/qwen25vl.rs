//! `qwen2.5vl_merger`: Qwen2.5-VL. A vision transformer with RMS norms, gated FFNs, and a rotation
//! by row and column. In most layers, patches attend only within their window. Squares of 2 x 2
//! patches become one token.

use std::sync::Arc;

use super::{
    Projector,
    parts::{TokenLimits, import_picture_sizes, picture_sizes, two_frames},
};
use crate::{
    Activation, NormKind,
    import::{Gather, Transform},
    load::Loader,
    tower::{
        Merger, PatchNorms, TowerConfig, TowerHead, TowerLayer, TowerWeights,
        config::{TowerRope, TowerSizes},
        import::{TowerDraft, TowerFolder},
        weights::patch_embedding,
    },
};
use thermocline_base::error::Result;
use thermocline_formats::format::Value;

pub(super) const PROJECTOR: Projector = Projector {
    name: "qwen2.5vl_merger",
    model_types: &["qwen2_5_vl"],
    texts: &["qwen2vl"],
    mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
    deviation: [0.268_629_54, 0.261_302_6, 0.275_777_1],
    load,
    import,
};

/// Base of the rotation, which files do not name.
const ROPE_BASE: f64 = 10_000.0;

/// Epsilon of all norms, which folders do not name.
const NORM_EPS: f32 = 1e-6;

/// Side of a window in pixels, for files that do not name it.
const WINDOW: usize = 112;

/// Tokens of a picture, for files that do not name its area.
const TOKENS: TokenLimits = TokenLimits { least: 4, most: 4096 };

fn load(loader: &Loader<'_>) -> Result<(TowerConfig, TowerWeights)> {
    let sizes = TowerSizes::read(loader)?;
    let merge = loader.size("spatial_merge_size", 1..=16)?.unwrap_or(2);
    let multiple = sizes.patch_size * merge;
    let window = loader.size("window_size", multiple..=1 << 16)?.unwrap_or(WINDOW.max(multiple));
    let config = TowerConfig {
        merge,
        window: Some(window / multiple),
        norm: NormKind::Rms,
        activation: Activation::Silu,
        rope: Some(TowerRope { base: ROPE_BASE, ..TowerRope::default() }),
        ..TowerConfig::new(loader, &PROJECTOR, &sizes, picture_sizes(loader, multiple, TOKENS)?)?
    };
    let n_layer = loader.layer_counts()?.n_layer;
    let pattern = loader.required_size("n_wa_pattern", 1..=1 << 16)?;
    let layer = |n: usize| {
        let windowed = !(n + 1).is_multiple_of(pattern);
        Ok(TowerLayer { windowed, ..TowerLayer::load(loader, &config, n)? })
    };
    let weights = TowerWeights {
        patch: patch_embedding(loader, &sizes)?,
        patch_norms: PatchNorms::default(),
        positions: None,
        layers: (0..n_layer).map(layer).collect::<Result<_>>()?,
        head: TowerHead::Merger(Merger::load(loader, &config, ["v.post_ln", "mm.0", "mm.2"], false)?),
    };
    Ok((config, weights))
}

fn import(from: &TowerFolder<'_>, draft: &mut TowerDraft) -> Result<()> {
    let vision = &from.vision;
    let (width, patch_size) = (vision.size(&["hidden_size"])?, vision.size(&["patch_size"])?);
    let whole = vision.sizes("fullatt_block_indexes")?.unwrap_or_else(|| vec![7, 15, 23, 31]);
    let pattern = whole.first().map_or(1, |first| first.saturating_add(1));
    if whole.is_empty()
        || whole.iter().enumerate().any(|(at, layer)| Some(*layer) != pattern.checked_mul(at + 1).map(|end| end - 1))
    {
        let indexes = format!("{whole:?}");
        return Err(vision.unsupported("attention without windows", "fullatt_block_indexes", indexes));
    }
    for (suffix, size) in [
        ("image_size", patch_size.saturating_mul(40)),
        ("patch_size", patch_size),
        ("embedding_length", width),
        ("feed_forward_length", vision.size(&["intermediate_size"])?),
        ("block_count", vision.size(&["depth"])?),
        ("attention.head_count", vision.size(&["num_heads"])?),
        ("spatial_merge_size", vision.or_default(&["spatial_merge_size"], 2)?),
        ("window_size", vision.or_default(&["window_size"], WINDOW)?),
        ("n_wa_pattern", pattern),
    ] {
        draft.set_size(suffix, size);
    }
    draft.set("attention.layer_norm_epsilon", Value::F32(NORM_EPS));
    draft.keys.set("clip.use_silu", Value::Bool(true));
    import_picture_sizes(from, draft);
    names(draft, width);
    Ok(())
}

/// Adds the names of the tensors. Queries, keys and values become three tensors.
fn names(draft: &mut TowerDraft, width: usize) {
    let naming = &mut draft.naming;
    naming.alias("model.visual.", "visual.");
    two_frames(naming);
    for (at, part) in ["q", "k", "v"].into_iter().enumerate() {
        let rows = Arc::new(Gather::new(width.saturating_mul(3), [(width.saturating_mul(at), width)]));
        for kind in ["weight", "bias"] {
            let (from, to) = (format!("visual.blocks.*.attn.qkv.{kind}"), format!("v.blk.*.attn_{part}.{kind}"));
            naming.whole(from, to, Transform::Rows(Arc::clone(&rows)));
        }
    }
    for (hf, gguf) in [
        ("merger.ln_q", "v.post_ln"),
        ("merger.mlp.*", "mm.*"),
        ("blocks.*.norm1", "v.blk.*.ln1"),
        ("blocks.*.norm2", "v.blk.*.ln2"),
        ("blocks.*.attn.proj", "v.blk.*.attn_out"),
        ("blocks.*.mlp.gate_proj", "v.blk.*.ffn_gate"),
        ("blocks.*.mlp.up_proj", "v.blk.*.ffn_up"),
        ("blocks.*.mlp.down_proj", "v.blk.*.ffn_down"),
    ] {
        naming.add(format!("visual.{hf}"), gguf);
    }
}
