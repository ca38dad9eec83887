// Eight weights of a 32-column chunk. Four neighbouring invocations read neighbouring words of one
// chunk. The file of a weight type defines `load8`, and `columns8`: which two of the chunk's eight
// vec4 of columns the eight weights cover. Quantised types also define `dot8_packed`, the product
// of eight weights with 8-bit activations, without the activations' scale.

// The weights are scale * low + offset and scale * high + offset.
struct Weights8 {
    low: vec4<f32>,
    high: vec4<f32>,
    scale: f32,
    offset: f32,
}

// The activations of the same columns, and their sum.
struct Input8 {
    low: vec4<f32>,
    high: vec4<f32>,
    sum: f32,
}

// Quantised activations: codes, four per word, and their sums.
struct PackedInput {
    low: u32,
    high: u32,
    low_sum: i32,
    high_sum: i32,
}

fn input8(low: vec4<f32>, high: vec4<f32>) -> Input8 {
    let sums = low + high;
    return Input8(low, high, (sums.x + sums.y) + (sums.z + sums.w));
}

fn dot8(w: Weights8, x: Input8) -> f32 {
    return w.scale * (dot(w.low, x.low) + dot(w.high, x.high)) + w.offset * x.sum;
}

// Columns 32 * chunk .. + 32 of a row with `chunks` chunks.
fn chunk_weights(row: u32, chunk: u32, chunks: u32) -> array<vec4<f32>, 8> {
    var out: array<vec4<f32>, 8>;
    for (var i = 0u; i < 4u; i += 1u) {
        let w = load8(row, chunk, i, chunks);
        let columns = columns8(i);
        out[columns.x] = w.low * w.scale + w.offset;
        out[columns.y] = w.high * w.scale + w.offset;
    }
    return out;
}

// The product of these columns with x.
fn chunk_dot(row: u32, chunk: u32, chunks: u32, x: array<vec4<f32>, 8>) -> f32 {
    var part = x;
    var sum = 0.0;
    for (var i = 0u; i < 4u; i += 1u) {
        let columns = columns8(i);
        sum += dot8(load8(row, chunk, i, chunks), input8(part[columns.x], part[columns.y]));
    }
    return sum;
}
