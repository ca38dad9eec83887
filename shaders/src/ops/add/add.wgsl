// sum += DELTA_SCALE delta, both [rows, cols] with the same pitch. One invocation per element, in a
// two-dimensional grid.
#include "element.wgsl"

override DELTA_SCALE: f32 = 1.0;

@group(0) @binding(0) var<storage, read_write> sum: array<f32>;
@group(0) @binding(1) var<storage, read> delta: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn add(@builtin(global_invocation_id) id: vec3<u32>) {
    let element = element_of(id);
    if element.inside {
        sum[element.at] += DELTA_SCALE * delta[element.at];
    }
}
