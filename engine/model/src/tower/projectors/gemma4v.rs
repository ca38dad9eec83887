//! `gemma4v`: Gemma 4. A vision transformer with RMS norms before and after each part, gated FFNs,
//! norms of heads, embeddings of columns and rows, and a rotation of each half of a head. Inputs
//! and outputs of its linear maps may be clamped. Squares of 3 x 3 patches are averaged to one
//! token.

use super::{
    Projector,
    parts::{TokenLimits, picture_sizes},
};
use crate::{
    Linear, Norm, NormKind,
    import::Transform,
    load::Loader,
    tower::{
        HeadNorms, PatchNorms, PictureSizes, PooledHead, TowerConfig, TowerHead, TowerLayer, TowerLinear, TowerWeights,
        config::{TowerRope, TowerSizes},
        import::{TowerDraft, TowerFolder},
        weights::{patch_embedding, side_positions},
    },
};
use thermocline_base::error::Result;
use thermocline_cpu::ops::HeadSizes;
use thermocline_formats::format::{Bytes, Matrix, Value};

pub(super) const PROJECTOR: Projector = Projector {
    name: "gemma4v",
    model_types: &["gemma4"],
    texts: &["gemma4"],
    mean: [0.0; 3],
    deviation: [1.0; 3],
    load,
    import,
};

/// Base of the rotation, which files do not name.
const ROPE_BASE: f64 = 100.0;

/// Patches on a side of a token, for files that do not name them.
const MERGE: usize = 3;

/// Tokens of a picture, for files that do not name its area. Pictures always fill the most.
const TOKENS: TokenLimits = TokenLimits { least: 1, most: 280 };

/// Key for the number of patches on a side of a token.
const SCALE_FACTOR: &str = "projector.scale_factor";

fn load(loader: &Loader<'_>) -> Result<(TowerConfig, TowerWeights)> {
    let sizes = TowerSizes::read(loader)?;
    let TowerSizes { width, patch_size, d_model, .. } = sizes;
    let merge = loader.size(SCALE_FACTOR, 1..=64)?.unwrap_or(MERGE);
    let multiple = patch_size * merge;
    let PictureSizes::Fitted { most, .. } = picture_sizes(loader, multiple, TOKENS)? else {
        return Err(loader.key_error("image_max_pixels", "an area", "another size"));
    };
    let picture_sizes = PictureSizes::Filled { multiple, most: most.max(multiple * multiple) };
    let config = TowerConfig::new(loader, &PROJECTOR, &sizes, picture_sizes)?;
    // The tower takes samples from -1 to 1.
    let half = config.deviation.map(|deviation| deviation / 2.0);
    let config = TowerConfig {
        merge,
        norm: NormKind::Rms,
        rope: Some(TowerRope { base: ROPE_BASE, columns_first: true, ..TowerRope::default() }),
        score_scale: 1.0,
        mean: std::array::from_fn(|channel| config.mean[channel] + half[channel]),
        deviation: half,
        ..config
    };
    let n_layer = loader.layer_counts()?.n_layer;
    let standard = match loader.optional_vector("v.std_bias", width)? {
        Some(bias) => Some([bias, loader.vector("v.std_scale", width)?]),
        None => None,
    };
    let head = PooledHead {
        patches: None,
        scale: (width as f32).sqrt(),
        standard,
        tokens: Norm { weight: vec![1.0; width], bias: None, own_eps: None },
        projection: loader.linear("mm.input_projection", d_model, width)?,
    };
    let weights = TowerWeights {
        patch: patch_embedding(loader, &sizes)?,
        patch_norms: PatchNorms::default(),
        positions: Some(side_positions(loader, width)?),
        layers: (0..n_layer).map(|n| layer(loader, &config, n)).collect::<Result<_>>()?,
        head: TowerHead::Pooled(head),
    };
    Ok((config, weights))
}

/// Reads layer `n`. Each half of a head is rotated by itself. Queries and keys are reordered, so
/// that the pairs of both halves are those of one rotation of the whole head.
fn layer(loader: &Loader<'_>, config: &TowerConfig, n: usize) -> Result<TowerLayer> {
    let of = TowerLayer::load(loader, config, n)?;
    let head_dim = config.heads.head_dim;
    let norm = |role: &str| loader.vector(&format!("v.blk.{n}.{role}.weight"), head_dim);
    let in_order = |weight: Vec<f32>| (0..head_dim).map(|at| weight[half_source(at, head_dim)]).collect();
    let norms = HeadNorms { query: in_order(norm("attn_q_norm")?), key: in_order(norm("attn_k_norm")?) };
    let [query, key, value] = of.qkv;
    let qkv = [reordered(query, config.heads), reordered(key, config.heads), value];
    Ok(TowerLayer { qkv, head_norms: Some(norms), ..of })
}

