//! Metadata of a synthetic model, with a tokenizer that any reader accepts: byte-level BPE over the 256 bytes, padded to the
//! vocabulary with tokens that text never encodes to.

use super::{
    options::SynthOptions,
    plan::{NORM_EPS, SynthPlan},
    shape::{SynthFamily, SynthShape},
};
use crate::{
    format::{Array, Metadata, Value},
    quant::TensorType,
};

/// `tokenizer.ggml.token_type`: ordinary, control, unused.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;

pub(super) fn metadata(plan: &SynthPlan, options: &SynthOptions) -> Metadata {
    let shape = &plan.shape;
    let mut metadata = Metadata::new(&options.out);
    let architecture = shape.architecture();
    let text = |text: &str| Value::String(text.to_owned());
    // No size of a shape comes near 2^32.
    let size = |size: usize| Value::U32(size as u32);

    metadata.set("general.architecture", text(architecture));
    metadata.set("general.type", text("model"));
    metadata.set("general.name", text(&format!("synthetic {}", shape.name)));
    metadata.set("general.file_type", Value::U32(file_type(plan.ty)));
    metadata.set("general.quantization_version", Value::U32(2));

    let mut set = |key: &str, value: Value| metadata.set(format!("{architecture}.{key}"), value);
    set("block_count", size(shape.n_layer));
    set("context_length", size(shape.context + if shape.family == SynthFamily::Opt { 2 } else { 0 }));
    set("embedding_length", size(shape.d_model));
    set("attention.head_count", size(shape.n_head));
    if let Some(sizes) = &shape.mamba2 {
        super::mamba2::set_keys(shape, sizes, &mut |key, value| drop(set(key, value)));
    } else {
        set("feed_forward_length", size(shape.latent.map_or(shape.n_ff, |sizes| sizes.first_ff)));
        set("attention.head_count_kv", size(shape.n_kv_head));
    }
    if let Some(sizes) = &shape.latent {
        super::latent::set_keys(sizes, &mut |key, value| drop(set(key, value)));
    }
    set("vocab_size", size(shape.n_vocab));
    if let Some(moe) = shape.moe {
        set("expert_count", size(moe.experts));
        set("expert_used_count", size(moe.used));
    }
    if shape.family.layer_norm() {
        set("attention.layer_norm_epsilon", Value::F32(NORM_EPS));
    } else {
        set("attention.layer_norm_rms_epsilon", Value::F32(NORM_EPS));
    }
    if shape.family != SynthFamily::Opt {
        let (dims, base) = match shape.family {
            SynthFamily::GptOss => (shape.head_dim(), 150_000.0),
            SynthFamily::Qwen35 => (shape.head_dim() / 4, 10_000_000.0),
            SynthFamily::Gemma4 => (2 * shape.head_dim(), 1e6),
            SynthFamily::DeepSeek => (shape.latent.map_or(0, |sizes| sizes.rotated), 1e6),
            SynthFamily::SmallThinker => (shape.head_dim(), 1.5e6),
            _ => (shape.head_dim(), 10_000.0),
        };
        set("rope.dimension_count", size(dims));
        set("rope.freq_base", Value::F32(base));
    }
    if shape.family == SynthFamily::Gemma4 {
        super::gemma4::set_keys(shape, &mut |key, value| drop(set(key, value)));
    } else if shape.wide_head.is_some() {
        set("attention.key_length", size(shape.head_dim()));
        set("attention.value_length", size(shape.head_dim()));
    }
    set_family_keys(shape, &mut |key, value| drop(set(key, value)));
    let activation = match (shape.relu, shape.family) {
        (false, SynthFamily::GptOss) => "swiglu_oai",
        (false, SynthFamily::Gemma4) => "gelu_pytorch_tanh",
        (false, _) => "silu",
        (true, SynthFamily::Bamboo) => "drelu",
        (true, SynthFamily::NemotronH) => "relu2",
        (true, _) => "relu",
    };
    set("hidden_activation", text(activation));

    if plan.predictor_rank.is_some() {
        metadata.set("powerinfer.sparse_threshold", Value::F32(0.0));
    }
    metadata.set("thermocline.synth.shape", text(shape.name));
    metadata.set("thermocline.synth.seed", Value::U64(plan.seed));
    if shape.relu {
        metadata.set("thermocline.synth.active", Value::F32(options.active as f32));
        metadata.set("thermocline.synth.hot_share", Value::F32(options.hot_fraction as f32));
        metadata.set("thermocline.synth.hot_firings", Value::F32(options.hot_firings as f32));
    }
    if plan.predictor_rank.is_some() {
        metadata.set("thermocline.synth.predictor_recall", Value::F32(options.recall as f32));
    }
    tokenizer(&mut metadata, shape.n_vocab);
    metadata
}

