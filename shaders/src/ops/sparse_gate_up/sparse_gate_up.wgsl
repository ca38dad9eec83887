// The hidden activations of listed neurons: hidden[n] = f(gate . x) * (up . x) with the rows of
// neuron n, or f(up . x) without a gate. KIND selects f, see include/activation.wgsl. A neuron's
// gate row is row neuron * step of the weights, and its up row is `up_at` rows below. This covers
// stacked gate and up (step 1, up_at n_ff) and alternating ones (step 2, up_at 1). Biases have the
// same layout as rows. Elements of unlisted neurons are not written.
// Without LISTED, the neurons are the first `count`, and no list is read. With GATE_FIRST, up rows
// are read only for neurons with |f(gate)| > threshold; hidden is 0 for the others. With SCALED,
// |f(gate)| is multiplied by the neuron's scale first.
// Dispatched with `slot_list`'s grid, or a grid for `count`. LANES invocations share the rows of
// NEURONS neurons.
#include "activation.wgsl"
#include "lane.wgsl"
#include "place.wgsl"
#include "params.wgsl"

override GATED: bool = true;
override HAS_BIAS: bool = false;
override LISTED: bool = true;
override GATE_FIRST: bool = false;
override SCALED: bool = false;
// A power of two that divides WORKGROUP_SIZE.
override LANES: u32 = 32u;
const NEURONS: u32 = 2u;

// The number of listed neurons, then the neurons.
@group(0) @binding(3) var<storage, read> list: array<u32>;
@group(0) @binding(4) var<storage, read> bias: array<f32>;
@group(0) @binding(5) var<storage, read> scales: array<f32>;
@group(0) @binding(6) var<storage, read_write> hidden: array<f32>;

// Gates and ups of NEURONS neurons.
var<workgroup> sums: array<vec4<f32>, WORKGROUP_SIZE>;

// Sums `value` over the lanes of a neuron pair. All invocations must call it.
fn sum_lanes(value: vec4<f32>, at_lane: Lane) -> vec4<f32> {
    let lane = at_lane.index;
    // Wait until the earlier sums have been read.
    workgroupBarrier();
#if subgroups
    if LANES == WORKGROUP_SIZE {
        let partial =
            vec4<f32>(subgroupAdd(value.x), subgroupAdd(value.y), subgroupAdd(value.z), subgroupAdd(value.w));
        if at_lane.subgroup_lane == 0u {
            sums[at_lane.subgroup] = partial;
        }
        workgroupBarrier();
        var total = vec4<f32>();
        for (var i = 0u; i < at_lane.subgroups; i += 1u) {
            total += sums[i];
        }
        return total;
    }
#endif
    sums[lane] = value;
    for (var distance = LANES / 2u; distance > 0u; distance /= 2u) {
        workgroupBarrier();
        if lane % LANES < distance {
            sums[lane] += sums[lane + distance];
        }
    }
    workgroupBarrier();
    return sums[lane - lane % LANES];
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn sparse_gate_up(
#include "builtins.wgsl"
) {
    let at_lane = lane_of(builtins);
    let lane = at_lane.index;
    let workgroup = builtins.workgroup;
    var count = params.count;
    if LISTED {
        count = list[0];
    }
    let group = (workgroup.y * params.stride + workgroup.x) * (WORKGROUP_SIZE / LANES);
    // If all lanes share a pair, its addresses are uniform. The `select` lets the compiler see
    // that.
    let first = (group + select(lane / LANES, 0u, LANES == WORKGROUP_SIZE)) * NEURONS;
    // Past the end, nothing is read or the last neuron is repeated, and nothing is written.
    // Barriers therefore stay in uniform control flow.
    let last = max(count, 1u) - 1u;
    var neurons = vec2<u32>(min(first, last), min(first + 1u, last));
    if LISTED {
        neurons = vec2<u32>(list[1u + neurons.x], list[1u + neurons.y]);
    }
    let gate_rows = neurons * params.step;
    let up_rows = gate_rows + params.up_at;
    let places = select(0u, params.chunks * (4u / PARTS), first < count);
    var gates_sum = vec2<f32>();
    var fires = vec2<bool>(true, true);
    if GATED && GATE_FIRST {
        var sum = vec4<f32>();
        for (var place = lane % LANES; place < places; place += LANES) {
            let at = place_of(place);
            let input = inputs_at(0u, at);
            sum.x += place_dot(gate_rows.x, at, params.chunks, input);
            sum.y += place_dot(gate_rows.y, at, params.chunks, input);
        }
        gates_sum = sum_lanes(sum, at_lane).xy;
        for (var n = 0u; n < NEURONS; n += 1u) {
            var gate = gates_sum[n];
            if HAS_BIAS {
                gate += bias[gate_rows[n]];
            }
            var magnitude = abs(activate(gate));
            if SCALED {
                magnitude *= scales[neurons[n]];
            }
            fires[n] = magnitude > params.threshold;
        }
    }
    var sum = vec4<f32>();
    if any(fires) {
        for (var place = lane % LANES; place < places; place += LANES) {
            let at = place_of(place);
            let input = inputs_at(0u, at);
            if GATED && !GATE_FIRST {
                sum.x += place_dot(gate_rows.x, at, params.chunks, input);
                sum.y += place_dot(gate_rows.y, at, params.chunks, input);
            }
            if fires.x {
                sum.z += place_dot(up_rows.x, at, params.chunks, input);
            }
            if fires.y {
                sum.w += place_dot(up_rows.y, at, params.chunks, input);
            }
        }
    }
    sum = sum_lanes(sum, at_lane);
    if lane % LANES != 0u {
        return;
    }
    if GATE_FIRST {
        sum.x = gates_sum.x;
        sum.y = gates_sum.y;
    }
    for (var n = 0u; n < NEURONS && first + n < count; n += 1u) {
        var gate = sum[n];
        var up = sum[2u + n];
        if HAS_BIAS {
            gate += bias[gate_rows[n]];
            up += bias[up_rows[n]];
        }
        let to = neurons[n];
        if !fires[n] {
            hidden[to] = 0.0;
        } else if GATED {
            hidden[to] = activate_gated(gate, up);
        } else {
            hidden[to] = activate(up);
        }
    }
}
