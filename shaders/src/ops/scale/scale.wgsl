// x = factor * (x + DELTA_SCALE delta) when ADD_DELTA, else x = factor * x. Both are [rows, cols]
// with the same pitch. One invocation per element, in a two-dimensional grid.
#include "element.wgsl"

override ADD_DELTA: bool = false;
override DELTA_SCALE: f32 = 1.0;

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read> delta: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn scale(@builtin(global_invocation_id) id: vec3<u32>) {
    let element = element_of(id);
    if element.inside {
        var sum = x[element.at];
        if ADD_DELTA {
            sum += DELTA_SCALE * delta[element.at];
        }
        x[element.at] = params.factor * sum;
    }
}
