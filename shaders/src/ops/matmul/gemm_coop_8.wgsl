// gemm with hardware matrix products of 8 x 8 x 8, as on Metal, 16-bit floats summed in 32 bits. A
// workgroup computes 64 rows of 64 tokens, with the grid of gemm. Each of its first eight subgroups
// has 16 of the rows and 32 of the tokens. Further subgroups repeat the work of the last one, so
// that WORKGROUP_SIZE may be eight times the largest possible subgroup.
enable wgpu_cooperative_matrix;
enable f16;
#include "lane.wgsl"
#include "product.wgsl"
#include "weights.wgsl"
#include "coop_tiles.wgsl"

// Output column of a part, which has eight tokens of each half.
fn token_of(part: u32, column: u32) -> u32 {
    return column / 8u * 32u + part * 8u + column % 8u;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn gemm_coop_8(
#include "builtins.wgsl"
) {
    let index = builtins.index;
    let first_token = builtins.workgroup.x * TOKENS;
    let first_row = (builtins.workgroup.z * params.stride + builtins.workgroup.y) * ROWS;
    let subgroup = min(builtins.subgroup, 7u);
    let strip = subgroup % 4u * 16u;
    let half = subgroup / 4u;
    var sums_00 = coop_mat8x8<f32, C>();
    var sums_01 = coop_mat8x8<f32, C>();
    var sums_02 = coop_mat8x8<f32, C>();
    var sums_03 = coop_mat8x8<f32, C>();
    var sums_10 = coop_mat8x8<f32, C>();
    var sums_11 = coop_mat8x8<f32, C>();
    var sums_12 = coop_mat8x8<f32, C>();
    var sums_13 = coop_mat8x8<f32, C>();
    for (var chunk = 0u; chunk < params.chunks; chunk += 1u) {
        stage(index, first_row, first_token, chunk);
        workgroupBarrier();
        for (var column = 0u; column < 32u; column += 8u) {
            let stride = STRIDE;
            let rows_at = strip * STRIDE + column;
            let x_at = half * 32u * STRIDE + column;
            let w_0 = coopLoadT<coop_mat8x8<f16, A>>(&weight_tile[rows_at], stride);
            let w_1 = coopLoadT<coop_mat8x8<f16, A>>(&weight_tile[rows_at + 8u * STRIDE], stride);
            let x_0 = coopLoad<coop_mat8x8<f16, B>>(&x_tile[x_at + 0u * STRIDE], stride);
            sums_00 = coopMultiplyAdd(w_0, x_0, sums_00);
            sums_10 = coopMultiplyAdd(w_1, x_0, sums_10);
            let x_1 = coopLoad<coop_mat8x8<f16, B>>(&x_tile[x_at + 8u * STRIDE], stride);
            sums_01 = coopMultiplyAdd(w_0, x_1, sums_01);
            sums_11 = coopMultiplyAdd(w_1, x_1, sums_11);
            let x_2 = coopLoad<coop_mat8x8<f16, B>>(&x_tile[x_at + 16u * STRIDE], stride);
            sums_02 = coopMultiplyAdd(w_0, x_2, sums_02);
            sums_12 = coopMultiplyAdd(w_1, x_2, sums_12);
            let x_3 = coopLoad<coop_mat8x8<f16, B>>(&x_tile[x_at + 24u * STRIDE], stride);
            sums_03 = coopMultiplyAdd(w_0, x_3, sums_03);
            sums_13 = coopMultiplyAdd(w_1, x_3, sums_13);
        }
        workgroupBarrier();
    }
    let stride = 16u;
    let out_0 = strip * 16u + half * 8u;
    let out_1 = out_0 + 128u;
    coopStoreT(sums_00, &sums[out_0], stride);
    coopStoreT(sums_10, &sums[out_1], stride);
    workgroupBarrier();
    write_out(index, first_row, first_token, 0u);
    workgroupBarrier();
    coopStoreT(sums_01, &sums[out_0], stride);
    coopStoreT(sums_11, &sums[out_1], stride);
    workgroupBarrier();
    write_out(index, first_row, first_token, 1u);
    workgroupBarrier();
    coopStoreT(sums_02, &sums[out_0], stride);
    coopStoreT(sums_12, &sums[out_1], stride);
    workgroupBarrier();
    write_out(index, first_row, first_token, 2u);
    workgroupBarrier();
    coopStoreT(sums_03, &sums[out_0], stride);
    coopStoreT(sums_13, &sums[out_1], stride);
    workgroupBarrier();
    write_out(index, first_row, first_token, 3u);
}
