// Every element is a weight. The kernel does not read `aux`. The layout is in `device.rs`.
#include "load8.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;

fn columns8(i: u32) -> vec2<u32> {
    return vec2<u32>(2u * i, 2u * i + 1u);
}

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    let pairs = weight_main[(row * chunks + chunk) * 4u + i];
    return Weights8(
        vec4<f32>(unpack2x16float(pairs.x), unpack2x16float(pairs.y)),
        vec4<f32>(unpack2x16float(pairs.z), unpack2x16float(pairs.w)),
        1.0,
        0.0,
    );
}
