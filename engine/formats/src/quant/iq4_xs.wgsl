// The weights are d * (scale - 32) * value. The Rust file of the same name describes the layout.
#include "iq4_values.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> weight_aux: array<vec2<u32>>;

fn scale_of(at: u32, chunk: u32) -> f32 {
    let head = weight_aux[at / 8u];
    let c = chunk % 8u;
    let scale = extractBits(head.y, c * 4u, 4u) | (extractBits(head.x, 16u + c * 2u, 2u) << 4u);
    return unpack2x16float(head.x).x * (f32(scale) - 32.0);
}

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    let at = row * chunks + chunk;
    return iq4_weights(weight_main[at][i], scale_of(at, chunk));
}

fn dot8_packed(row: u32, chunk: u32, i: u32, chunks: u32, x: PackedInput) -> f32 {
    let at = row * chunks + chunk;
    return scale_of(at, chunk) * f32(iq4_dot(weight_main[at][i], x));
}
