// The weights are scale or -scale. The Rust file of the same name describes the layout.
#include "signs.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<u32>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;

fn load8(row: u32, chunk: u32, i: u32, chunks: u32) -> Weights8 {
    // A set bit means +1.
    let signs = ~weight_main[row * chunks + chunk] >> (i * 8u);
    let blocks = chunks / 4u;
    let scales = unpack2x16float(weight_aux[row * ((blocks + 1u) / 2u) + chunk / 8u]);
    let scale = select(scales.x, scales.y, chunk / 4u % 2u == 1u);
    return Weights8(signed4(vec4<u32>(1u), signs), signed4(vec4<u32>(1u), signs >> 4u), scale, 0.0);
}
