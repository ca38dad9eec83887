// Corrects the predictions p [STREAMS, rows, cols] of a model with several streams (AltUp) by the
// result of the first stream:
//   s_i = p_i + (1 + b_i) (residual - p_0),  b = map tanh(modalities),  residual = scale s_0
// One invocation per element of a stream, in a two-dimensional grid.
#include "element.wgsl"
#include "modalities.wgsl"

@group(0) @binding(2) var<storage, read> predicted: array<f32>;
// [cols]
@group(0) @binding(3) var<storage, read> scale: array<f32>;
@group(0) @binding(4) var<storage, read_write> streams: array<f32>;
@group(0) @binding(5) var<storage, read_write> residual: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn altup_correct(@builtin(global_invocation_id) id: vec3<u32>) {
    let element = element_of(id);
    if !element.inside {
        return;
    }
    let at = element.at;
    let m = modalities_of(element.row, params.modalities_pitch);
    let difference = residual[at] - predicted[at];
    for (var to = 0u; to < STREAMS; to += 1u) {
        let place = to * params.stream_pitch + at;
        let s = predicted[place] + (1.0 + dot(map[to], m)) * difference;
        streams[place] = s;
        if to == 0u {
            residual[at] = scale[element.col] * s;
        }
    }
}
