// y[t, y_offset + r] = W[r] . x[t] (+ bias[y_offset + r]) for few tokens: grid (groups of ROWS rows, in two dimensions;
// tokens). All invocations of a workgroup share its rows and split their columns.
#include "lane.wgsl"
#include "reduce.wgsl"
#include "weights.wgsl"

override HAS_BIAS: bool = false;
const ROWS: u32 = 4u;

struct Params {
    rows: u32,
    chunks: u32,
    tokens: u32,
    x_pitch: u32,
    y_pitch: u32,
    y_offset: u32,
    stride: u32,
}

var<immediate> params: Params;
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn gemv(builtins: Builtins) {
    let lane = lane_of(builtins);
    let token = builtins.workgroup.z;
    let first = (builtins.workgroup.y * params.stride + builtins.workgroup.x) * ROWS;
    // Rows past the end are computed as the last one and not written: the barriers stay in uniform control flow.
    var sums = array<f32, ROWS>();
    for (var chunk = lane.index; chunk < params.chunks; chunk += WORKGROUP_SIZE) {
        let at = (token * params.x_pitch) / 4u + chunk * 8u;
        var part: array<vec4<f32>, 8>;
        for (var i = 0u; i < 8u; i += 1u) {
            part[i] = x[at + i];
        }
        for (var r = 0u; r < ROWS; r += 1u) {
            sums[r] += chunk_dot(min(first + r, params.rows - 1u), chunk, params.chunks, part);
        }
    }
    for (var r = 0u; r < ROWS; r += 1u) {
        var total = workgroup_sum(sums[r], lane);
        let row = first + r;
        if lane.index == 0u && row < params.rows {
            if HAS_BIAS {
                total += bias[params.y_offset + row];
            }
            y[token * params.y_pitch + params.y_offset + row] = total;
        }
    }
}
