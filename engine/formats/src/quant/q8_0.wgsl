// The weights are `scale * code`. The Rust file of the same name describes the layout.
#include "load8.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;

fn columns8(i: u32) -> vec2<u32> {
    return vec2<u32>(2u * i, 2u * i + 1u);
}

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    let codes = weight_main[(row * chunks + chunk) * 4u + i];
    let scales = unpack2x16float(weight_aux[row * ((chunks + 1u) / 2u) + chunk / 2u]);
    let scale = select(scales.x, scales.y, chunk % 2u == 1u);
    return Weights8(vec4<f32>(unpack4xI8(codes.x)), vec4<f32>(unpack4xI8(codes.y)), scale, 0.0);
}

fn dot8_packed(row: u32, chunk: u32, i: u32, chunks: u32, x: PackedInput) -> f32 {
    let codes = weight_main[(row * chunks + chunk) * 4u + i];
    let scales = unpack2x16float(weight_aux[row * ((chunks + 1u) / 2u) + chunk / 2u]);
    let sum = dot4I8Packed(codes.x, x.low) + dot4I8Packed(codes.y, x.high);
    return select(scales.x, scales.y, chunk % 2u == 1u) * f32(sum);
}
