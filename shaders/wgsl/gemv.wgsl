// product.wgsl's equation for few tokens: grid (groups of ROWS rows, in two dimensions; groups of TOKENS tokens). All
// invocations of a workgroup share its rows and split their columns.
#include "lane.wgsl"
#include "product.wgsl"
#include "sums.wgsl"
#include "weights.wgsl"

// Each weight is read once for TOKENS tokens, each activation once for ROWS rows. ROWS * TOKENS <= SUMS, TOKENS <= 4.
override ROWS: u32 = 4u;
override TOKENS: u32 = 1u;

@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn gemv(builtins: Builtins) {
    let lane = lane_of(builtins);
    let first = (builtins.workgroup.y * params.stride + builtins.workgroup.x) * ROWS;
    let first_token = builtins.workgroup.z * TOKENS;
    // Rows and tokens past the end are computed as the last ones and not written: the barriers stay in uniform control flow.
    var sums = array<f32, SUMS>();
    var input: array<QuarterInput, 4>;
    for (var item = lane.index; item < params.chunks * 4u; item += WORKGROUP_SIZE) {
        let chunk = item / 4u;
        let columns = quarter_columns(item % 4u) + chunk * 8u;
        for (var t = 0u; t < TOKENS; t += 1u) {
            let at = min(first_token + t, params.tokens - 1u) * (params.x_pitch / 4u);
            input[t] = quarter_input(x[at + columns.x], x[at + columns.y]);
        }
        for (var r = 0u; r < ROWS; r += 1u) {
            let w = quarter(min(first + r, params.rows - 1u), chunk, item % 4u, params.chunks);
            for (var t = 0u; t < TOKENS; t += 1u) {
                sums[r * TOKENS + t] += quarter_dot(w, input[t]);
            }
        }
    }
    let total = workgroup_sums(sums, ROWS * TOKENS, lane);
    if lane.index < ROWS * TOKENS {
        finish(first_token + lane.index % TOKENS, first + lane.index / TOKENS, total);
    }
}
