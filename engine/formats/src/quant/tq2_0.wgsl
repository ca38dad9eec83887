// The weights are scale * (code - 1). The Rust file of the same name describes the layout.
#include "ternary_pairs.wgsl"

@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;
#include "super_block.wgsl"

fn scale_of(row: u32, chunk: u32, chunks: u32) -> f32 {
    return super_block(row, chunk, chunks, 0u).d;
}
