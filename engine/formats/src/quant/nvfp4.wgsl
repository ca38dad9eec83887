// The weights are factor * scale / 2 * value with a scale for each half of a chunk and a factor for
// each row. The Rust file of the same name describes the layout.
#include "e2m1.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;

// Half the value of an E4M3 number: four bits of exponent with bias 7, three bits of fraction.
fn half_e4m3(bits: u32) -> f32 {
    let normal = bitcast<f32>(((((bits >> 3u) & 15u) + 119u) << 23u) | ((bits & 7u) << 20u));
    return select(f32(bits & 7u) / 1024.0, normal, (bits & 0x78u) != 0u);
}

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    let word = weight_main[row * chunks + chunk][i];
    let aux = row * (1u + (chunks + 1u) / 2u);
    let scales = weight_aux[aux + 1u + chunk / 2u] >> (chunk % 2u * 16u);
    let bytes = vec4<u32>(word, word >> 8u, word >> 16u, word >> 24u);
    return Weights8(
        values_of(bytes) * half_e4m3(scales),
        values_of(bytes >> vec4<u32>(4u)) * half_e4m3(scales >> 8u),
        bitcast<f32>(weight_aux[aux]),
        0.0,
    );
}
