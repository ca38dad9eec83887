//! Descriptions of the shapes' architectures: metadata keys, and the optional tensors that exist.
//! The families request the tensors themselves.

use super::{
    draft::{EXPERTS, ShapeDraft},
    plan::NORM_EPS,
    shape::SynthShape,
};
use thermocline_base::error::{Error, Result};
use thermocline_formats::format::{Array, Value};

/// Biases of attention's matrices.
const ATTENTION_BIASES: [&str; 4] = ["attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_output.bias"];
/// Norms of each head's queries and keys.
const HEAD_NORMS: [&str; 2] = ["attn_q_norm.weight", "attn_k_norm.weight"];
/// Number of taps of every short convolution.
const TAPS: usize = 4;

/// Describes Llama, dense or with experts.
pub(super) fn llama(shape: &SynthShape, draft: &mut ShapeDraft) -> Result<()> {
    draft.rms_and_rope(shape.narrow_head(), 10_000.0);
    if shape.moe.is_some() {
        draft.have(&EXPERTS);
    }
    Ok(())
}

/// Describes OPT. Its files count two padding rows of positions as context.
pub(super) fn opt(shape: &SynthShape, draft: &mut ShapeDraft) -> Result<()> {
    draft.size("context_length", shape.context + 2);
    draft.rows("position_embd.weight", shape.context + 2);
    draft.layer_norms(&["attn_norm.bias", "ffn_norm.bias", "output_norm.bias"]);
    draft.have(&ATTENTION_BIASES);
    draft.have(&["ffn_up.bias", "ffn_down.bias", "ffn_down_t.bias"]);
    Ok(())
}

/// Describes Falcon 40B and larger.
pub(super) fn falcon(shape: &SynthShape, draft: &mut ShapeDraft) -> Result<()> {
    draft.layer_norms(&["attn_norm.bias", "attn_norm_2.bias", "output_norm.bias"]);
    draft.rope(shape.narrow_head(), 10_000.0);
    draft.have(&["attn_norm_2.weight", "attn_qkv.weight"]);
    draft.text("tensor_data_layout", "jploski");
    Ok(())
}

/// Describes gpt-oss.
pub(super) fn gpt_oss(shape: &SynthShape, draft: &mut ShapeDraft, head: usize) -> Result<()> {
    draft.rms_and_rope(head, 150_000.0);
    draft.head(head);
    draft.size("attention.sliding_window", 128);
    draft.size("expert_feed_forward_length", shape.n_ff);
    draft.text("rope.scaling.type", "yarn");
    draft.float("rope.scaling.factor", 32.0);
    draft.size("rope.scaling.original_context_length", shape.context / 32);
    draft.have(&ATTENTION_BIASES);
    draft.have(&EXPERTS);
    draft.have(&["attn_sinks.weight", "ffn_gate_inp.bias"]);
    draft.have(&["ffn_gate_exps.bias", "ffn_up_exps.bias", "ffn_down_exps.bias"]);
    Ok(())
}

/// Describes Qwen 3.5. The array holds `[key heads, value heads, elements of a head]` of its delta
/// nets. `head` is the width of an attention head.
pub(super) fn qwen35(
    shape: &SynthShape,
    draft: &mut ShapeDraft,
    [k_heads, v_heads, head_dim]: [usize; 3],
    head: usize,
) -> Result<()> {
    draft.rms_and_rope(head / 4, 10_000_000.0);
    draft.head(head);
    draft.shared_expert(shape);
    for (key, size) in [
        ("full_attention_interval", 4),
        ("ssm.conv_kernel", TAPS),
        ("ssm.state_size", head_dim),
        ("ssm.group_count", k_heads),
        ("ssm.time_step_rank", v_heads),
        ("ssm.inner_size", v_heads * head_dim),
    ] {
        draft.size(key, size);
    }
    // Rotated pairs for the positions of text, height and width in pictures, a third each.
    let pairs = head / 8;
    let sections = [pairs.div_ceil(3), pairs.div_ceil(3), pairs - 2 * pairs.div_ceil(3), 0];
    draft.set("rope.dimension_sections", Value::Array(Array::I32(sections.map(|pairs| pairs as i32).to_vec())));
    draft.have(&HEAD_NORMS);
    if shape.moe.is_some() {
        draft.have(&EXPERTS);
        draft.have(&["ffn_gate_inp_shexp.weight", "ffn_gate_shexp.weight"]);
    }
    Ok(())
}

/// Describes Gemma 4 with the proportions of E4B. Of every six layers, the last has no window and
/// heads twice as wide. The last 18 of 42 layers read keys and values of earlier layers. A layer of
/// each kind precedes them.
pub(super) fn gemma4(shape: &SynthShape, draft: &mut ShapeDraft, head: usize) -> Result<()> {
    const INTERVAL: usize = 6;
    draft.rms_and_rope(2 * head, 1e6);
    for key in ["attention.key_length", "attention.value_length"] {
        draft.size(key, 2 * head);
        draft.size(&format!("{key}_swa"), head);
    }
    draft.size("rope.dimension_count_swa", head);
    draft.float("rope.freq_base_swa", 10_000.0);
    draft.size("attention.sliding_window", 512);
    let windowed = (1..=shape.n_layer).map(|layer| !layer.is_multiple_of(INTERVAL)).collect();
    draft.set("attention.sliding_window_pattern", Value::Array(Array::Bool(windowed)));
    let readers = (shape.n_layer * 18 / 42).min(shape.n_layer.saturating_sub(INTERVAL));
    draft.size("attention.shared_kv_layers", readers);
    // E4B has inputs of 256 elements and a width of 2,560.
    draft.size("embedding_length_per_layer_input", shape.d_model / 10 / 32 * 32);
    draft.float("final_logit_softcapping", 30.0);
    draft.have(&HEAD_NORMS);
    draft.have(&["attn_v.weight", "rope_freqs.weight"]);
    Ok(())
}

