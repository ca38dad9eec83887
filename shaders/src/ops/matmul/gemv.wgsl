// product.wgsl's equation for few tokens: grid (groups of TOKENS tokens; groups of ROWS rows, in two
// dimensions). All invocations of a workgroup share its rows and divide their columns. Each weight
// is decoded once for TOKENS tokens, and each activation is read once for ROWS rows.
#include "few_tokens.wgsl"
#include "place.wgsl"

struct Piece {
    first: u32,
    at: Place,
    // The activations of TOKENS tokens.
    input: array<Inputs, 4>,
}

fn row_weights(r: u32, piece: Piece) -> PlaceWeights {
    return place_weights(min(piece.first + r, params.rows - 1u), piece.at, params.chunks);
}

fn row_dot(r: u32, piece: Piece) -> f32 {
    return place_product(row_weights(r, piece), piece.input[0]);
}

fn tokens_dot(r: u32, piece: Piece) -> vec4<f32> {
    let w = row_weights(r, piece);
    var dots = vec4<f32>(place_product(w, piece.input[0]), place_product(w, piece.input[1]), 0.0, 0.0);
    if TOKENS > 2u {
        dots.z = place_product(w, piece.input[2]);
    }
    if TOKENS > 3u {
        dots.w = place_product(w, piece.input[3]);
    }
    return dots;
}

fn input_of(token: u32, at: Place) -> Inputs {
    return inputs_at(min(token, params.tokens - 1u) * (params.x_pitch / 4u), at);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn gemv(
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
        piece.at = place_of(place);
        piece.input[0] = input_of(first_token, piece.at);
        if TOKENS > 1u {
            piece.input[1] = input_of(first_token + 1u, piece.at);
        }
        if TOKENS > 2u {
            piece.input[2] = input_of(first_token + 2u, piece.at);
        }
        if TOKENS > 3u {
            piece.input[3] = input_of(first_token + 3u, piece.at);
        }
        sums = add_products(sums, piece);
    }
    finish_products(sums, piece.first, first_token, lane);
}
