// Every element is a weight. The kernel does not read `aux`. The layout is in `device.rs`.
#include "load8.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;

fn columns8(i: u32) -> vec2<u32> {
    return vec2<u32>(i, i + 4u);
}

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    let at = (row * chunks + chunk) * 8u + i;
    return Weights8(weight_main[at], weight_main[at + 4u], 1.0, 0.0);
}
