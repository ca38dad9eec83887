// s_i += out for every stream i > 0 of s [STREAMS, rows, cols]; residual = s_0. One invocation per
// element of a stream, in a two-dimensional grid.
#include "lane.wgsl"

const STREAMS: u32 = 4u;

struct Params {
    cols: u32,
    // Elements from one row to the next.
    pitch: u32,
    rows: u32,
    // Invocations in one row of the grid: workgroups.x * WORKGROUP_SIZE.
    stride: u32,
    // Elements from one stream to the next.
    stream_pitch: u32,
    modalities_pitch: u32,
}

var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> out: array<f32>;
@group(0) @binding(1) var<storage, read_write> streams: array<f32>;
@group(0) @binding(2) var<storage, read_write> residual: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn altup_add(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.y * params.stride + id.x;
    let row = i / params.cols;
    if row >= params.rows {
        return;
    }
    let at = row * params.pitch + i % params.cols;
    residual[at] = streams[at];
    for (var to = 1u; to < STREAMS; to += 1u) {
        streams[to * params.stream_pitch + at] += out[at];
    }
}
