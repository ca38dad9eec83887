// expert.wgsl's equation for many pairs, in the order and tiles of `group_slots`. A workgroup
// computes WORKGROUP_SIZE / 2 rows of a tile, grid (tiles; groups of rows, in two dimensions).
#include "expert.wgsl"
#include "weights.wgsl"
#include "tile.wgsl"

@group(0) @binding(4) var<storage, read> order: array<u32>;
@group(0) @binding(5) var<storage, read> tiles: array<u32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;

fn x_row(at: u32) -> u32 {
    return order[at] / params.pairs_per_row * (params.x_pitch / 4u);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn expert_gemm(
#include "builtins.wgsl"
) {
    let index = builtins.index;
    let tile = builtins.workgroup.x * 3u;
    // The expert is the same for the whole workgroup. Experts before the first bound one wrap
    // around and are too large, too.
    let expert = tiles[tile] - params.first_expert;
    if expert >= params.experts {
        return;
    }
    let first = tiles[tile + 1u];
    let end = tiles[tile + 2u];
    let first_row = (builtins.workgroup.z * params.stride + builtins.workgroup.y) * (WORKGROUP_SIZE / 2u);
    let rows = expert * params.rows;
    let last_row = rows + params.rows - 1u;
    let sums = tile_product(index, rows + first_row, last_row, first, end - 1u, params.chunks);
    for (var j = 0u; j < 4u; j += 1u) {
        let at = first + tile_token(index, j);
        if at >= end {
            continue;
        }
        for (var i = 0u; i < 8u; i += 1u) {
            finish(order[at], expert, first_row + tile_row(index, i), sums[i][j]);
        }
    }
}
