// hidden = f(gate) * up, or f(up) where there is no gate; f by KIND, see include/activation.wgsl.
// Gate and up stand side by side in a row of the input: [rows, gate cols | up cols], 2 * pitch from row to row (pitch when
// there is no gate). hidden is [rows, cols].
#include "activation.wgsl"
#include "element.wgsl"

override GATED: bool = true;

@group(0) @binding(0) var<storage, read> gate_up: array<f32>;
@group(0) @binding(1) var<storage, read_write> hidden: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn activation(@builtin(global_invocation_id) id: vec3<u32>) {
    let element = element_of(id);
    if !element.inside {
        return;
    }
    let to = element.row * params.pitch + element.col;
    if !GATED {
        hidden[to] = activate(gate_up[to]);
        return;
    }
    let at = element.row * params.pitch * 2u + element.col;
    hidden[to] = activate_gated(gate_up[at], gate_up[at + params.cols]);
}
