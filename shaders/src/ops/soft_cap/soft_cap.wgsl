// y = cap * tanh(y / cap) for y [rows, cols]. One invocation per element, in a two-dimensional
// grid.
#include "lane.wgsl"

struct Params {
    cols: u32,
    // Elements from one row to the next.
    pitch: u32,
    rows: u32,
    // Invocations in one row of the grid: workgroups.x * WORKGROUP_SIZE.
    stride: u32,
    cap: f32,
}

var<immediate> params: Params;
@group(0) @binding(0) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn soft_cap(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.y * params.stride + id.x;
    let row = i / params.cols;
    if row < params.rows {
        let at = row * params.pitch + i % params.cols;
        // On some drivers tanh is NaN above about 44. tanh(10) is already 1 to the last bit.
        y[at] = params.cap * tanh(clamp(y[at] / params.cap, -10.0, 10.0));
    }
}
