// Common part of kernels with one invocation per element of [rows, cols]. Their parameters have
// `cols`, `pitch`, `rows` and `stride`. The grid is two-dimensional because a dimension holds at
// most 65,535 workgroups.
#include "lane.wgsl"
#include "params.wgsl"

struct Element {
    row: u32,
    col: u32,
    // Index in rows that are `pitch` apart.
    at: u32,
    inside: bool,
}

fn element_of(id: vec3<u32>) -> Element {
    let i = id.y * params.stride + id.x;
    let row = i / params.cols;
    let col = i % params.cols;
    return Element(row, col, row * params.pitch + col, row < params.rows);
}
