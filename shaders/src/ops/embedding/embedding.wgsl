// out[t] = scale * W[ids[t]], rows of the embedding. One invocation per eight weights, in a
// two-dimensional grid. The bound weights are rows first_row .. + rows. Output rows of other ids
// are not written.
#include "lane.wgsl"
#include "weights.wgsl"
#include "params.wgsl"

@group(0) @binding(2) var<storage, read> ids: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4<f32>>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn embedding(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.y * params.stride + id.x;
    // Rows of weights may have more padding than rows of `out`.
    let items = params.pitch / 8u;
    let token = i / items;
    if token >= params.tokens {
        return;
    }
    // Ids below first_row wrap around and are too large, too.
    let row = ids[token] - params.first_row;
    if row >= params.rows {
        return;
    }
    let chunk = i % items / 4u;
    let w = load8(row, chunk, i % 4u, params.chunks);
    let columns = token * (params.pitch / 4u) + chunk * 8u + columns8(i % 4u);
    out[columns.x] = (w.low * w.scale + w.offset) * params.scale;
    out[columns.y] = (w.high * w.scale + w.offset) * params.scale;
}
