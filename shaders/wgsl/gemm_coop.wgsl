// gemm with products of small matrices in hardware, 16 x 16 x 16, of halves summed in floats: a workgroup computes 64 rows of
// 64 tokens, grid as gemm's. Each of its first four subgroups has 16 of the rows; further ones repeat the last's work, so
// that WORKGROUP_SIZE may be four times the largest subgroup there can be. A token's activations are halves times a power of two of
// its own, half_scale's: sums of all its chunks are in one scale, and an outlier takes no bits from another token.
enable wgpu_cooperative_matrix;
enable f16;
#include "lane.wgsl"
#include "product.wgsl"
#include "weights.wgsl"

const TOKENS: u32 = 64u;
const ROWS: u32 = 64u;
// Halves from one row of a tile to the next: 32 columns, and 8 so that rows start in different banks.
const STRIDE: u32 = 40u;
const MOST_HALF: f32 = 65504.0;

@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
// Per token a factor on its activations, and the inverse, on its sums.
@group(0) @binding(5) var<storage, read> x_scales: array<vec2<f32>>;

var<workgroup> weight_tile: array<f16, 2560>;
var<workgroup> x_tile: array<f16, 2560>;
// Per subgroup 16 rows of 16 tokens on their way out.
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

// Writes what the four subgroups left in `sums`: tokens 16 * part.. of the tile.
fn write_out(index: u32, first_row: u32, first_token: u32, part: u32) {
    for (var item = index; item < 1024u; item += WORKGROUP_SIZE) {
        let token = first_token + part * 16u + item % 16u;
        finish(token, first_row + item / 16u, sums[item] * x_scales[min(token, params.tokens - 1u)].y);
    }
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn gemm_coop(
#include "builtins.wgsl"
) {
    let index = builtins.index;
    let first_token = builtins.workgroup.x * TOKENS;
    let first_row = (builtins.workgroup.z * params.stride + builtins.workgroup.y) * ROWS;
    let strip = min(builtins.subgroup, 3u) * 16u;
    var sums_0 = coop_mat16x16<f32, C>();
    var sums_1 = coop_mat16x16<f32, C>();
    var sums_2 = coop_mat16x16<f32, C>();
    var sums_3 = coop_mat16x16<f32, C>();
    for (var chunk = 0u; chunk < params.chunks; chunk += 1u) {
        // Past the end is the last row or token again; `finish` leaves those out.
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
        workgroupBarrier();
        for (var column = 0u; column < 32u; column += 16u) {
            let stride = STRIDE;
            let rows_at = strip * STRIDE + column;
            let tokens_1 = 16u * STRIDE + column;
            let tokens_2 = 32u * STRIDE + column;
            let tokens_3 = 48u * STRIDE + column;
            let w = coopLoadT<coop_mat16x16<f16, A>>(&weight_tile[rows_at], stride);
            let x_0 = coopLoad<coop_mat16x16<f16, B>>(&x_tile[column], stride);
            sums_0 = coopMultiplyAdd(w, x_0, sums_0);
            let x_1 = coopLoad<coop_mat16x16<f16, B>>(&x_tile[tokens_1], stride);
            sums_1 = coopMultiplyAdd(w, x_1, sums_1);
            let x_2 = coopLoad<coop_mat16x16<f16, B>>(&x_tile[tokens_2], stride);
            sums_2 = coopMultiplyAdd(w, x_2, sums_2);
            let x_3 = coopLoad<coop_mat16x16<f16, B>>(&x_tile[tokens_3], stride);
            sums_3 = coopMultiplyAdd(w, x_3, sums_3);
        }
        workgroupBarrier();
    }
    let out = strip * 16u;
    let stride = 16u;
    coopStoreT(sums_0, &sums[out], stride);
    workgroupBarrier();
    write_out(index, first_row, first_token, 0u);
    workgroupBarrier();
    coopStoreT(sums_1, &sums[out], stride);
    workgroupBarrier();
    write_out(index, first_row, first_token, 1u);
    workgroupBarrier();
    coopStoreT(sums_2, &sums[out], stride);
    workgroupBarrier();
    write_out(index, first_row, first_token, 2u);
    workgroupBarrier();
    coopStoreT(sums_3, &sums[out], stride);
    workgroupBarrier();
    write_out(index, first_row, first_token, 3u);
}
