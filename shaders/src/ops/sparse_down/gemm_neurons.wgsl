// The down projection with one row per neuron, for many tokens and all neurons:
//   partials[first + split, t, c] = sum over the split's range of neurons of hidden[t, k] * W[k, c]
// or adds the sum to the existing value. A workgroup computes 64 columns of WORKGROUP_SIZE / 2
// tokens over one range, grid (groups of tokens; groups of columns; splits). Shared memory holds 32
// neurons at a time with decoded weights. Each invocation computes 8 columns of 4 tokens.
#include "lane.wgsl"
#include "weights.wgsl"
#include "params.wgsl"

// Columns per workgroup, and neurons per tile.
const COLUMNS: u32 = 64u;
const DEPTH: u32 = 32u;

@group(0) @binding(2) var<storage, read> hidden: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> partials: array<vec4<f32>>;

// [neurons, 16 vec4 of columns] and [tokens, 8 vec4 of neurons]. `place` permutes the latter, so
// that neighbours are in different banks. WORKGROUP_SIZE is a multiple of 8 and at most 128.
var<workgroup> weight_tile: array<vec4<f32>, 512>;
var<workgroup> hidden_tile: array<vec4<f32>, 512>;

fn place(token: u32, four: u32) -> u32 {
    return token * 8u + (four ^ (token % 8u));
}

fn add_to(to: u32, sum: vec4<f32>) {
    if params.accumulate == 0u {
        partials[to] = sum;
    } else {
        partials[to] += sum;
    }
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn gemm_neurons(
#include "builtins.wgsl"
) {
    let index = builtins.index;
    let tokens = WORKGROUP_SIZE / 2u;
    let first_token = builtins.workgroup.x * tokens;
    let first_chunk = builtins.workgroup.y * (COLUMNS / 32u);
    let split = builtins.workgroup.z;
    // A range is a whole number of tiles.
    let range = ((params.neurons + DEPTH - 1u) / DEPTH + params.splits - 1u) / params.splits * DEPTH;
    let end = min((split + 1u) * range, params.neurons);
    // The columns of an invocation are those of vec4 own and own + 8, its tokens are own_token +
    // across * j.
    let own = index % 8u;
    let own_token = index / 8u;
    let across = WORKGROUP_SIZE / 8u;
    var low: array<vec4<f32>, 4>;
    var high: array<vec4<f32>, 4>;
    for (var first = split * range; first < end; first += DEPTH) {
        for (var item = index; item < DEPTH * 8u; item += WORKGROUP_SIZE) {
            // Past the end, the last neuron and the last chunk are repeated. That neuron's
            // activation is 0, and that chunk is not written.
            let neuron = min(first + item / 8u, end - 1u);
            let chunk = item % 8u / 4u;
            let w = load8(neuron, min(first_chunk + chunk, params.chunks - 1u), item % 4u, params.chunks);
            let columns = item / 8u * 16u + chunk * 8u + columns8(item % 4u);
            weight_tile[columns.x] = w.low * w.scale + w.offset;
            weight_tile[columns.y] = w.high * w.scale + w.offset;
        }
        for (var item = index; item < tokens * 8u; item += WORKGROUP_SIZE) {
            let token = item / 8u;
            let neuron = first + item % 8u * 4u;
            let inside = vec4<u32>(neuron, neuron + 1u, neuron + 2u, neuron + 3u) < vec4<u32>(end);
            let at = min(first_token + token, params.tokens - 1u) * params.hidden_pitch + min(neuron, end - 1u);
            hidden_tile[place(token, item % 8u)] = select(vec4<f32>(), hidden[at / 4u], inside);
        }
        workgroupBarrier();
        for (var four = 0u; four < DEPTH / 4u; four += 1u) {
            let at = four * 64u + own;
            let a = mat4x4<f32>(weight_tile[at], weight_tile[at + 16u], weight_tile[at + 32u], weight_tile[at + 48u]);
            let b = mat4x4<f32>(weight_tile[at + 8u], weight_tile[at + 24u], weight_tile[at + 40u], weight_tile[at + 56u]);
            for (var j = 0u; j < 4u; j += 1u) {
                let h = hidden_tile[place(own_token + across * j, four)];
                low[j] += a * h;
                high[j] += b * h;
            }
        }
        workgroupBarrier();
    }
    for (var j = 0u; j < 4u; j += 1u) {
        let token = first_token + own_token + across * j;
        if token < params.tokens {
            let row = (params.first + split) * params.tokens + token;
            let to = (row * params.chunks + first_chunk) * 8u + own;
            add_to(to, low[j]);
            if first_chunk + 1u < params.chunks {
                add_to(to + 8u, high[j]);
            }
        }
    }
}
