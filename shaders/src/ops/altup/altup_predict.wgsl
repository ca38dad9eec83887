// Predicts the streams s [STREAMS, rows, cols] of a model with several streams (AltUp):
//   p_i = s_i + sum over j of a_ij s_j,  a = map tanh(modalities),  residual = p_0
// One invocation per element of a stream, in a two-dimensional grid.
#include "element.wgsl"
#include "modalities.wgsl"

@group(0) @binding(2) var<storage, read> streams: array<f32>;
@group(0) @binding(3) var<storage, read_write> predicted: array<f32>;
@group(0) @binding(4) var<storage, read_write> residual: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn altup_predict(@builtin(global_invocation_id) id: vec3<u32>) {
    let element = element_of(id);
    if !element.inside {
        return;
    }
    let at = element.at;
    let m = modalities_of(element.row, params.modalities_pitch);
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
