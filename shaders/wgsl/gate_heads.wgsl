// heads = heads * sigmoid(gate), heads [rows, cols] of attention. Gates stand behind the queries of their head, [query | gate] of
// head_dim elements each. One invocation per element, in a two-dimensional grid.
#include "lane.wgsl"

struct Params {
    cols: u32,
    // Elements from one row to the next.
    pitch: u32,
    rows: u32,
    // Invocations in one row of the grid: workgroups.x * WORKGROUP_SIZE.
    stride: u32,
    head_dim: u32,
    // Elements from one row of queries and gates to the next.
    gate_pitch: u32,
}

var<immediate> params: Params;
@group(0) @binding(0) var<storage, read_write> heads: array<f32>;
@group(0) @binding(1) var<storage, read> gates: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn gate_heads(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.y * params.stride + id.x;
    let row = i / params.cols;
    if row >= params.rows {
        return;
    }
    let col = i % params.cols;
    let head = col / params.head_dim;
    let gate = gates[row * params.gate_pitch + (head + 1u) * params.head_dim + col];
    heads[row * params.pitch + col] *= 1.0 / (1.0 + exp(-gate));
}
