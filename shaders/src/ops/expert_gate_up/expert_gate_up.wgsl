// The hidden activations of the chosen experts, for pair s with expert e = ids[s] and neuron j:
//   hidden[s, j] = f(gate . x) * (up . x) if |f(gate . x)| > threshold, else 0
// with x = x[s / pairs_per_row]. KIND selects f, see include/activation.wgsl. Up rows of silent
// neurons are not read. Gate and up are stacked: neuron j's gate is row j of its expert's `rows`,
// and its up row is `up_at` rows below. Biases have the same layout as rows. With GATES_KNOWN, the
// weights are only up rows, and the outputs of the gates are gates[s, j].
// The bound weights are those of experts first_expert .. + experts, and the bound biases start with
// expert first_bias. Pairs of other experts are not written.
// Grid (groups of neurons, in two dimensions; pairs): LANES invocations share the rows of NEURONS
// neurons.
#include "activation.wgsl"
#include "weights.wgsl"
#include "params.wgsl"

override WORKGROUP_SIZE: u32 = 128u;
override GATES_KNOWN: bool = false;
override HAS_BIAS: bool = false;
// A power of two that divides WORKGROUP_SIZE.
override LANES: u32 = 32u;
const NEURONS: u32 = 2u;

@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> ids: array<u32>;
@group(0) @binding(5) var<storage, read> gates: array<f32>;
@group(0) @binding(6) var<storage, read_write> hidden: array<f32>;

var<workgroup> sums: array<vec2<f32>, WORKGROUP_SIZE>;

// Sums `value` over the lanes of a neuron pair. All invocations must call it.
fn sum_lanes(value: vec2<f32>, lane: u32) -> vec2<f32> {
    // Wait until the earlier sums have been read.
    workgroupBarrier();
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

// Computes this lane's part of the products of two rows with x, each only if it is wanted.
fn row_dots(rows: vec2<u32>, wanted: vec2<bool>, first_x: u32, lane: u32) -> vec2<f32> {
    var sum = vec2<f32>();
    if !any(wanted) {
        return sum;
    }
    for (var item = lane % LANES; item < params.chunks * 4u; item += LANES) {
        let chunk = item / 4u;
        let columns = columns8(item % 4u) + chunk * 8u + first_x;
        let input = input8(x[columns.x], x[columns.y]);
        if wanted.x {
            sum.x += dot8(load8(rows.x, chunk, item % 4u, params.chunks), input);
        }
        if wanted.y {
            sum.y += dot8(load8(rows.y, chunk, item % 4u, params.chunks), input);
        }
    }
    return sum;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn expert_gate_up(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) workgroup: vec3<u32>) {
    let pair = workgroup.z;
    // The expert is the same for the whole workgroup. Experts before the first bound one wrap
    // around and are too large, too.
    let expert = ids[pair] - params.first_expert;
    if expert >= params.experts || pair >= params.pairs {
        return;
    }
    let group = (workgroup.y * params.stride + workgroup.x) * (WORKGROUP_SIZE / LANES);
    let first = (group + lane / LANES) * NEURONS;
    let inside = vec2<bool>(first < params.neurons, first + 1u < params.neurons);
    // Past the end, nothing is read or written, so that barriers stay in uniform control flow.
    let last = params.neurons - 1u;
    let neurons = vec2<u32>(min(first, last), min(first + 1u, last));
    let gate_rows = expert * params.rows + neurons;
    let up_rows = gate_rows + params.up_at;
    let bias_at = (expert + params.first_expert - params.first_bias) * params.rows + neurons;
    let first_x = (pair / params.pairs_per_row) * (params.x_pitch / 4u);
    var gate = vec2<f32>();
    if GATES_KNOWN {
        gate = vec2<f32>(
            gates[pair * params.gates_pitch + neurons.x],
            gates[pair * params.gates_pitch + neurons.y],
        );
    } else {
        gate = sum_lanes(row_dots(gate_rows, inside, first_x, lane), lane);
        if HAS_BIAS {
            gate += vec2<f32>(bias[bias_at.x], bias[bias_at.y]);
        }
    }
    let fires = inside
        & (abs(vec2<f32>(activate(gate.x), activate(gate.y))) > vec2<f32>(params.threshold));
    var up = sum_lanes(row_dots(up_rows, fires, first_x, lane), lane);
    if HAS_BIAS {
        up += vec2<f32>(bias[bias_at.x + params.up_at], bias[bias_at.y + params.up_at]);
    }
    if lane % LANES >= NEURONS {
        return;
    }
    // For each of the two neurons, one lane writes.
    let n = lane % LANES;
    if inside[n] {
        hidden[pair * params.hidden_pitch + neurons[n]] =
            select(0.0, activate_gated(gate[n], up[n]), fires[n]);
    }
}
