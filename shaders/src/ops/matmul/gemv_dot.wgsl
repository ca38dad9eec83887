// product.wgsl's equation for few tokens with activations quantised to 8 bits (quantise_q8). Integer
// products, four at a time, are scaled per chunk. The grid and the use of weights are those of gemv.
#include "few_tokens.wgsl"
#include "weights.wgsl"

// Per token and chunk: eight words of codes, and one word with the scale.
@group(0) @binding(2) var<storage, read> x: array<u32>;

// The activations of PARTS times eight columns of a chunk.
struct PackedPlace {
    codes: array<PackedInput, PARTS>,
    scale: f32,
}

struct Piece {
    first: u32,
    chunk: u32,
    // The first eight columns: part `part` of the chunk.
    part: u32,
    // The activations of TOKENS tokens.
    input: array<PackedPlace, 4>,
}

// The product of a row with one token's activations. The weights are decoded once for all tokens,
// because compilers merge equal expressions.
fn packed_dot(r: u32, piece: Piece, input: PackedPlace) -> f32 {
    let row = min(piece.first + r, params.rows - 1u);
    var sum = dot8_packed(row, piece.chunk, piece.part, params.chunks, input.codes[0]);
    if PARTS > 1u {
        sum += dot8_packed(row, piece.chunk, piece.part + 1u, params.chunks, input.codes[1u % PARTS]);
    }
    if PARTS > 2u {
        sum += dot8_packed(row, piece.chunk, piece.part + 2u, params.chunks, input.codes[2u % PARTS]);
        sum += dot8_packed(row, piece.chunk, piece.part + 3u, params.chunks, input.codes[3u % PARTS]);
    }
    return input.scale * sum;
}

fn row_dot(r: u32, piece: Piece) -> f32 {
    return packed_dot(r, piece, piece.input[0]);
}

fn tokens_dot(r: u32, piece: Piece) -> vec4<f32> {
    var dots = vec4<f32>(packed_dot(r, piece, piece.input[0]), packed_dot(r, piece, piece.input[1]), 0.0, 0.0);
    if TOKENS > 2u {
        dots.z = packed_dot(r, piece, piece.input[2]);
    }
    if TOKENS > 3u {
        dots.w = packed_dot(r, piece, piece.input[3]);
    }
    return dots;
}

fn input_of(token: u32, chunk: u32, part: u32) -> PackedPlace {
    let at = (min(token, params.tokens - 1u) * params.chunks + chunk) * 9u;
    var place: PackedPlace;
    place.scale = bitcast<f32>(x[at + 8u]);
    for (var p = 0u; p < PARTS; p += 1u) {
        let columns = columns8(part + p) + at;
        let low = x[columns.x];
        let high = x[columns.y];
        place.codes[p] = PackedInput(low, high, dot4I8Packed(low, 0x01010101u), dot4I8Packed(high, 0x01010101u));
    }
    return place;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn gemv_dot(
#include "builtins.wgsl"
) {
    let lane = lane_of(builtins);
    let first_token = builtins.workgroup.x * TOKENS;
    // Rows and tokens past the end repeat the last ones and are not written, so that barriers stay
    // in uniform control flow.
    var piece: Piece;
    piece.first = (builtins.workgroup.z * params.stride + builtins.workgroup.y) * ROWS;
    var sums = array<vec4<f32>, SUMS>();
    for (var place = lane.index; place < params.chunks * (4u / PARTS); place += WORKGROUP_SIZE) {
        piece.chunk = place / (4u / PARTS);
        piece.part = place % (4u / PARTS) * PARTS;
        piece.input[0] = input_of(first_token, piece.chunk, piece.part);
        if TOKENS > 1u {
            piece.input[1] = input_of(first_token + 1u, piece.chunk, piece.part);
        }
        if TOKENS > 2u {
            piece.input[2] = input_of(first_token + 2u, piece.chunk, piece.part);
        }
        if TOKENS > 3u {
            piece.input[3] = input_of(first_token + 3u, piece.chunk, piece.part);
        }
        sums = add_products(sums, piece);
    }
    finish_products(sums, piece.first, first_token, lane);
}
