// y = min(max(x, least), most), for the columns from `first` on of x and y [rows, cols]. x and y
// may be the same buffer. One invocation per element, in a two-dimensional grid.
#include "element.wgsl"

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn limit_values(@builtin(global_invocation_id) id: vec3<u32>) {
    let element = element_of(id);
    if element.inside {
        let at = params.first + element.at;
        y[at] = min(max(x[at], params.least), params.most);
    }
}
