// F32 weights; see WeightType. aux is not used.
@group(0) @binding(0) var<storage, read> weight_main: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;

// Columns 32 * chunk .. + 32 of a row that has `chunks` of them.
fn chunk_weights(row: u32, chunk: u32, chunks: u32) -> array<vec4<f32>, 8> {
    let at = (row * chunks + chunk) * 8u;
    var out: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i += 1u) {
        out[i] = weight_main[at + i];
    }
    return out;
}

// The same columns times x.
fn chunk_dot(row: u32, chunk: u32, chunks: u32, x: array<vec4<f32>, 8>) -> f32 {
    let at = (row * chunks + chunk) * 8u;
    var sum = 0.0;
    for (var i = 0u; i < 8u; i += 1u) {
        sum += dot(weight_main[at + i], x[i]);
    }
    return sum;
}
