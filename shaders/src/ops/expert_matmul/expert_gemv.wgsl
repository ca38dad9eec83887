// expert.wgsl's equation pair by pair: grid (groups of ROWS rows, in two dimensions; pairs).
#include "expert.wgsl"
#include "lane.wgsl"
#include "rows.wgsl"
#include "weights.wgsl"

// Rows per workgroup, at most 16. Each activation is read once for all of them.
override ROWS: u32 = 4u;

@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> ids: array<u32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

struct Piece {
    expert: u32,
    first: u32,
    // Index of 8 weights in the row: chunk `item / 4`, part `item % 4` of it.
    item: u32,
    input: Input8,
}

fn row_dot(r: u32, piece: Piece) -> f32 {
    let row = piece.expert * params.rows + min(piece.first + r, params.rows - 1u);
    return dot8(load8(row, piece.item / 4u, piece.item % 4u, params.chunks), piece.input);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn expert_gemv(
#include "builtins.wgsl"
) {
    let lane = lane_of(builtins);
    let pair = builtins.workgroup.z;
    let first = (builtins.workgroup.y * params.stride + builtins.workgroup.x) * ROWS;
    // The expert is the same for the whole workgroup. Experts before the first bound one wrap
    // around and are too large, too.
    let expert = ids[pair] - params.first_expert;
    if expert >= params.experts || pair >= params.pairs {
        return;
    }
    // Rows past the end repeat the last row and are not written, so that barriers stay in uniform
    // control flow.
    var sums = array<vec4<f32>, SUMS>();
    for (var item = lane.index; item < params.chunks * 4u; item += WORKGROUP_SIZE) {
        let chunk = item / 4u;
        let columns = columns8(item % 4u) + (pair / params.pairs_per_row) * (params.x_pitch / 4u) + chunk * 8u;
        let input = input8(x[columns.x], x[columns.y]);
        sums = add_rows(sums, Piece(expert, first, item, input));
    }
    let total = workgroup_sums(sums, ROWS, lane);
    if lane.index < ROWS {
        finish(pair, expert, first + lane.index, total);
    }
}
