// gemm with hardware matrix products of 16 x 16 x 16, 16-bit floats summed in 32 bits. A workgroup
// computes 64 rows of 64 tokens, with the grid of gemm. Each of its first four subgroups has 16 of
// the rows. Further subgroups repeat the work of the last one, so that WORKGROUP_SIZE may be four
// times the largest possible subgroup. The activations of each token are scaled by a power of two
// (half_scale). All chunks of a token therefore have one scale, and an outlier costs other tokens
// no bits.
enable wgpu_cooperative_matrix;
enable f16;
#include "lane.wgsl"
#include "product.wgsl"
#include "weights.wgsl"
#include "coop_tiles.wgsl"

// Output column of a part.
fn token_of(part: u32, column: u32) -> u32 {
    return part * 16u + column;
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
        stage(index, first_row, first_token, chunk);
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
