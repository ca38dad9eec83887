// The weights are 2^(e - 128) * value. The Rust file of the same name describes the layout.
#include "e2m1.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    let word = weight_main[row * chunks + chunk][i];
    let e = (weight_aux[row * ((chunks + 3u) / 4u) + chunk / 4u] >> (chunk % 4u * 8u)) & 255u;
    // The smallest two scales are subnormal and become 0.
    let scale = select(0.0, bitcast<f32>((max(e, 1u) - 1u) << 23u), e > 1u);
    let bytes = vec4<u32>(word, word >> 8u, word >> 16u, word >> 24u);
    return Weights8(values_of(bytes), values_of(bytes >> vec4<u32>(4u)), scale, 0.0);
}
