// Products of a workgroup's ROWS rows, at most 16, with a piece of one row of activations. The
// kernel defines `row_dot(r, piece)`: row r of the workgroup times the columns of a `Piece`.
#include "sums.wgsl"

// Adds the products to the sums of the rows. See sums.wgsl for why there is no loop.
fn add_rows(before: array<vec4<f32>, SUMS>, piece: Piece) -> array<vec4<f32>, SUMS> {
    var sums = before;
    sums[0] += four_rows(0u, piece);
    if ROWS > 4u {
        sums[1] += four_rows(4u, piece);
    }
    if ROWS > 8u {
        sums[2] += four_rows(8u, piece);
    }
    if ROWS > 12u {
        sums[3] += four_rows(12u, piece);
    }
    return sums;
}

fn four_rows(first: u32, piece: Piece) -> vec4<f32> {
    var dots = vec4<f32>(row_dot(first, piece), 0.0, 0.0, 0.0);
    if ROWS > first + 1u {
        dots.y = row_dot(first + 1u, piece);
    }
    if ROWS > first + 2u {
        dots.z = row_dot(first + 2u, piece);
    }
    if ROWS > first + 3u {
        dots.w = row_dot(first + 3u, piece);
    }
    return dots;
}
