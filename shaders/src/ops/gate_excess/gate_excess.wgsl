// Replaces gates [rows, cols] by their excess over a threshold, in place. The threshold comes from
// the row's mean and standard deviation. One workgroup per row:
//   x = max(x - (mean(x) + deviations * sqrt(mean((x - mean(x))^2))), 0)
#include "lane.wgsl"
#include "reduce.wgsl"
#include "params.wgsl"

@group(0) @binding(0) var<storage, read_write> gates: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn gate_excess(
#include "builtins.wgsl"
) {
    let lane = lane_of(builtins);
    let row = builtins.workgroup.y * params.stride + builtins.workgroup.x;
    // The condition is the same for the whole workgroup.
    if row >= params.rows {
        return;
    }
    let start = row * params.pitch;
    let n = f32(params.cols);
    var sum = 0.0;
    for (var i = lane.index; i < params.cols; i += WORKGROUP_SIZE) {
        sum += gates[start + i];
    }
    let mean = workgroup_sum(sum, lane) / n;
    var squares = 0.0;
    for (var i = lane.index; i < params.cols; i += WORKGROUP_SIZE) {
        let centred = gates[start + i] - mean;
        squares += centred * centred;
    }
    let threshold = mean + params.deviations * sqrt(workgroup_sum(squares, lane) / n);
    for (var i = lane.index; i < params.cols; i += WORKGROUP_SIZE) {
        gates[start + i] = max(gates[start + i] - threshold, 0.0);
    }
}
