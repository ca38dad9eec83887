// Products of a workgroup's ROWS rows with the activations of TOKENS tokens, at most four. With one
// token there are at most 16 rows, with several at most four. A token's sum has the same order
// alone and among others: an invocation takes the same columns, and each row and token has a sum of
// its own. The kernel defines `row_dot(r, piece)`: row r of the workgroup times the columns of the
// only token of a `Piece`, and `tokens_dot(r, piece)`: the same row times those of up to four
// tokens.
#include "lane.wgsl"
#include "product.wgsl"
#include "rows.wgsl"

override ROWS: u32 = 4u;
override TOKENS: u32 = 1u;

// Adds the products to the sums: with one token one sum per row, with several four.
fn add_products(before: array<vec4<f32>, SUMS>, piece: Piece) -> array<vec4<f32>, SUMS> {
    if TOKENS == 1u {
        return add_rows(before, piece);
    }
    var sums = before;
    sums[0] += tokens_dot(0u, piece);
    if ROWS > 1u {
        sums[1] += tokens_dot(1u, piece);
    }
    if ROWS > 2u {
        sums[2] += tokens_dot(2u, piece);
    }
    if ROWS > 3u {
        sums[3] += tokens_dot(3u, piece);
    }
    return sums;
}

// Adds up the sums of all invocations and writes the products. Every invocation of the workgroup
// calls this function once. It writes no rows or tokens past the end.
fn finish_products(sums: array<vec4<f32>, SUMS>, first_row: u32, first_token: u32, lane: Lane) {
    let per_row = select(4u, 1u, TOKENS == 1u);
    let total = workgroup_sums(sums, ROWS * per_row, lane);
    let token = lane.index % per_row;
    if lane.index < ROWS * per_row && token < TOKENS {
        finish(first_token + token, first_row + lane.index / per_row, total);
    }
}