/// The element of a head that becomes element `at` of the reordered head.
fn half_source(at: usize, head_dim: usize) -> usize {
    let quarter = head_dim / 4;
    match at / quarter {
        1 => at + quarter,
        2 => at - quarter,
        _ => at,
    }
}

/// Reorders the outputs of a map to heads.
fn reordered(map: TowerLinear, heads: HeadSizes) -> TowerLinear {
    let (dim, Linear { weight, bias }) = (heads.head_dim, map.linear);
    let source = |row: usize| row / dim * dim + half_source(row % dim, dim);
    let bytes: Vec<u8> = (0..weight.rows()).flat_map(|row| weight.row(source(row)).iter().copied()).collect();
    let bias = bias.map(|bias| (0..bias.len()).map(|row| bias[source(row)]).collect());
    let same = |matrix: Matrix| matrix.with_factor(weight.factor());
    let ordered = Matrix::new(weight.ty(), weight.rows(), weight.cols(), Bytes::new(bytes)).map(same);
    TowerLinear { linear: Linear { weight: ordered.unwrap_or_else(|| weight.clone()), bias }, ..map }
}

fn import(from: &TowerFolder<'_>, draft: &mut TowerDraft) -> Result<()> {
    let vision = &from.vision;
    let (width, heads) = (vision.size(&["hidden_size"])?, vision.size(&["num_attention_heads"])?);
    let key_heads = vision.or_default(&["num_key_value_heads"], heads)?;
    let head_dim = vision.or_default(&["head_dim"], width / heads)?;
    if key_heads != heads || head_dim.checked_mul(heads) != Some(width) {
        return Err(vision.unsupported("heads of the vision tower", "num_key_value_heads", key_heads));
    }
    let (side, merge) = (vision.size(&["patch_size"])?, vision.or_default(&["pooling_kernel_size"], MERGE)?);
    if side > 1024 {
        return Err(vision.error("patch_size", "at most 1024", side));
    }
    let tokens = from.processor_size(&["max_soft_tokens"]).map_or(TOKENS.most, |tokens| tokens as usize);
    let area = [merge, merge, side, side].iter().fold(tokens, |area, by| area.saturating_mul(*by));
    for (suffix, size) in [
        // llama.cpp expects the key, and does not use it.
        ("image_size", 224),
        ("patch_size", side),
        ("embedding_length", width),
        ("feed_forward_length", vision.size(&["intermediate_size"])?),
        ("block_count", vision.size(&["num_hidden_layers"])?),
        ("attention.head_count", heads),
        ("image_max_pixels", area),
        (SCALE_FACTOR, merge),
    ] {
        draft.set_size(suffix, size);
    }
    let eps = vision.f32(&["rms_norm_eps"])?.unwrap_or(1e-6);
    draft.set("attention.layer_norm_epsilon", Value::F32(eps));
    draft.keys.set("clip.use_gelu", Value::Bool(true));
    names(draft, side);
    Ok(())
}

/// Adds the names of the tensors.
fn names(draft: &mut TowerDraft, side: usize) {
    let naming = &mut draft.naming;
    naming.alias("model.vision_tower.", "vision_tower.");
    naming.alias("model.embed_vision.", "embed_vision.");
    naming.whole("vision_tower.patch_embedder.input_proj.weight", "v.patch_embd.weight", Transform::Patches { side });
    let table = "vision_tower.patch_embedder.position_embedding_table";
    naming.whole(table, "v.position_embd.weight", Transform::None);
    for part in ["std_bias", "std_scale"] {
        naming.whole(format!("vision_tower.{part}"), format!("v.{part}"), Transform::None);
    }
    naming.add("embed_vision.embedding_projection", "mm.input_projection");
    for (hf, gguf) in [
        ("input_layernorm", "ln1"),
        ("post_attention_layernorm", "attn_post_norm"),
        ("pre_feedforward_layernorm", "ln2"),
        ("post_feedforward_layernorm", "ffn_post_norm"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
    ] {
        naming.add(format!("vision_tower.encoder.layers.*.{hf}"), format!("v.blk.*.{gguf}"));
    }
    for (hf, gguf) in [
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_out"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ] {
        let (hf, gguf) = (format!("vision_tower.encoder.layers.*.{hf}"), format!("v.blk.*.{gguf}"));
        naming.add(format!("{hf}.linear"), gguf.clone());
        for limit in ["input_min", "input_max", "output_min", "output_max"] {
            naming.whole(format!("{hf}.{limit}"), format!("{gguf}.{limit}"), Transform::Flatten);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::half_source;

    /// Pairs of each half become pairs of the whole head.
    #[test]
    fn pairs_of_halves_become_pairs_of_the_head() {
        let order: Vec<usize> = (0..8).map(|at| half_source(at, 8)).collect();
        assert_eq!(order, [0, 1, 4, 5, 2, 3, 6, 7]);
    }
}
