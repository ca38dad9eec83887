//! `pixtral`: Pixtral, Mistral Small 3.1 and later, Ministral 3. A vision transformer with RMS
//! norms, gated FFNs, and a rotation by row and column. Pictures keep their proportions. A linear
//! map joins squares of patches to one token, except in Pixtral itself. A text token ends each row
//! of tokens.

use std::sync::Arc;

use super::Projector;
use crate::{
    Activation, Linear, Norm, NormKind,
    import::{Gather, Transform},
    load::Loader,
    tower::{
        Merger, PatchNorms, PictureSizes, RowEnds, TowerConfig, TowerHead, TowerLayer, TowerWeights,
        config::{TowerRope, TowerSizes},
        import::{TowerDraft, TowerFolder},
        weights::patch_embedding,
    },
};
use thermocline_base::error::{Error, Result};
use thermocline_formats::{
    format::{Bytes, Matrix, Value},
    quant::TensorType,
};

pub(super) const PROJECTOR: Projector = Projector {
    name: "pixtral",
    model_types: &["mistral3", "pixtral"],
    texts: &["llama", "mistral3", "mistral4"],
    mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
    deviation: [0.268_629_54, 0.261_302_6, 0.275_777_1],
    load,
    import,
};

/// Tokens of the text that end rows.
const ROW_ENDS: RowEnds = RowEnds { between: "[IMG_BREAK]", last: "[IMG_END]" };

/// Base of the rotation, which files do not name.
const ROPE_BASE: f64 = 10_000.0;

/// Epsilon of the tower's norms, which folders do not name.
const NORM_EPS: f32 = 1e-5;

/// Key for the epsilon of the head's norm, which equals the epsilon of the text model's norms.
/// llama.cpp uses one epsilon for all norms.
const HEAD_EPS: &str = "projector.layer_norm_epsilon";

/// Key that is true if the activation of FFNs is SiLU.
const USE_SILU: &str = "clip.use_silu";

/// Key that is true if the activation of FFNs is GELU.
const USE_GELU: &str = "clip.use_gelu";

fn load(loader: &Loader<'_>) -> Result<(TowerConfig, TowerWeights)> {
    let sizes = TowerSizes::read(loader)?;
    let merge = loader.size("spatial_merge_size", 1..=16)?.unwrap_or(1);
    let multiple = sizes.patch_size * merge;
    let longest = loader.required_size("image_size", multiple..=1 << 16)?;
    let is_true = |key: &str| Ok::<_, Error>(loader.checkpoint.metadata.bool(key)?.unwrap_or(false));
    let activation = match (is_true(USE_SILU)?, is_true(USE_GELU)?) {
        (true, _) => Activation::Silu,
        (false, true) => Activation::GeluErf,
        // Files without either key mean another approximation of GELU.
        _ => return Err(Error::unsupported("activation of the vision tower", "quick GELU", "SiLU, GELU")),
    };
    let config = TowerConfig {
        merge,
        norm: NormKind::Rms,
        activation,
        rope: Some(TowerRope { base: ROPE_BASE, columns_first: false, alternating: true, interleaved: true }),
        row_ends: Some(ROW_ENDS),
        ..TowerConfig::new(loader, &PROJECTOR, &sizes, PictureSizes::Longest { multiple, longest })?
    };
    let n_layer = loader.layer_counts()?.n_layer;
    let placed = Some(loader.norm("v.pre_ln", NormKind::Rms, config.width)?);
    let weights = TowerWeights {
        patch: patch_embedding(loader, &sizes)?,
        patch_norms: PatchNorms { placed, ..PatchNorms::default() },
        positions: None,
        layers: (0..n_layer).map(|n| TowerLayer::load(loader, &config, n)).collect::<Result<_>>()?,
        head: TowerHead::Merger(merger(loader, &config)?),
    };
    Ok((config, weights))
}

