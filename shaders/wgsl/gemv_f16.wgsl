// y = W x for one token: W [rows, cols] in F16, cols even. One workgroup per row; rows beyond
// 65,535 go to the grid's second dimension.
#include "half.wgsl"
#include "lane.wgsl"
#include "reduce.wgsl"

struct Params {
    rows: u32,
    cols: u32,
    // Workgroups in one row of the grid.
    stride: u32,
}

var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> weight: array<HalfPair>;
@group(0) @binding(1) var<storage, read> x: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn gemv_f16(builtins: Builtins) {
    let lane = lane_of(builtins);
    let row = builtins.workgroup.y * params.stride + builtins.workgroup.x;
    // The same for the whole workgroup, so that the barriers below stay in uniform control flow.
    let inside = row < params.rows;
    let pairs = params.cols / 2u;
    var sum = 0.0;
    if inside {
        for (var i = lane.index; i < pairs; i += WORKGROUP_SIZE) {
            sum += dot(unpack_pair(weight[row * pairs + i]), x[i]);
        }
    }
    let total = workgroup_sum(sum, lane);
    if inside && lane.index == 0u {
        y[row] = total;
    }
}
