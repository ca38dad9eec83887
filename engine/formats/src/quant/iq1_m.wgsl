// The weights are d * (2 scale + 1) * (value + shift) with a scale for each half of a chunk. The
// Rust file of the same name describes the layout.
#include "code_book_iq1.wgsl"

@group(0) @binding(0) var<storage, read> weight_main: array<u32>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;

fn point8(row: u32, chunk: u32, i: u32, chunks: u32) -> Point8 {
    let at = row * chunks + chunk;
    let aux = (at / 8u) * 6u;
    let c = chunk % 8u;
    let high = weight_aux[aux + c / 2u] >> (c % 2u * 16u + 4u * i);
    let low = (weight_main[at] >> (i * 8u)) & 255u;
    // Four 16-bit halves, each with four 3-bit scales and, above them, a quarter of the bits of d.
    let halves = vec2<u32>(weight_aux[aux + 4u], weight_aux[aux + 5u]);
    let quarters = ((halves >> vec2<u32>(12u)) & vec2<u32>(15u)) | ((halves >> vec2<u32>(28u)) << vec2<u32>(4u));
    let d = unpack2x16float(quarters.x | (quarters.y << 8u)).x;
    let scales = halves[c / 4u] >> (c / 2u % 2u * 16u + 3u * (2u * (c % 2u) + i / 2u));
    return Point8(
        low | ((high & 7u) << 8u),
        d,
        f32(2u * (scales & 7u) + 1u),
        select(0.125, -0.125, (high & 8u) != 0u),
    );
}
