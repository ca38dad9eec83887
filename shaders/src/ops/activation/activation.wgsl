// hidden = f(gate) * up, or f(up) without a gate. KIND selects f, see include/activation.wgsl.
// Neurons with |f(gate)| (or |f(up)|) <= `threshold` give 0. With SCALED, |f(gate)| is multiplied
// by the neuron's scale first.
// Gate and up are side by side in a row of the input, [rows, gate cols | up cols], or alternate,
// [rows, gate and up of each neuron]. Rows are 2 * pitch apart (pitch without a gate). hidden is
// [rows, cols].
#include "activation.wgsl"
#include "element.wgsl"

override GATED: bool = true;
override INTERLEAVED: bool = false;
override SCALED: bool = false;

@group(0) @binding(0) var<storage, read> gate_up: array<f32>;
@group(0) @binding(1) var<storage, read> scales: array<f32>;
@group(0) @binding(2) var<storage, read_write> hidden: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn activation(@builtin(global_invocation_id) id: vec3<u32>) {
    let element = element_of(id);
    if !element.inside {
        return;
    }
    var gate = 0.0;
    var value = 0.0;
    if GATED {
        var at = element.row * params.pitch * 2u + element.col;
        var step = params.cols;
        if INTERLEAVED {
            at += element.col;
            step = 1u;
        }
        gate = gate_up[at];
        value = activate_gated(gate, gate_up[at + step]);
    } else {
        gate = gate_up[element.at];
        value = activate(gate);
    }
    if params.threshold >= 0.0 {
        var magnitude = abs(activate(gate));
        if SCALED {
            magnitude *= scales[element.col];
        }
        // NaN is kept.
        if magnitude <= params.threshold {
            value = 0.0;
        }
    }
    hidden[element.at] = value;
}
