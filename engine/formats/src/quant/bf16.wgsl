// The weights are the upper halves of floats. The kernel does not read `aux`. The layout is in
// `device.rs`.
#include "load8.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;

fn columns8(i: u32) -> vec2<u32> {
    return vec2<u32>(2u * i, 2u * i + 1u);
}

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    let pairs = weight_main[(row * chunks + chunk) * 4u + i];
    let even = bitcast<vec4<f32>>(pairs << vec4<u32>(16u));
    let odd = bitcast<vec4<f32>>(pairs & vec4<u32>(0xffff0000u));
    return Weights8(vec4<f32>(even.x, odd.x, even.y, odd.y), vec4<f32>(even.z, odd.z, even.w, odd.w), 1.0, 0.0);
}
