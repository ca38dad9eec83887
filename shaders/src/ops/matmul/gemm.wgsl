// product.wgsl's equation for many tokens. A workgroup computes WORKGROUP_SIZE / 2 rows of 64
// tokens, grid (groups of tokens; groups of rows, in two dimensions).
#include "product.wgsl"
#include "weights.wgsl"
#include "tile.wgsl"

fn x_row(token: u32) -> u32 {
    return token * (params.x_pitch / 4u);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn gemm(
#include "builtins.wgsl"
) {
    let index = builtins.index;
    let first_token = builtins.workgroup.x * TOKENS;
    let first_row = (builtins.workgroup.z * params.stride + builtins.workgroup.y) * (WORKGROUP_SIZE / 2u);
    let sums = tile_product(index, first_row, params.rows - 1u, first_token, params.tokens - 1u, params.chunks);
    for (var i = 0u; i < 8u; i += 1u) {
        for (var j = 0u; j < 4u; j += 1u) {
            finish(first_token + tile_token(index, j), first_row + tile_row(index, i), sums[i][j]);
        }
    }
}
