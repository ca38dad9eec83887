// heads = heads * sigmoid(gate), for the heads [rows, cols] of attention. With SOFTPLUS, heads =
// heads * ln(1 + e^gate). The gate of a head follows its query, [query | gate] with gate_width
// elements each. With OWN_GATES, the gates are in a row of their own from gate_first on, one per
// gate_width elements of heads. One invocation per element, in a two-dimensional grid.
#include "lane.wgsl"
#include "softplus.wgsl"

override OWN_GATES: bool = false;
override SOFTPLUS: bool = false;

struct Params {
    cols: u32,
    // Elements from one row to the next.
    pitch: u32,
    rows: u32,
    // Invocations in one row of the grid: workgroups.x * WORKGROUP_SIZE.
    stride: u32,
    gate_width: u32,
    // Elements from one row of queries and gates to the next.
    gate_pitch: u32,
    // Index of the first gate in a row of queries and gates.
    gate_first: u32,
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
    let unit = col / params.gate_width;
    let at = row * params.gate_pitch;
    var gate = 0.0;
    if OWN_GATES {
        gate = gates[at + params.gate_first + unit];
    } else {
        gate = gates[at + (unit + 1u) * params.gate_width + col];
    }
    var factor = 0.0;
    if SOFTPLUS {
        factor = softplus(gate);
    } else {
        factor = 1.0 / (1.0 + exp(-gate));
    }
    heads[row * params.pitch + col] *= factor;
}
