// A place of a row: the columns that an invocation takes at once, PARTS times eight columns of one
// chunk. It then loads 16 adjacent bytes of weights and decodes their scale once. PARTS depends on
// the weight type.
#include "weights.wgsl"

@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;

struct Place {
    chunk: u32,
    // The first eight columns: part `part` of the chunk.
    part: u32,
}

// The activations of a place, and their sum.
struct Inputs {
    low: array<vec4<f32>, PARTS>,
    high: array<vec4<f32>, PARTS>,
    sum: f32,
}

// Place number i of a row.
fn place_of(i: u32) -> Place {
    return Place(i / (4u / PARTS), i % (4u / PARTS) * PARTS);
}

// The activations of a place in the row of x that begins at element `row`.
fn inputs_at(row: u32, at: Place) -> Inputs {
    var inputs: Inputs;
    var sums = vec4<f32>();
    for (var p = 0u; p < PARTS; p += 1u) {
        let columns = columns8(at.part + p) + (row + at.chunk * 8u);
        inputs.low[p] = x[columns.x];
        inputs.high[p] = x[columns.y];
        sums += inputs.low[p] + inputs.high[p];
    }
    inputs.sum = (sums.x + sums.y) + (sums.z + sums.w);
    return inputs;
}

// The weights of a place of a row: scale * low + offset and scale * high + offset. All parts of a
// chunk have one scale and one offset.
struct PlaceWeights {
    low: array<vec4<f32>, PARTS>,
    high: array<vec4<f32>, PARTS>,
    scale: f32,
    offset: f32,
}

fn place_weights(row: u32, at: Place, chunks: u32) -> PlaceWeights {
    let first = load8(row, at.chunk, at.part, chunks);
    var weights: PlaceWeights;
    weights.low[0] = first.low;
    weights.high[0] = first.high;
    weights.scale = first.scale;
    weights.offset = first.offset;
    if PARTS > 1u {
        let w = load8(row, at.chunk, at.part + 1u, chunks);
        weights.low[1u % PARTS] = w.low;
        weights.high[1u % PARTS] = w.high;
    }
    if PARTS > 2u {
        let w = load8(row, at.chunk, at.part + 2u, chunks);
        weights.low[2u % PARTS] = w.low;
        weights.high[2u % PARTS] = w.high;
        let v = load8(row, at.chunk, at.part + 3u, chunks);
        weights.low[3u % PARTS] = v.low;
        weights.high[3u % PARTS] = v.high;
    }
    return weights;
}

// The product of the weights of a place with its activations. A token's product has the same order
// of sums, whether the weights are multiplied for one token or for several.
fn place_product(w: PlaceWeights, input: Inputs) -> f32 {
    var sums = w.low[0] * input.low[0] + w.high[0] * input.high[0];
    if PARTS > 1u {
        sums += w.low[1u % PARTS] * input.low[1u % PARTS] + w.high[1u % PARTS] * input.high[1u % PARTS];
    }
    if PARTS > 2u {
        sums += w.low[2u % PARTS] * input.low[2u % PARTS] + w.high[2u % PARTS] * input.high[2u % PARTS];
        sums += w.low[3u % PARTS] * input.low[3u % PARTS] + w.high[3u % PARTS] * input.high[3u % PARTS];
    }
    return w.scale * ((sums.x + sums.y) + (sums.z + sums.w)) + w.offset * input.sum;
}

// The product of a place of a row of weights with its activations.
fn place_dot(row: u32, at: Place, chunks: u32, input: Inputs) -> f32 {
    return place_product(place_weights(row, at, chunks), input);
}