/// Reads the head. Without a linear map that joins patches, each token is one patch.
fn merger(loader: &Loader<'_>, config: &TowerConfig) -> Result<Merger> {
    let (width, d_model, joined) = (config.width, config.d_model, config.width * config.merge * config.merge);
    let join = "mm.patch_merger";
    let join = match config.merge > 1 || loader.has(&format!("{join}.weight")) {
        true => Some(by_patch(loader.linear(join, width, joined)?, config.merge * config.merge)),
        false => None,
    };
    let own_eps = if loader.has_key(HEAD_EPS) { Some(loader.norm_eps(HEAD_EPS)?) } else { None };
    let norm = loader.optional_norm("mm.input_norm", NormKind::Rms, width)?;
    Ok(Merger {
        patches: None,
        norm: norm.map(|norm| Norm { own_eps, ..norm }),
        join,
        first: loader.linear("mm.1", d_model, width)?,
        second: loader.linear("mm.2", d_model, d_model)?,
    })
}

/// Reorders the inputs of `join`, which files have channel by channel, so that the `each` patches
/// of a token follow each other.
fn by_patch(join: Linear, each: usize) -> Linear {
    let (rows, cols) = (join.weight.rows(), join.weight.cols());
    let (mut row, mut bytes) = (vec![0.0_f32; cols], Vec::with_capacity(rows * cols * size_of::<f32>()));
    for at in 0..rows {
        join.weight.dequantise_row(at, &mut row);
        let source = |at: usize| at % (cols / each) * each + at / (cols / each);
        bytes.extend((0..cols).flat_map(|at| row[source(at)].to_le_bytes()));
    }
    let ordered = Matrix::new(TensorType::F32, rows, cols, Bytes::new(bytes));
    Linear { weight: ordered.unwrap_or(join.weight), bias: join.bias }
}

fn import(from: &TowerFolder<'_>, draft: &mut TowerDraft) -> Result<()> {
    let TowerFolder { vision, text, .. } = from;
    let (width, heads) = (vision.or_default(&["hidden_size"], 1024)?, vision.or_default(&["num_attention_heads"], 16)?);
    if heads == 0 {
        return Err(vision.error("num_attention_heads", "at least 1", heads));
    }
    refuse_variants(from)?;
    let longest =
        [&["size", "longest_edge"][..], &["size", "height"]].iter().find_map(|path| from.processor_size(path));
    let longest = match longest {
        Some(longest) => usize::try_from(longest).unwrap_or(usize::MAX),
        None => vision.or_default(&["image_size"], 1024)?,
    };
    for (suffix, size) in [
        ("image_size", longest),
        ("patch_size", vision.or_default(&["patch_size"], 16)?),
        ("embedding_length", width),
        ("feed_forward_length", vision.or_default(&["intermediate_size"], 4096)?),
        ("block_count", vision.or_default(&["num_hidden_layers"], 24)?),
        ("attention.head_count", heads),
        // Folders of Pixtral itself have no such key, and join no patches.
        ("spatial_merge_size", text.or_default(&["spatial_merge_size"], if is_llava(from) { 1 } else { 2 })?),
    ] {
        draft.set_size(suffix, size);
    }
    draft.set("attention.layer_norm_epsilon", Value::F32(NORM_EPS));
    draft.set(HEAD_EPS, Value::F32(text.f32(&["rms_norm_eps"])?.unwrap_or(NORM_EPS)));
    let key = match vision.activation(&["hidden_act"], Activation::GeluErf)? {
        Activation::Silu => USE_SILU,
        Activation::GeluErf => USE_GELU,
        other => return Err(vision.unsupported("activation of the vision tower", "hidden_act", other)),
    };
    draft.keys.set(key, Value::Bool(true));
    names(draft, heads, width / heads);
    break_embedding(from, draft);
    Ok(())
}