/// Mixer of each layer, and the sizes of the Mamba-2 layers.
pub(super) struct Mamba2Sizes {
    /// One letter per layer: `M` for Mamba-2, `*` for attention, `E` for experts.
    pub(super) mixers: &'static str,
    pub(super) heads: usize,
    /// Number of elements of a head.
    pub(super) head_dim: usize,
    /// Number of groups of heads with the same `B` and `C`.
    pub(super) groups: usize,
    /// Number of elements of the state per element of a head.
    pub(super) state: usize,
}

/// Describes Nemotron H with experts.
pub(super) fn nemotron_h(shape: &SynthShape, draft: &mut ShapeDraft, sizes: &Mamba2Sizes, head: usize) -> Result<()> {
    let Some(mixers) = sizes.mixers.as_bytes().get(..shape.n_layer) else {
        let expected = format!("at most {}, the number of layers of {}", sizes.mixers.len(), shape.name);
        return Err(Error::invalid("layers", expected, shape.n_layer));
    };
    let where_it_is = |mixer: u8, size: usize| {
        Value::Array(Array::U32(mixers.iter().map(|at| if *at == mixer { size as u32 } else { 0 }).collect()))
    };
    draft.set("attention.head_count_kv", where_it_is(b'*', shape.n_kv_head));
    draft.set("feed_forward_length", where_it_is(b'E', shape.n_ff));
    for (key, size) in [
        ("ssm.conv_kernel", TAPS),
        ("ssm.state_size", sizes.state),
        ("ssm.group_count", sizes.groups),
        ("ssm.inner_size", sizes.heads * sizes.head_dim),
        ("ssm.time_step_rank", sizes.heads),
    ] {
        draft.size(key, size);
    }
    // llama.cpp requires this key, too.
    draft.float("attention.layer_norm_epsilon", NORM_EPS);
    draft.set("rope.scaling.finetuned", Value::Bool(false));
    draft.rms_and_rope(head, 10_000.0);
    draft.head(head);
    draft.shared_expert(shape);
    draft.sigmoid_router(2.5);
    draft.have(&EXPERTS[1..]);
    draft.have(&["ssm_conv1d.bias"]);
    Ok(())
}

/// Sizes of latent attention (MLA), and of the first layer's FFN.
pub(super) struct LatentSizes {
    /// Number of elements of the compressed queries.
    pub(super) queries: usize,
    /// Number of elements of the compressed keys and values.
    pub(super) keys: usize,
    /// Number of elements of a key that are not rotated.
    pub(super) plain: usize,
    /// Number of elements of a key that are rotated, the same for all heads.
    pub(super) rotated: usize,
    /// Number of elements of a value.
    pub(super) value: usize,
    /// Number of neurons of the first layer, which has no experts.
    pub(super) first_ff: usize,
}

/// Describes GLM 4.7 Flash, a DeepSeek V3 with few experts.
pub(super) fn deepseek2(shape: &SynthShape, draft: &mut ShapeDraft, sizes: &LatentSizes) -> Result<()> {
    draft.size("feed_forward_length", sizes.first_ff);
    for (key, size) in [
        ("leading_dense_block_count", 1),
        ("attention.q_lora_rank", sizes.queries),
        ("attention.kv_lora_rank", sizes.keys),
        ("attention.key_length", sizes.keys + sizes.rotated),
        ("attention.value_length", sizes.keys),
        ("attention.key_length_mla", sizes.plain + sizes.rotated),
        ("attention.value_length_mla", sizes.value),
        ("expert_group_count", 1),
        ("expert_group_used_count", 1),
    ] {
        draft.size(key, size);
    }
    draft.rms_and_rope(sizes.rotated, 1e6);
    draft.shared_expert(shape);
    draft.sigmoid_router(1.8);
    draft.choice.dense_layers = 1;
    draft.have(&EXPERTS);
    draft.have(&["ffn_gate_shexp.weight", "attn_q_a.weight", "attn_k_b.weight", "attn_v_b.weight"]);
    Ok(())
}

/// Describes SmallThinker.
pub(super) fn smallthinker(shape: &SynthShape, draft: &mut ShapeDraft, head: usize) -> Result<()> {
    draft.rms_and_rope(head, 1.5e6);
    draft.head(head);
    draft.size("expert_feed_forward_length", shape.n_ff);
    draft.size("expert_gating_func", 2);
    draft.size("attention.sliding_window", 4096);
    draft.have(&EXPERTS);
    Ok(())
}
