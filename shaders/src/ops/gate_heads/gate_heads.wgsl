// heads = heads * sigmoid(gate), for the heads [rows, cols] of attention. With SOFTPLUS, heads =
// heads * ln(1 + e^gate). The gate of a head follows its query, [query | gate] with gate_width
// elements each. With OWN_GATES, the gates are in a row of their own from gate_first on, one per
// gate_width elements of heads.
#include "element.wgsl"
#include "softplus.wgsl"

override OWN_GATES: bool = false;
override SOFTPLUS: bool = false;

@group(0) @binding(0) var<storage, read_write> heads: array<f32>;
@group(0) @binding(1) var<storage, read> gates: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn gate_heads(@builtin(global_invocation_id) id: vec3<u32>) {
    let element = element_of(id);
    if !element.inside {
        return;
    }
    let unit = element.col / params.gate_width;
    let at = element.row * params.gate_pitch;
    var gate = 0.0;
    if OWN_GATES {
        gate = gates[at + params.gate_first + unit];
    } else {
        gate = gates[at + (unit + 1u) * params.gate_width + element.col];
    }
    var factor = 0.0;
    if SOFTPLUS {
        factor = softplus(gate);
    } else {
        factor = 1.0 / (1.0 + exp(-gate));
    }
    heads[element.at] *= factor;
}
