// The weights are scale * value. The Rust file of the same name describes the layout.
#include "iq4_values.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;

fn scale_of(row: u32, chunk: u32, chunks: u32) -> f32 {
    let scales = unpack2x16float(weight_aux[row * ((chunks + 1u) / 2u) + chunk / 2u]);
    return select(scales.x, scales.y, chunk % 2u == 1u);
}

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    return iq4_weights(weight_main[row * chunks + chunk][i], scale_of(row, chunk, chunks));
}

fn dot8_packed(row: u32, chunk: u32, i: u32, chunks: u32, x: PackedInput) -> f32 {
    return scale_of(row, chunk, chunks) * f32(iq4_dot(weight_main[row * chunks + chunk][i], x));
}
