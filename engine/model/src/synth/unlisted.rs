//! Shapes for tests, of architectures that the list of shapes does not have.

use thermocline_formats::format::{Array, Value};

use super::{ExpertCounts, SynthShape, draft};
use crate::Activation;

/// Returns one shape per architecture.
///
/// # Panics
/// If the list of shapes has no `tiny-llama`.
#[allow(clippy::unwrap_used)]
pub fn shapes() -> [SynthShape; 5] {
    let of = |architecture, activation, describe| SynthShape {
        name: architecture,
        architecture,
        activation,
        describe,
        ..SynthShape::named("tiny-llama").unwrap()
    };
    let laguna = of("laguna", Activation::Silu, |shape, draft| {
        draft.rms_and_rope(64, 500_000.0);
        draft.shared_expert(shape);
        draft.sigmoid_router(2.0);
        draft.have(&draft::EXPERTS);
        draft.have(&["attn_q_norm.weight", "attn_k_norm.weight", "ffn_gate_shexp.weight"]);
        draft.rows("attn_gate.weight", shape.n_head);
        draft.choice.dense_layers = 1;
        Ok(())
    });
    [
        of("qwen3", Activation::Silu, |_, draft| {
            draft.rms_and_rope(64, 1e6);
            draft.have(&["attn_q_norm.weight", "attn_k_norm.weight"]);
            Ok(())
        }),
        of("gemma3", Activation::GeluTanh, |_, draft| {
            draft.rms_and_rope(64, 1e6);
            draft.size("attention.sliding_window", 16);
            draft.have(&["attn_q_norm.weight", "attn_k_norm.weight"]);
            Ok(())
        }),
        of("lfm2", Activation::Silu, |shape, draft| {
            let heads = (0..shape.n_layer).map(|layer| if layer == 2 { 2 } else { 0 });
            draft.set("attention.head_count_kv", Value::Array(Array::U32(heads.collect())));
            draft.rms_and_rope(64, 1e6);
            draft.size("shortconv.l_cache", 3);
            Ok(())
        }),
        of("nemotron", Activation::ReluSquared, |_, draft| {
            draft.layer_norms(&["attn_norm.bias", "ffn_norm.bias", "output_norm.bias"]);
            draft.rope(32, 1e4);
            Ok(())
        }),
        SynthShape { moe: Some(ExpertCounts { experts: 8, used: 2 }), shared_ff: Some(128), ..laguna },
    ]
}
