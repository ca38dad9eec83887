// y[s, y_offset + r] = W[ids[s], r] . x[s / share] (+ bias[ids[s], r]): products with the experts that tokens chose, slot s
// being a token and one of its experts. Grid (groups of ROWS rows, in two dimensions; slots). The weights bound are those of
// experts first_expert .. + experts, one behind the other; slots of others are left alone.
#include "lane.wgsl"
#include "sums.wgsl"
#include "weights.wgsl"

override HAS_BIAS: bool = false;
// Each activation is read once for ROWS rows; at most SUMS.
override ROWS: u32 = 4u;

struct Params {
    // Of an expert.
    rows: u32,
    chunks: u32,
    slots: u32,
    // Slots in a row that read one row of x.
    share: u32,
    x_pitch: u32,
    y_pitch: u32,
    y_offset: u32,
    first_expert: u32,
    experts: u32,
    stride: u32,
}

var<immediate> params: Params;
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> ids: array<u32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn expert_gemv(builtins: Builtins) {
    let lane = lane_of(builtins);
    let slot = builtins.workgroup.z;
    let first = (builtins.workgroup.y * params.stride + builtins.workgroup.x) * ROWS;
    // One expert for the whole workgroup; those before the first wrap around and are too large as well.
    let expert = ids[slot] - params.first_expert;
    if expert >= params.experts || slot >= params.slots {
        return;
    }
    // Rows past the end are computed as the last one and not written: the barriers stay in uniform control flow.
    var sums = array<f32, SUMS>();
    for (var item = lane.index; item < params.chunks * 4u; item += WORKGROUP_SIZE) {
        let chunk = item / 4u;
        let columns = quarter_columns(item % 4u) + (slot / params.share) * (params.x_pitch / 4u) + chunk * 8u;
        let input = quarter_input(x[columns.x], x[columns.y]);
        for (var r = 0u; r < ROWS; r += 1u) {
            let row = expert * params.rows + min(first + r, params.rows - 1u);
            sums[r] += quarter_dot(quarter(row, chunk, item % 4u, params.chunks), input);
        }
    }
    var total = workgroup_sums(sums, ROWS, lane);
    let row = first + lane.index;
    if lane.index < ROWS && row < params.rows {
        if HAS_BIAS {
            total += bias[(expert + params.first_expert) * params.rows + row];
        }
        y[slot * params.y_pitch + params.y_offset + row] = total;
    }
}
