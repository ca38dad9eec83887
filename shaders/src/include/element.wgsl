// Common part of kernels with one invocation per element of [rows, cols]. The grid is
// two-dimensional because a dimension holds at most 65,535 workgroups.
#include "lane.wgsl"

struct Params {
    cols: u32,
    // Elements from one row to the next.
    pitch: u32,
    rows: u32,
    // Invocations in one row of the grid: workgroups.x * WORKGROUP_SIZE.
    stride: u32,
}

var<immediate> params: Params;

struct Element {
    row: u32,
    col: u32,
    inside: bool,
}

fn element_of(id: vec3<u32>) -> Element {
    let i = id.y * params.stride + id.x;
    let row = i / params.cols;
    return Element(row, i % params.cols, row < params.rows);
}
