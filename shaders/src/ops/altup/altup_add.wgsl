// s_i += out for every stream i > 0 of s [STREAMS, rows, cols]; residual = s_0. One invocation per
// element of a stream, in a two-dimensional grid.
#include "element.wgsl"

const STREAMS: u32 = 4u;

@group(0) @binding(0) var<storage, read> out: array<f32>;
@group(0) @binding(1) var<storage, read_write> streams: array<f32>;
@group(0) @binding(2) var<storage, read_write> residual: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn altup_add(@builtin(global_invocation_id) id: vec3<u32>) {
    let element = element_of(id);
    if !element.inside {
        return;
    }
    let at = element.at;
    residual[at] = streams[at];
    for (var to = 1u; to < STREAMS; to += 1u) {
        streams[to * params.stream_pitch + at] += out[at];
    }
}