/// Refuses variants of the tower that the engine does not run.
fn refuse_variants(from: &TowerFolder<'_>) -> Result<()> {
    let TowerFolder { vision, text, .. } = from;
    let nested = vision.value("rope_parameters").and_then(|rope| rope.get("rope_theta")?.as_f64());
    let base = match nested {
        Some(base) => base as f32,
        None => vision.f32(&["rope_theta"])?.unwrap_or(ROPE_BASE as f32),
    };
    if base != ROPE_BASE as f32 {
        return Err(vision.unsupported("rotation of the vision tower", "rope_theta", base));
    }
    let llava = is_llava(from);
    let layer = text.f32(&["vision_feature_layer"])?.unwrap_or(if llava { -2.0 } else { -1.0 });
    if layer != -1.0 {
        return Err(text.unsupported("output of the vision tower", "vision_feature_layer", layer));
    }
    let select = text.str(&["vision_feature_select_strategy"])?.unwrap_or(if llava { "default" } else { "full" });
    if select != "full" {
        return Err(text.unsupported("output of the vision tower", "vision_feature_select_strategy", select));
    }
    match text.activation(&["projector_hidden_act"], Activation::GeluErf)? {
        Activation::GeluErf => Ok(()),
        other => Err(text.unsupported("activation of the projector", "projector_hidden_act", other)),
    }
}

/// True for folders of Pixtral itself, which have the form of LLaVA.
fn is_llava(from: &TowerFolder<'_>) -> bool {
    from.vision.model_type() == "llava_vision"
}

/// Adds the text model's embedding of the token between rows. llama.cpp inserts it behind each row,
/// and takes it from the tower's file.
fn break_embedding(from: &TowerFolder<'_>, draft: &mut TowerDraft) {
    let table = from.folder.tensors.iter().find(|tensor| tensor.name.ends_with("embed_tokens.weight"));
    let rows = table.and_then(|table| table.shape.first().copied());
    let id = from.token_id(ROW_ENDS.between);
    if let (Some(rows), Some(id)) = (rows, id)
        && id < rows
    {
        let row = Transform::Rows(Arc::new(Gather::new(rows, [(id, 1)])));
        draft.naming.whole("model.embed_tokens.weight", "v.token_embd.img_break", row);
    }
}

/// Adds the names of the tensors.
fn names(draft: &mut TowerDraft, heads: usize, dims: usize) {
    let naming = &mut draft.naming;
    naming.alias("model.vision_tower.", "vision_tower.");
    naming.alias("model.multi_modal_projector.", "multi_modal_projector.");
    for (hf, gguf) in [
        ("patch_conv", "v.patch_embd"),
        ("ln_pre", "v.pre_ln"),
        ("transformer.layers.*.attention_norm", "v.blk.*.ln1"),
        ("transformer.layers.*.ffn_norm", "v.blk.*.ln2"),
        ("transformer.layers.*.attention.v_proj", "v.blk.*.attn_v"),
        ("transformer.layers.*.attention.o_proj", "v.blk.*.attn_out"),
        ("transformer.layers.*.feed_forward.gate_proj", "v.blk.*.ffn_gate"),
        ("transformer.layers.*.feed_forward.up_proj", "v.blk.*.ffn_up"),
        ("transformer.layers.*.feed_forward.down_proj", "v.blk.*.ffn_down"),
    ] {
        naming.add(format!("vision_tower.{hf}"), gguf);
    }
    for part in ["q", "k"] {
        let (hf, gguf) = (format!("transformer.layers.*.attention.{part}_proj"), format!("v.blk.*.attn_{part}"));
        naming.set(format!("vision_tower.{hf}"), gguf, Transform::Rope { heads, dims });
    }
    for (hf, gguf) in [
        ("norm", "mm.input_norm"),
        ("patch_merger.merging_layer", "mm.patch_merger"),
        ("linear_1", "mm.1"),
        ("linear_2", "mm.2"),
    ] {
        naming.add(format!("multi_modal_projector.{hf}"), gguf);
    }
}
