// Quantises activations to 8 bits. Per chunk of 32 columns of x[t]: eight words of codes, four per
// word, and a word with their scale, the largest magnitude / 127. One invocation per chunk.
#include "params.wgsl"

override WORKGROUP_SIZE: u32 = 64u;

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> quantised: array<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn quantise_q8(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.y * params.stride + id.x;
    let token = i / params.chunks;
    if token >= params.tokens {
        return;
    }
    let at = token * (params.x_pitch / 4u) + (i % params.chunks) * 8u;
    var largest = vec4<f32>();
    for (var j = 0u; j < 8u; j += 1u) {
        largest = max(largest, abs(x[at + j]));
    }
    let most = max(max(largest.x, largest.y), max(largest.z, largest.w));
    // Smaller scales have no finite inverse. Such activations are practically zero.
    let inverse = select(0.0, 127.0 / most, most > 1e-35);
    for (var j = 0u; j < 8u; j += 1u) {
        let codes = vec4<i32>(round(x[at + j] * inverse));
        quantised[i * 9u + j] = pack4xI8(codes);
    }
    quantised[i * 9u + 8u] = bitcast<u32>(most / 127.0);
}