/// Keys that only some families have.
fn set_family_keys(shape: &SynthShape, set: &mut dyn FnMut(&str, Value)) {
    let size = |size: usize| Value::U32(size as u32);
    let text = |text: &str| Value::String(text.to_owned());
    if shape.shared_ff.is_some() || shape.family == SynthFamily::SmallThinker {
        set("expert_feed_forward_length", size(shape.n_ff));
    }
    if let Some(shared) = shape.shared_ff {
        set("expert_shared_feed_forward_length", size(shared));
    }
    if shape.router_scale() != 1.0 {
        // Sigmoid; the sum of the chosen is 1, times the scale.
        set("expert_gating_func", size(2));
        set("expert_weights_norm", Value::Bool(true));
        set("expert_weights_scale", Value::F32(shape.router_scale()));
        set("expert_shared_count", size(1));
    }
    if shape.family == SynthFamily::SmallThinker {
        set("expert_gating_func", size(2));
        set("attention.sliding_window", size(4096));
    }
    if let Some(sizes) = shape.delta_net {
        set("full_attention_interval", size(sizes.interval));
        set("ssm.conv_kernel", size(sizes.taps));
        set("ssm.state_size", size(sizes.head_dim));
        set("ssm.group_count", size(sizes.k_heads));
        set("ssm.time_step_rank", size(sizes.v_heads));
        set("ssm.inner_size", size(sizes.values()));
        // Rotated pairs of text, height and width, a third each, for pictures.
        let pairs = shape.head_dim() / 8;
        let sections = [pairs.div_ceil(3), pairs.div_ceil(3), pairs - 2 * pairs.div_ceil(3), 0];
        set("rope.dimension_sections", Value::Array(Array::I32(sections.map(|pairs| pairs as i32).to_vec())));
    }
    if shape.family == SynthFamily::GptOss {
        set("attention.sliding_window", size(128));
        set("expert_feed_forward_length", size(shape.n_ff));
        set("rope.scaling.type", text("yarn"));
        set("rope.scaling.factor", Value::F32(32.0));
        set("rope.scaling.original_context_length", size(shape.context / 32));
    }
    if shape.family == SynthFamily::Falcon {
        set("tensor_data_layout", text("jploski"));
    }
}

fn tokenizer(metadata: &mut Metadata, n_vocab: usize) {
    let mut tokens = vec!["<s>".to_owned(), "</s>".to_owned()];
    let mut types = vec![CONTROL, CONTROL];
    tokens.extend((0..=255).map(|byte| String::from(byte_char(byte))));
    let space = byte_char(b' ');
    // Readers want a merge.
    tokens.push(format!("{space}{space}"));
    types.resize(tokens.len(), NORMAL);
    tokens.extend((tokens.len()..n_vocab).map(|id| format!("<unused_{id}>")));
    types.resize(tokens.len(), UNUSED);

    metadata.set("tokenizer.ggml.model", Value::String("gpt2".to_owned()));
    metadata.set("tokenizer.ggml.pre", Value::String("gpt-2".to_owned()));
    metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    metadata.set("tokenizer.ggml.token_type", Value::Array(Array::I32(types)));
    metadata.set("tokenizer.ggml.merges", Value::Array(Array::String(vec![format!("{space} {space}")])));
    metadata.set("tokenizer.ggml.bos_token_id", Value::U32(0));
    metadata.set("tokenizer.ggml.eos_token_id", Value::U32(1));
    metadata.set("tokenizer.ggml.add_bos_token", Value::Bool(false));
}

/// The printable character that byte-level BPE writes for a byte: itself for printable Latin-1, else the next unused one
/// from U+0100.
fn byte_char(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&byte| !printable(byte)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// llama.cpp's number for a file whose matrices have this type.
fn file_type(ty: TensorType) -> u32 {
    match ty {
        TensorType::F16 => 1,
        TensorType::Q4_0 => 2,
        TensorType::Q4_1 => 3,
        TensorType::Q8_0 => 7,
        TensorType::Q5_0 => 8,
        TensorType::Q5_1 => 9,
        TensorType::Q4_K => 14,
        TensorType::Q5_K => 16,
        TensorType::Q6_K => 18,
        TensorType::BF16 => 32,
        TensorType::TQ1_0 => 36,
        TensorType::TQ2_0 => 37,
        TensorType::MXFP4 => 38,
        TensorType::Q1_0 => 40,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_char_is_distinct_for_every_byte() {
        let chars: std::collections::HashSet<char> = (0..=255).map(byte_char).collect();
        assert_eq!(chars.len(), 256);
        assert_eq!((byte_char(b' '), byte_char(b'\n'), byte_char(b'a')), ('Ġ', 'Ċ', 'a'));
    }
}
