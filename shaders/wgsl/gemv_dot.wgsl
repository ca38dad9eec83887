// product.wgsl's equation for one token whose activations are quantised to eight bits (quantise_q8): integer products, four at
// a time, scaled chunk by chunk. Grid: groups of ROWS rows, in two dimensions; tokens.
#include "lane.wgsl"
#include "product.wgsl"
#include "rows.wgsl"
#include "weights.wgsl"

// Each activation is read once for ROWS rows; at most 16.
override ROWS: u32 = 4u;

// Per token and chunk eight words of codes and one with the scale.
@group(0) @binding(2) var<storage, read> x: array<u32>;

struct Piece {
    first: u32,
    // Index of 8 weights in the row: chunk `item / 4`, part `item % 4` of it.
    item: u32,
    input: PackedInput,
    scale: f32,
}

fn row_dot(r: u32, piece: Piece) -> f32 {
    let row = min(piece.first + r, params.rows - 1u);
    return piece.scale * dot8_packed(row, piece.item / 4u, piece.item % 4u, params.chunks, piece.input);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn gemv_dot(
#include "builtins.wgsl"
) {
    let lane = lane_of(builtins);
    let first = (builtins.workgroup.y * params.stride + builtins.workgroup.x) * ROWS;
    let token = builtins.workgroup.z;
    // Rows past the end are computed as the last one and not written: the barriers stay in uniform control flow.
    var sums = array<vec4<f32>, SUMS>();
    for (var item = lane.index; item < params.chunks * 4u; item += WORKGROUP_SIZE) {
        let chunk = item / 4u;
        let at = (token * params.chunks + chunk) * 9u;
        let columns = columns8(item % 4u) + at;
        let low = x[columns.x];
        let high = x[columns.y];
        let input = PackedInput(low, high, dot4I8Packed(low, 0x01010101u), dot4I8Packed(high, 0x01010101u));
        sums = add_rows(sums, Piece(first, item, input, bitcast<f32>(x[at + 8u])));
    }
    let total = workgroup_sums(sums, ROWS, lane);
    if lane.index < ROWS {
        finish(token, first + lane.index, total);
    }
}
