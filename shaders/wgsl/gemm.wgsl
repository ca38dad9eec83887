// product.wgsl's equation for many tokens: a workgroup computes WORKGROUP_SIZE / 2 rows of 64 tokens, grid (groups of tokens;
// groups of rows, in two dimensions). Chunk by chunk both sides go through shared memory, the weights decoded on the way, and
// every invocation computes 8 rows of 4 tokens, so that a number from shared memory serves four or eight products.
#include "lane.wgsl"
#include "product.wgsl"
#include "weights.wgsl"

const TOKENS: u32 = 64u;

@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;

// [rows, 8 vec4 of columns] and [tokens, the same]; the vec4 of a row are permuted by `place`, so that neighbours are in
// different banks. WORKGROUP_SIZE is a multiple of 16 and at most 128.
var<workgroup> weight_tile: array<vec4<f32>, 512>;
var<workgroup> x_tile: array<vec4<f32>, 512>;

fn place(row: u32, column: u32) -> u32 {
    return row * 8u + (column ^ (row % 8u));
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn gemm(builtins: Builtins) {
    let index = builtins.index;
    let rows = WORKGROUP_SIZE / 2u;
    let across = WORKGROUP_SIZE / 16u;
    let first_token = builtins.workgroup.x * TOKENS;
    let first_row = (builtins.workgroup.z * params.stride + builtins.workgroup.y) * rows;
    // The invocation's rows are own_row + across * i, its tokens own_token + 16 j.
    let own_row = index % across;
    let own_token = index / across;
    // Per row its four tokens.
    var sums: array<vec4<f32>, 8>;
    for (var chunk = 0u; chunk < params.chunks; chunk += 1u) {
        // Past the end is the last row or token again; `finish` leaves those out.
        for (var item = index; item < rows * 4u; item += WORKGROUP_SIZE) {
            let row = item / 4u;
            let w = quarter(min(first_row + row, params.rows - 1u), chunk, item % 4u, params.chunks);
            let columns = quarter_columns(item % 4u);
            weight_tile[place(row, columns.x)] = w.low * w.scale + w.offset;
            weight_tile[place(row, columns.y)] = w.high * w.scale + w.offset;
        }
        for (var item = index; item < TOKENS * 8u; item += WORKGROUP_SIZE) {
            let token = item / 8u;
            let at = min(first_token + token, params.tokens - 1u) * (params.x_pitch / 4u) + chunk * 8u;
            x_tile[place(token, item % 8u)] = x[at + item % 8u];
        }
        workgroupBarrier();
        for (var column = 0u; column < 8u; column += 1u) {
            let a = x_tile[place(own_token, column)];
            let b = x_tile[place(own_token + 16u, column)];
            let c = x_tile[place(own_token + 32u, column)];
            let d = x_tile[place(own_token + 48u, column)];
            let tokens = transpose(mat4x4<f32>(a, b, c, d));
            for (var i = 0u; i < 8u; i += 1u) {
                sums[i] += tokens * weight_tile[place(own_row + across * i, column)];
            }
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < 8u; i += 1u) {
        for (var j = 0u; j < 4u; j += 1u) {
            finish(first_token + own_token + 16u * j, first_row + own_row + across * i, sums[i][j]);
        }
    }
}
