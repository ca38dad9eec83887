// Coefficients that mix the streams of a model with several streams (AltUp, Baykal et al. 2023).
// They are linear in the modalities of a token.
const STREAMS: u32 = 4u;

// Logits of the modalities, [rows, modalities_pitch].
@group(0) @binding(0) var<storage, read> modalities: array<f32>;
// [coefficients, STREAMS]
@group(0) @binding(1) var<storage, read> map: array<vec4<f32>>;

fn modalities_of(row: u32, pitch: u32) -> vec4<f32> {
    let at = row * pitch;
    return tanh(vec4<f32>(modalities[at], modalities[at + 1u], modalities[at + 2u], modalities[at + 3u]));
}
