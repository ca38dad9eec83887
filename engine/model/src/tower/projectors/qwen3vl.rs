//! `qwen3vl_merger`: Qwen3-VL, and Qwen3.5 and 3.6, whose towers have no deepstack. A vision
//! transformer with layer norms, learned positions that are interpolated to the picture's grid,
//! and a rotation by row and column. Squares of 2 x 2 patches become one token. Deepstack mergers
//! make additions to the first layers of the text model from some layers' outputs.

use super::{
    Projector,
    parts::{TokenLimits, import_picture_sizes, picture_sizes, two_frames},
};
use crate::{
    import::Transform,
    load::Loader,
    tower::{
        Merger, PatchNorms, TowerConfig, TowerHead, TowerLayer, TowerWeights,
        config::{TowerRope, TowerSizes},
        import::{TowerDraft, TowerFolder},
        weights::{patch_embedding, patch_positions},
    },
};
use thermocline_base::error::Result;
use thermocline_formats::format::{Array, Value};

pub(super) const PROJECTOR: Projector = Projector {
    name: "qwen3vl_merger",
    model_types: &["qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"],
    texts: &["qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"],
    mean: [0.5; 3],
    deviation: [0.5; 3],
    load,
    import,
};

/// Base of the rotation, which files do not name.
const ROPE_BASE: f64 = 10_000.0;

/// Epsilon of all norms, which folders do not name.
const NORM_EPS: f32 = 1e-6;

/// Tokens of a picture, for files that do not name its area.
const TOKENS: TokenLimits = TokenLimits { least: 64, most: 4096 };

fn load(loader: &Loader<'_>) -> Result<(TowerConfig, TowerWeights)> {
    let sizes = TowerSizes::read(loader)?;
    let merge = loader.size("spatial_merge_size", 1..=16)?.unwrap_or(2);
    let config = TowerConfig {
        merge,
        rope: Some(TowerRope { base: ROPE_BASE, ..TowerRope::default() }),
        ..TowerConfig::new(loader, &PROJECTOR, &sizes, picture_sizes(loader, sizes.patch_size * merge, TOKENS)?)?
    };
    let n_layer = loader.layer_counts()?.n_layer;
    let stacked = loader.layer_flags("is_deepstack_layers", n_layer)?.unwrap_or_else(|| vec![false; n_layer]);
    let layer = |n: usize| {
        let name = |role: &str| format!("v.deepstack.{n}.{role}");
        let names = [name("norm"), name("fc1"), name("fc2")];
        let merger = || Merger::load(loader, &config, [&names[0], &names[1], &names[2]], true);
        let deepstack = stacked[n].then(merger).transpose()?;
        Ok(TowerLayer { deepstack, ..TowerLayer::load(loader, &config, n)? })
    };
    let weights = TowerWeights {
        patch: patch_embedding(loader, &sizes)?,
        patch_norms: PatchNorms::default(),
        positions: Some(patch_positions(loader, &sizes)?),
        layers: (0..n_layer).map(layer).collect::<Result<_>>()?,
        head: TowerHead::Merger(Merger::load(loader, &config, ["v.post_ln", "mm.0", "mm.2"], false)?),
    };
    Ok((config, weights))
}

fn import(from: &TowerFolder<'_>, draft: &mut TowerDraft) -> Result<()> {
    let vision = &from.vision;
    let (depth, patch_size) = (vision.size(&["depth"])?, vision.size(&["patch_size"])?);
    let side = vision.size(&["num_position_embeddings"])?.isqrt();
    for (suffix, size) in [
        ("image_size", side.saturating_mul(patch_size)),
        ("patch_size", patch_size),
        ("embedding_length", vision.size(&["hidden_size"])?),
        ("feed_forward_length", vision.size(&["intermediate_size"])?),
        ("block_count", depth),
        ("attention.head_count", vision.size(&["num_heads"])?),
        ("spatial_merge_size", vision.or_default(&["spatial_merge_size"], 2)?),
    ] {
        draft.set_size(suffix, size);
    }
    draft.set("attention.layer_norm_epsilon", Value::F32(NORM_EPS));
    draft.keys.set("clip.use_gelu", Value::Bool(true));
    import_picture_sizes(from, draft);
    let stacked = vision.sizes("deepstack_visual_indexes")?.unwrap_or_default();
    let flags = (0..depth.min(1 << 20)).map(|layer| stacked.contains(&layer)).collect();
    draft.set("is_deepstack_layers", Value::Array(Array::Bool(flags)));
    names(draft, &stacked);
    Ok(())
}

/// Adds the names of the tensors. `stacked` has the layer of each deepstack merger.
fn names(draft: &mut TowerDraft, stacked: &[usize]) {
    let naming = &mut draft.naming;
    naming.alias("model.visual.", "visual.");
    two_frames(naming);
    naming.whole("visual.patch_embed.proj.bias", "v.patch_embd.bias", Transform::None);
    for (hf, gguf) in [
        ("pos_embed", "v.position_embd"),
        ("merger.norm", "v.post_ln"),
        ("merger.linear_fc1", "mm.0"),
        ("merger.linear_fc2", "mm.2"),
        ("blocks.*.norm1", "v.blk.*.ln1"),
        ("blocks.*.norm2", "v.blk.*.ln2"),
        ("blocks.*.attn.qkv", "v.blk.*.attn_qkv"),
        ("blocks.*.attn.proj", "v.blk.*.attn_out"),
        ("blocks.*.mlp.linear_fc1", "v.blk.*.ffn_up"),
        ("blocks.*.mlp.linear_fc2", "v.blk.*.ffn_down"),
    ] {
        naming.add(format!("visual.{hf}"), gguf);
    }
    for (at, layer) in stacked.iter().enumerate() {
        for (hf, gguf) in [("norm", "norm"), ("linear_fc1", "fc1"), ("linear_fc2", "fc2")] {
            for kind in ["weight", "bias"] {
                let from = format!("visual.deepstack_merger_list.{at}.{hf}.{kind}");
                naming.exact(from, format!("v.deepstack.{layer}.{gguf}.{kind}"));
            }
        }
    }
}
