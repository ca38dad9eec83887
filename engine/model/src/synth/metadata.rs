//! Metadata of a synthetic model, with a tokenizer that any reader accepts: byte-level BPE over the
//! 256 bytes. It is padded to the vocabulary with tokens that no text is encoded to.

use super::{options::SynthOptions, plan::SynthPlan};
use thermocline_formats::{
    format::{Array, Metadata, Value},
    quant::TensorType,
};
use thermocline_text::{TokenKind, byte_char};

/// Returns the metadata of the file: the shape's keys, the options of generation, and the
/// tokenizer.
pub(super) fn metadata(plan: &SynthPlan, options: &SynthOptions) -> Metadata {
    let (shape, mut metadata) = (&plan.shape, plan.metadata.clone());
    if plan.predictor_rank.is_some() {
        metadata.set("powerinfer.sparse_threshold", Value::F32(0.0));
    }
    metadata.set("thermocline.synth.shape", Value::String(shape.name.to_owned()));
    metadata.set("thermocline.synth.seed", Value::U64(plan.seed));
    if shape.relu() {
        metadata.set("thermocline.synth.active", Value::F32(options.active as f32));
        metadata.set("thermocline.synth.hot_share", Value::F32(options.hot_fraction as f32));
        metadata.set("thermocline.synth.hot_firings", Value::F32(options.hot_firings as f32));
    }
    if plan.predictor_rank.is_some() {
        metadata.set("thermocline.synth.predictor_recall", Value::F32(options.recall as f32));
    }
    if let Some(agreement) = plan.agreement {
        metadata.set("thermocline.synth.draft_agreement", Value::F32(agreement as f32));
    }
    tokenizer(&mut metadata, shape.n_vocab);
    metadata
}

fn tokenizer(metadata: &mut Metadata, n_vocab: usize) {
    let mut tokens = vec!["<s>".to_owned(), "</s>".to_owned()];
    let mut types = vec![TokenKind::Control as i32; 2];
    tokens.extend((0..=255).map(|byte| String::from(byte_char(byte))));
    let space = byte_char(b' ');
    // Readers require at least one merge.
    tokens.push(format!("{space}{space}"));
    types.resize(tokens.len(), TokenKind::Normal as i32);
    tokens.extend((tokens.len()..n_vocab).map(|id| format!("<unused_{id}>")));
    types.resize(tokens.len(), TokenKind::Unused as i32);

    metadata.set("tokenizer.ggml.model", Value::String("gpt2".to_owned()));
    metadata.set("tokenizer.ggml.pre", Value::String("gpt-2".to_owned()));
    metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    metadata.set("tokenizer.ggml.token_type", Value::Array(Array::I32(types)));
    metadata.set("tokenizer.ggml.merges", Value::Array(Array::String(vec![format!("{space} {space}")])));
    metadata.set("tokenizer.ggml.bos_token_id", Value::U32(0));
    metadata.set("tokenizer.ggml.eos_token_id", Value::U32(1));
    metadata.set("tokenizer.ggml.add_bos_token", Value::Bool(false));
}

/// Returns llama.cpp's number for a file whose matrices have this type.
pub(super) fn file_type(ty: TensorType) -> u32 {
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
