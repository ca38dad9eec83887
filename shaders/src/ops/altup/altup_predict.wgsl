// Predicts the streams s [STREAMS, rows, cols] of a model with several streams (AltUp):
//   p_i = s_i + sum over j of a_ij s_j,  a = map tanh(modalities),  residual = p_0
// One invocation per element of a stream, in a two-dimensional grid.
#include "lane.wgsl"
#include "modalities.wgsl"

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
@group(0) @binding(2) var<storage, read> streams: array<f32>;
@group(0) @binding(3) var<storage, read_write> predicted: array<f32>;
@group(0) @binding(4) var<storage, read_write> residual: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn altup_predict(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.y * params.stride + id.x;
    let row = i / params.cols;
    if row >= params.rows {
        return;
    }
    let at = row * params.pitch + i % params.cols;
    let m = modalities_of(row, params.modalities_pitch);
    var s = vec4<f32>();
    for (var j = 0u; j < STREAMS; j += 1u) {
        s[j] = streams[j * params.stream_pitch + at];
    }
    for (var to = 0u; to < STREAMS; to += 1u) {
        var a = vec4<f32>();
        for (var j = 0u; j < STREAMS; j += 1u) {
            a[j] = dot(map[to * STREAMS + j], m);
        }
        let p = s[to] + dot(a, s);
        predicted[to * params.stream_pitch + at] = p;
        if to == 0u {
            residual[at] = p;
        }
    }
}
