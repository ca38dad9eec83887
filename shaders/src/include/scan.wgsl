// The state of a recurrent mixer's head, [STATE_ROWS, width], in the registers of a workgroup. The
// workgroup holds COLUMNS of its columns for all tokens of a chunk; lane (slice, column) holds ROWS
// rows of one column. WORKGROUP_SIZE is SLICES * COLUMNS, at most MOST_LANES. The including kernel
// declares `state`, [heads, STATE_ROWS, width], and `vectors`, which contains the vectors of
// STATE_ROWS elements.
#include "lane.wgsl"

override STATE_ROWS: u32 = 128u;
override COLUMNS: u32 = 16u;

const ROWS: u32 = 16u;
const UNITS: u32 = 4u;
const MOST_LANES: u32 = 128u;
override SLICES: u32 = (STATE_ROWS + ROWS - 1u) / ROWS;
override EVEN: bool = STATE_ROWS % ROWS == 0u;

// A lane's rows of its column, four per unit.
alias Rows = array<vec4<f32>, UNITS>;

// Four elements of the vector that begins at `start`. Elements past its end are 0.
fn elements(start: u32, row: u32) -> vec4<f32> {
    let at = start + row;
    if EVEN || row + 3u < STATE_ROWS {
        return vec4<f32>(vectors[at], vectors[at + 1u], vectors[at + 2u], vectors[at + 3u]);
    }
    var four = vec4<f32>();
    if row < STATE_ROWS {
        four.x = vectors[at];
    }
    if row + 1u < STATE_ROWS {
        four.y = vectors[at + 1u];
    }
    if row + 2u < STATE_ROWS {
        four.z = vectors[at + 2u];
    }
    return four;
}

fn state_at(head: u32, row: u32, column: u32, width: u32) -> f32 {
    if row < STATE_ROWS && column < width {
        return state[(head * STATE_ROWS + row) * width + column];
    }
    return 0.0;
}

fn keep(head: u32, row: u32, column: u32, width: u32, value: f32) {
    if row < STATE_ROWS && column < width {
        state[(head * STATE_ROWS + row) * width + column] = value;
    }
}

// The rows of a column from `first` on.
fn load_rows(head: u32, first: u32, column: u32, width: u32) -> Rows {
    var s: Rows;
    for (var unit = 0u; unit < UNITS; unit += 1u) {
        let row = first + unit * 4u;
        s[unit] = vec4<f32>(
            state_at(head, row, column, width),
            state_at(head, row + 1u, column, width),
            state_at(head, row + 2u, column, width),
            state_at(head, row + 3u, column, width),
        );
    }
    return s;
}

fn save_rows(s: ptr<function, Rows>, head: u32, first: u32, column: u32, width: u32) {
    for (var unit = 0u; unit < UNITS; unit += 1u) {
        let row = first + unit * 4u;
        let four = (*s)[unit];
        keep(head, row, column, width, four.x);
        keep(head, row + 1u, column, width, four.y);
        keep(head, row + 2u, column, width, four.z);
        keep(head, row + 3u, column, width, four.w);
    }
}
