// Tiles for hardware matrix products: 32 columns of 64 rows and of 64 tokens, as 16-bit floats. A
// token's activations are multiplied by its power of two (half_scale), and its sums by the inverse.
const TOKENS: u32 = 64u;
const ROWS: u32 = 64u;
// Elements from one row of a tile to the next: 32 columns, and 8 more so that rows start in
// different banks.
const STRIDE: u32 = 40u;
const MOST_HALF: f32 = 65504.0;

@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
// Per token: the factor on its activations, and its inverse, the factor on its sums.
@group(0) @binding(5) var<storage, read> x_scales: array<vec2<f32>>;

var<workgroup> weight_tile: array<f16, 2560>;
var<workgroup> x_tile: array<f16, 2560>;
// 64 rows of 16 tokens, to be written out.
var<workgroup> sums: array<f32, 1024>;

fn put_weights(row: u32, columns: u32, values: vec4<f32>) {
    let at = row * STRIDE + columns * 4u;
    let halves = vec4<f16>(clamp(values, vec4<f32>(-MOST_HALF), vec4<f32>(MOST_HALF)));
    weight_tile[at] = halves.x;
    weight_tile[at + 1u] = halves.y;
    weight_tile[at + 2u] = halves.z;
    weight_tile[at + 3u] = halves.w;
}

fn put_x(token: u32, columns: u32, values: vec4<f32>) {
    let at = token * STRIDE + columns * 4u;
    let halves = vec4<f16>(clamp(values, vec4<f32>(-MOST_HALF), vec4<f32>(MOST_HALF)));
    x_tile[at] = halves.x;
    x_tile[at + 1u] = halves.y;
    x_tile[at + 2u] = halves.z;
    x_tile[at + 3u] = halves.w;
}

// Loads 32 columns of 64 rows and of 64 tokens into the tiles.
fn stage(index: u32, first_row: u32, first_token: u32, chunk: u32) {
    // Past the end, the last row or token is repeated. `finish` does not write those.
    for (var item = index; item < ROWS * 4u; item += WORKGROUP_SIZE) {
        let row = item / 4u;
        let w = load8(min(first_row + row, params.rows - 1u), chunk, item % 4u, params.chunks);
        let columns = columns8(item % 4u);
        put_weights(row, columns.x, w.low * w.scale + w.offset);
        put_weights(row, columns.y, w.high * w.scale + w.offset);
    }
    for (var item = index; item < TOKENS * 8u; item += WORKGROUP_SIZE) {
        let token = item / 8u;
        let row = min(first_token + token, params.tokens - 1u);
        let at = row * (params.x_pitch / 4u) + chunk * 8u;
        put_x(token, item % 8u, x[at + item % 8u] * x_scales[row].x);
    }
}

// Writes out `sums`: 16 tokens of each of 64 rows. `token_of` gives the tokens.
fn write_out(index: u32, first_row: u32, first_token: u32, part: u32) {
    for (var item = index; item < 1024u; item += WORKGROUP_SIZE) {
        let token = first_token + token_of(part, item % 16u);
        finish(token, first_row + item / 16u, sums[item] * x_scales[min(token, params.tokens - 1u)].y);
    }
}
