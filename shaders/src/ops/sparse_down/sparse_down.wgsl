// The down projection hidden[t] . W with one row per neuron: row j of W [n_ff, d] belongs to neuron
// j. Workgroup (group of TOKENS tokens, strip, split) writes the partial sum over its range of
// neurons for its strip of columns:
//   partials[first + split, t, c] = sum over the range of hidden[t, k] * W[k, c]
// or adds it to the existing value. `sum_splits` adds up the partial sums. A token's sums have the
// same order alone and among others.
#include "weights.wgsl"
#include "params.wgsl"

override WORKGROUP_SIZE: u32 = 128u;
// Skip the rows of neurons that are silent for every token. This pays if many are silent, because
// invocations wait for each other.
override SKIP: bool = false;
// Number of invocations that read a row side by side. Divides WORKGROUP_SIZE. The workgroup reads
// 4 * WORKGROUP_SIZE / STRIP rows at a time, in an order of sums that depends on no other number.
override STRIP: u32 = 32u;
// Tokens per workgroup, at most MOST_TOKENS. Each weight is decoded once for all of them.
override TOKENS: u32 = 1u;
const MOST_TOKENS: u32 = 8u;

@group(0) @binding(2) var<storage, read> hidden: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> partials: array<vec4<f32>>;

// Four vectors per invocation.
override SUMS: u32 = 4u * WORKGROUP_SIZE;
var<workgroup> sums: array<vec4<f32>, SUMS>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn sparse_down(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) workgroup: vec3<u32>) {
    let split = workgroup.z;
    let first_token = workgroup.x * TOKENS;
    let first_place = workgroup.y * STRIP;
    // Columns of an invocation: `parts` times eight of a chunk, from part `part` on. The sums of
    // all tokens fill the registers, so with many tokens an invocation takes fewer columns.
    let parts = min(PARTS, MOST_TOKENS / TOKENS);
    let place = first_place + lane % STRIP;
    let chunk = place / (4u / parts);
    let part = place % (4u / parts) * parts;
    let count = params.neurons;
    // Ranges are in groups of four neurons.
    let range = ((count + 3u) / 4u + params.splits - 1u) / params.splits;
    let end = min((split + 1u) * range * 4u, count);
    // Sums of token t and part p at t * parts + p.
    var low: array<vec4<f32>, MOST_TOKENS>;
    var high: array<vec4<f32>, MOST_TOKENS>;
    var offsets: array<f32, MOST_TOKENS>;
    if chunk < params.chunks {
        let step = WORKGROUP_SIZE / STRIP * 4u;
        for (var k = (split * range + lane / STRIP) * 4u; k < end; k += step) {
            let inside = vec4<u32>(k, k + 1u, k + 2u, k + 3u) < vec4<u32>(end);
            var h: array<vec4<f32>, MOST_TOKENS>;
            var any_fired = vec4<bool>();
            for (var t = 0u; t < TOKENS; t += 1u) {
                // Tokens past the end repeat the last token and are not written.
                let token = min(first_token + t, params.tokens - 1u);
                h[t] = select(vec4<f32>(), hidden[(token * params.hidden_pitch + k) / 4u], inside);
                any_fired |= h[t] != vec4<f32>();
            }
            for (var n = 0u; n < 4u; n += 1u) {
                if SKIP && !any_fired[n] {
                    continue;
                }
                let neuron = min(k + n, end - 1u);
                // All parts of a chunk have one scale and one offset.
                let w = load8(neuron, chunk, part, params.chunks);
                for (var t = 0u; t < TOKENS; t += 1u) {
                    let scale = h[t][n] * w.scale;
                    offsets[t] += h[t][n] * w.offset;
                    low[t * parts] += scale * w.low;
                    high[t * parts] += scale * w.high;
                }
                if parts > 1u {
                    let v = load8(neuron, chunk, part + 1u, params.chunks);
                    for (var t = 0u; t < TOKENS; t += 1u) {
                        let scale = h[t][n] * w.scale;
                        low[t * parts + 1u] += scale * v.low;
                        high[t * parts + 1u] += scale * v.high;
                    }
                }
                if parts > 2u {
                    let v = load8(neuron, chunk, part + 2u, params.chunks);
                    let u = load8(neuron, chunk, part + 3u, params.chunks);
                    for (var t = 0u; t < TOKENS; t += 1u) {
                        let scale = h[t][n] * w.scale;
                        low[t * parts + 2u] += scale * v.low;
                        high[t * parts + 2u] += scale * v.high;
                        low[t * parts + 3u] += scale * u.low;
                        high[t * parts + 3u] += scale * u.high;
                    }
                }
            }
        }
    }
    // Four vectors of each invocation at a time: those of two parts or of two tokens.
    let vectors = 2u * parts * TOKENS;
    for (var i = 0u; i < vectors; i += 4u) {
        let a = i / 2u;
        let b = (a + 1u) % MOST_TOKENS;
        workgroupBarrier();
        sums[lane] = low[a] + offsets[a / parts];
        sums[WORKGROUP_SIZE + lane] = high[a] + offsets[a / parts];
        sums[2u * WORKGROUP_SIZE + lane] = low[b] + offsets[b / parts];
        sums[3u * WORKGROUP_SIZE + lane] = high[b] + offsets[b / parts];
        workgroupBarrier();
        for (var item = lane; item < 4u * STRIP; item += WORKGROUP_SIZE) {
            let vector = item / STRIP;
            let at = (i + vector) / 2u;
            let token = first_token + at / parts;
            let place = first_place + item % STRIP;
            let chunk = place / (4u / parts);
            if i + vector < vectors && chunk < params.chunks && token < params.tokens {
                var sum = vec4<f32>();
                for (var other = item % STRIP; other < WORKGROUP_SIZE; other += STRIP) {
                    sum += sums[vector * WORKGROUP_SIZE + other];
                }
                let columns = columns8(place % (4u / parts) * parts + at % parts) + chunk * 8u;
                let row = (params.first + split) * params.tokens + token;
                let to = row * params.chunks * 8u + select(columns.x, columns.y, vector % 2u == 1u);
                if params.accumulate != 0u {
                    sum += partials[to];
                }
                partials[to] = sum;
            }
        }
    }
}
