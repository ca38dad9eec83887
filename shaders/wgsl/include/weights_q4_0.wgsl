// Q4_0 weights; see WeightType.
@group(0) @binding(0) var<storage, read> weight_main: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> weight_aux: array<u32>;

fn chunk_scale(row: u32, chunk: u32, chunks: u32) -> f32 {
    let pair = unpack2x16float(weight_aux[row * ((chunks + 1u) / 2u) + chunk / 2u]);
    return select(pair.x, pair.y, chunk % 2u == 1u);
}

// Columns 32 * chunk .. + 32 of a row that has `chunks` of them.
fn chunk_weights(row: u32, chunk: u32, chunks: u32) -> array<vec4<f32>, 8> {
    let codes = weight_main[row * chunks + chunk];
    let scale = chunk_scale(row, chunk, chunks);
    var out: array<vec4<f32>, 8>;
    for (var i = 0u; i < 4u; i += 1u) {
        out[i] = (vec4<f32>(unpack4xU8(codes[i] & 0x0f0f0f0fu)) - 8.0) * scale;
        out[i + 4u] = (vec4<f32>(unpack4xU8((codes[i] >> 4u) & 0x0f0f0f0fu)) - 8.0) * scale;
    }
    return out;
}

// The same columns times x.
fn chunk_dot(row: u32, chunk: u32, chunks: u32, x: array<vec4<f32>, 8>) -> f32 {
    let codes = weight_main[row * chunks + chunk];
    var sum = 0.0;
    for (var i = 0u; i < 4u; i += 1u) {
        sum += dot(vec4<f32>(unpack4xU8(codes[i] & 0x0f0f0f0fu)) - 8.0, x[i]);
        sum += dot(vec4<f32>(unpack4xU8((codes[i] >> 4u) & 0x0f0f0f0fu)) - 8.0, x[i + 4u]);
    }
    return sum * chunk_scale(row, chunk, chunks);
}
