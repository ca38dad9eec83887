// y = cap * tanh(y / cap) for y [rows, cols]. One invocation per element, in a two-dimensional
// grid.
#include "element.wgsl"

@group(0) @binding(0) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn soft_cap(@builtin(global_invocation_id) id: vec3<u32>) {
    let element = element_of(id);
    if element.inside {
        // On some drivers tanh is NaN above about 44. tanh(10) is already 1 to the last bit.
        y[element.at] = params.cap * tanh(clamp(y[element.at] / params.cap, -10.0, 10.0));
    }
}
