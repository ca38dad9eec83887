// hidden = f(gate) * input. Rows of gate and hidden [rows, cols] are `pitch` apart. input [rows,
// cols] has no gaps and begins at element `first`. KIND selects f, see include/activation.wgsl. One
// invocation per element, in a two-dimensional grid.
#include "activation.wgsl"
#include "lane.wgsl"
#include "params.wgsl"

@group(0) @binding(0) var<storage, read> gate: array<f32>;
@group(0) @binding(1) var<storage, read> input: array<f32>;
@group(0) @binding(2) var<storage, read_write> hidden: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn gated_input(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.y * params.stride + id.x;
    let row = i / params.cols;
    if row < params.rows {
        let at = row * params.pitch + i % params.cols;
        hidden[at] = activate_gated(gate[at], input[params.first + i]);
    }
}
