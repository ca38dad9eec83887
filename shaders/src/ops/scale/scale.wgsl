// x = factor * (x + DELTA_SCALE delta) when ADD_DELTA, else x = factor * x. Both are [rows, cols]
// with the same pitch. One invocation per element, in a two-dimensional grid.
#include "lane.wgsl"

override ADD_DELTA: bool = false;
override DELTA_SCALE: f32 = 1.0;

struct Params {
    cols: u32,
    // Elements from one row to the next.
    pitch: u32,
    rows: u32,
    // Invocations in one row of the grid: workgroups.x * WORKGROUP_SIZE.
    stride: u32,
    factor: f32,
}

var<immediate> params: Params;
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read> delta: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn scale(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.y * params.stride + id.x;
    let row = i / params.cols;
    if row < params.rows {
        let at = row * params.pitch + i % params.cols;
        var sum = x[at];
        if ADD_DELTA {
            sum += DELTA_SCALE * delta[at];
        }
        x[at] = params.factor * sum;
    }
}
