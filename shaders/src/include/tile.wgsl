// Products of a tile of rows of weights with a tile of rows of activations. Both sides pass through
// shared memory chunk by chunk, with decoded weights. Each invocation computes 8 rows of 4 tokens,
// so that a number from shared memory serves four or eight products. The kernel includes
// weights.wgsl, and defines `x_row`: the start of a token's row of activations.
#include "lane.wgsl"

// Tokens per tile. A tile has WORKGROUP_SIZE / 2 rows.
const TOKENS: u32 = 64u;

@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;

// [rows, 8 vec4 of columns] and [tokens, 8 vec4 of columns]. `place` permutes the vec4 of a row, so
// that neighbours are in different banks. WORKGROUP_SIZE is a multiple of 16 and at most 128.
var<workgroup> weight_tile: array<vec4<f32>, 512>;
var<workgroup> x_tile: array<vec4<f32>, 512>;

fn place(row: u32, column: u32) -> u32 {
    return row * 8u + (column ^ (row % 8u));
}

// `tile_row` and `tile_token` give the rows and tokens of an invocation in the tile.
fn tile_row(index: u32, i: u32) -> u32 {
    return index % (WORKGROUP_SIZE / 16u) + WORKGROUP_SIZE / 16u * i;
}

fn tile_token(index: u32, j: u32) -> u32 {
    return index / (WORKGROUP_SIZE / 16u) + 16u * j;
}

// The products of rows from first_row on with tokens from first_token on: four tokens per row of
// the invocation. Past the last row or token, that row or token is repeated. All invocations of a
// workgroup call it.
fn tile_product(
    index: u32,
    first_row: u32,
    last_row: u32,
    first_token: u32,
    last_token: u32,
    chunks: u32,
) -> array<vec4<f32>, 8> {
    var sums: array<vec4<f32>, 8>;
    for (var chunk = 0u; chunk < chunks; chunk += 1u) {
        for (var item = index; item < WORKGROUP_SIZE * 2u; item += WORKGROUP_SIZE) {
            let row = item / 4u;
            let w = load8(min(first_row + row, last_row), chunk, item % 4u, chunks);
            let columns = columns8(item % 4u);
            weight_tile[place(row, columns.x)] = w.low * w.scale + w.offset;
            weight_tile[place(row, columns.y)] = w.high * w.scale + w.offset;
        }
        for (var item = index; item < TOKENS * 8u; item += WORKGROUP_SIZE) {
            let token = item / 8u;
            x_tile[place(token, item % 8u)] = x[x_row(min(first_token + token, last_token)) + chunk * 8u + item % 8u];
        }
        workgroupBarrier();
        for (var column = 0u; column < 8u; column += 1u) {
            let a = x_tile[place(tile_token(index, 0u), column)];
            let b = x_tile[place(tile_token(index, 1u), column)];
            let c = x_tile[place(tile_token(index, 2u), column)];
            let d = x_tile[place(tile_token(index, 3u), column)];
            let tokens = transpose(mat4x4<f32>(a, b, c, d));
            for (var i = 0u; i < 8u; i += 1u) {
                sums[i] += tokens * weight_tile[place(tile_row(index, i), column)];
            }
        }
        workgroupBarrier();
    }
    return sums;
}
