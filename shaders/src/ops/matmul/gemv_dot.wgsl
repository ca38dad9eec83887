// product.wgsl's equation for one token with activations quantised to 8 bits (quantise_q8). Integer
// products, four at a time, are scaled per chunk. Grid: (groups of ROWS rows, in two dimensions;
// tokens).
#include "lane.wgsl"
#include "product.wgsl"
#include "rows.wgsl"
#include "weights.wgsl"

// Rows per workgroup, at most 16. Each activation is read once for all of them.
override ROWS: u32 = 4u;

// Per token and chunk: eight words of codes, and one word with the scale.
@group(0) @binding(2) var<storage, read> x: array<u32>;

struct Piece {
    first: u32,
    chunk: u32,
    // The first eight columns: part `part` of the chunk.
    part: u32,
    input: array<PackedInput, PARTS>,
    scale: f32,
}

fn row_dot(r: u32, piece: Piece) -> f32 {
    let row = min(piece.first + r, params.rows - 1u);
    var sum = dot8_packed(row, piece.chunk, piece.part, params.chunks, piece.input[0]);
    if PARTS > 1u {
        sum += dot8_packed(row, piece.chunk, piece.part + 1u, params.chunks, piece.input[1u % PARTS]);
    }
    if PARTS > 2u {
        sum += dot8_packed(row, piece.chunk, piece.part + 2u, params.chunks, piece.input[2u % PARTS]);
        sum += dot8_packed(row, piece.chunk, piece.part + 3u, params.chunks, piece.input[3u % PARTS]);
    }
    return piece.scale * sum;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn gemv_dot(
#include "builtins.wgsl"
) {
    let lane = lane_of(builtins);
    let first = (builtins.workgroup.y * params.stride + builtins.workgroup.x) * ROWS;
    let token = builtins.workgroup.z;
    // Rows past the end repeat the last row and are not written, so that barriers stay in uniform
    // control flow.
    var sums = array<vec4<f32>, SUMS>();
    for (var place = lane.index; place < params.chunks * (4u / PARTS); place += WORKGROUP_SIZE) {
        var piece: Piece;
        piece.first = first;
        piece.chunk = place / (4u / PARTS);
        piece.part = place % (4u / PARTS) * PARTS;
        let at = (token * params.chunks + piece.chunk) * 9u;
        piece.scale = bitcast<f32>(x[at + 8u]);
        for (var p = 0u; p < PARTS; p += 1u) {
            let columns = columns8(piece.part + p) + at;
            let low = x[columns.x];
            let high = x[columns.y];
            piece.input[p] = PackedInput(low, high, dot4I8Packed(low, 0x01010101u), dot4I8Packed(high, 0x01010101u));
        }
        sums = add_rows(sums, piece);
    }
    let total = workgroup_sums(sums, ROWS, lane);
    if lane.index < ROWS {
        finish(token, first + lane.index, total);
    }
}
