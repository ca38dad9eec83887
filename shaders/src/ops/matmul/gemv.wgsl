// product.wgsl's equation for few tokens: grid (groups of ROWS rows, in two dimensions; groups of
// TOKENS tokens). All invocations of a workgroup share its rows and divide their columns.
#include "lane.wgsl"
#include "product.wgsl"
#include "place.wgsl"
#include "rows.wgsl"

// Each weight is read once for TOKENS tokens, and each activation once for ROWS rows. TOKENS <= 4.
// ROWS <= 16, or <= 4 with several tokens.
override ROWS: u32 = 4u;
override TOKENS: u32 = 1u;

struct Piece {
    first: u32,
    at: Place,
    input: Inputs,
}

fn row_dot(r: u32, piece: Piece) -> f32 {
    return place_dot(min(piece.first + r, params.rows - 1u), piece.at, params.chunks, piece.input);
}

fn input_of(token: u32, at: Place) -> Inputs {
    return inputs_at(min(token, params.tokens - 1u) * (params.x_pitch / 4u), at);
}

// Products of eight weights of one row with up to four tokens.
fn tokens_dot(w: Weights8, input: array<Input8, 4>) -> vec4<f32> {
    var dots = vec4<f32>(dot8(w, input[0]), 0.0, 0.0, 0.0);
    if TOKENS > 1u {
        dots.y = dot8(w, input[1]);
    }
    if TOKENS > 2u {
        dots.z = dot8(w, input[2]);
    }
    if TOKENS > 3u {
        dots.w = dot8(w, input[3]);
    }
    return dots;
}

fn row_weights8(row: u32, item: u32) -> Weights8 {
    return load8(min(row, params.rows - 1u), item / 4u, item % 4u, params.chunks);
}

fn input8_of(token: u32, item: u32) -> Input8 {
    let at = min(token, params.tokens - 1u) * (params.x_pitch / 4u) + item / 4u * 8u;
    let columns = columns8(item % 4u) + at;
    return input8(x[columns.x], x[columns.y]);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn gemv(
#include "builtins.wgsl"
) {
    let lane = lane_of(builtins);
    let first = (builtins.workgroup.y * params.stride + builtins.workgroup.x) * ROWS;
    let first_token = builtins.workgroup.z * TOKENS;
    // Rows and tokens past the end repeat the last ones and are not written, so that barriers stay
    // in uniform control flow. With one token each row has one sum, with several tokens each row
    // has four.
    var sums = array<vec4<f32>, SUMS>();
    if TOKENS == 1u {
        for (var place = lane.index; place < params.chunks * (4u / PARTS); place += WORKGROUP_SIZE) {
            let at = place_of(place);
            sums = add_rows(sums, Piece(first, at, input_of(first_token, at)));
        }
    }
    // The activations of several tokens fill the registers, so four invocations take eight columns
    // each of a chunk.
    for (var item = lane.index; TOKENS > 1u && item < params.chunks * 4u; item += WORKGROUP_SIZE) {
        var input: array<Input8, 4>;
        input[0] = input8_of(first_token, item);
        input[1] = input8_of(first_token + 1u, item);
        if TOKENS > 2u {
            input[2] = input8_of(first_token + 2u, item);
        }
        if TOKENS > 3u {
            input[3] = input8_of(first_token + 3u, item);
        }
        sums[0] += tokens_dot(row_weights8(first, item), input);
        if ROWS > 1u {
            sums[1] += tokens_dot(row_weights8(first + 1u, item), input);
        }
        if ROWS > 2u {
            sums[2] += tokens_dot(row_weights8(first + 2u, item), input);
        }
        if ROWS > 3u {
            sums[3] += tokens_dot(row_weights8(first + 3u, item), input);
        }
    }
    let per_row = select(4u, 1u, TOKENS == 1u);
    let total = workgroup_sums(sums, ROWS * per_row, lane);
    let token = lane.index % per_row;
    if lane.index < ROWS * per_row && token < TOKENS {
        finish(first_token + token, first + lane.index / per_row, total);
    }
}
