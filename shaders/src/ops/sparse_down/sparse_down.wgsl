// The down projection hidden[t] . W with one row per neuron: row j of W [n_ff, d] belongs to neuron
// j. Workgroup (strip, split, group of TOKENS tokens) writes the partial sum over its range of
// neurons for its strip of columns:
//   partials[first + split, t, c] = sum over the range of hidden[t, k] * W[k, c]
// or adds it to the existing value. `sum_splits` adds up the partial sums.
#include "weights.wgsl"
#include "params.wgsl"

override WORKGROUP_SIZE: u32 = 128u;
// Skip the rows of silent neurons. This pays if many are silent, because invocations wait for each
// other.
override SKIP: bool = false;
// Number of invocations that read a row side by side, eight columns each, or PARTS times eight with
// one token. Divides WORKGROUP_SIZE. The workgroup reads 4 * WORKGROUP_SIZE / STRIP rows at a time.
override STRIP: u32 = 32u;
// Tokens per workgroup, at most MOST_TOKENS. Each weight is read once for all of them.
override TOKENS: u32 = 1u;
const MOST_TOKENS: u32 = 8u;

@group(0) @binding(2) var<storage, read> hidden: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> partials: array<vec4<f32>>;

// Four vectors per invocation.
override SUMS: u32 = 4u * WORKGROUP_SIZE;
var<workgroup> sums: array<vec4<f32>, SUMS>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn sparse_down(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) workgroup: vec3<u32>) {
    let split = workgroup.y;
    let first_token = workgroup.z * TOKENS;
    let col = lane % STRIP;
    // Columns of an invocation: `parts` times eight of a chunk, from part `part` on. The sums of
    // several tokens fill the registers, so an invocation then takes only eight columns.
    let parts = select(1u, PARTS, TOKENS == 1u);
    let place = workgroup.x * STRIP + col;
    let chunk = place / (4u / parts);
    let part = place % (4u / parts) * parts;
    let count = params.neurons;
    // Ranges are in groups of four neurons.
    let range = ((count + 3u) / 4u + params.splits - 1u) / params.splits;
    let end = min((split + 1u) * range * 4u, count);
    // Sums per token or, with one token, per part.
    var low: array<vec4<f32>, MOST_TOKENS>;
    var high: array<vec4<f32>, MOST_TOKENS>;
    var offset = 0.0;
    if chunk < params.chunks {
        let step = WORKGROUP_SIZE / STRIP * 4u;
        for (var k = (split * range + lane / STRIP) * 4u; k < end; k += step) {
            let inside = vec4<u32>(k, k + 1u, k + 2u, k + 3u) < vec4<u32>(end);
            if TOKENS == 1u {
                let h = select(vec4<f32>(), hidden[(first_token * params.hidden_pitch + k) / 4u], inside);
                for (var n = 0u; n < 4u; n += 1u) {
                    if !SKIP || h[n] != 0.0 {
                        let neuron = min(k + n, end - 1u);
                        let w = load8(neuron, chunk, part, params.chunks);
                        // All parts of a chunk have one scale and one offset.
                        let scale = h[n] * w.scale;
                        offset += h[n] * w.offset;
                        low[0] += scale * w.low;
                        high[0] += scale * w.high;
                        if PARTS > 1u {
                            let w = load8(neuron, chunk, part + 1u, params.chunks);
                            low[1] += scale * w.low;
                            high[1] += scale * w.high;
                        }
                        if PARTS > 2u {
                            let w = load8(neuron, chunk, part + 2u, params.chunks);
                            low[2] += scale * w.low;
                            high[2] += scale * w.high;
                            let v = load8(neuron, chunk, part + 3u, params.chunks);
                            low[3] += scale * v.low;
                            high[3] += scale * v.high;
                        }
                    }
                }
                continue;
            }
            var h: array<vec4<f32>, MOST_TOKENS>;
            var any_fired = vec4<bool>();
            for (var t = 0u; t < TOKENS; t += 1u) {
                // Tokens past the end repeat the last token and are not written.
                let token = min(first_token + t, params.tokens - 1u);
                h[t] = select(vec4<f32>(), hidden[(token * params.hidden_pitch + k) / 4u], inside);
                any_fired |= h[t] != vec4<f32>();
            }
            for (var n = 0u; n < 4u; n += 1u) {
                if !SKIP || any_fired[n] {
                    let neuron = min(k + n, end - 1u);
                    let w = load8(neuron, chunk, part, params.chunks);
                    let w_low = w.low * w.scale + w.offset;
                    let w_high = w.high * w.scale + w.offset;
                    for (var t = 0u; t < TOKENS; t += 1u) {
                        low[t] += h[t][n] * w_low;
                        high[t] += h[t][n] * w_high;
                    }
                }
            }
        }
    }
    // Four vectors of each invocation at a time, from two parts or two tokens.
    let vectors = 2u * max(parts, TOKENS);
    for (var i = 0u; i < vectors; i += 4u) {
        workgroupBarrier();
        sums[lane] = low[i / 2u] + offset;
        sums[WORKGROUP_SIZE + lane] = high[i / 2u] + offset;
        sums[2u * WORKGROUP_SIZE + lane] = low[i / 2u + 1u] + offset;
        sums[3u * WORKGROUP_SIZE + lane] = high[i / 2u + 1u] + offset;
        workgroupBarrier();
        for (var item = lane; item < 4u * STRIP; item += WORKGROUP_SIZE) {
            let vector = item / STRIP;
            let pair = (i + vector) / 2u;
            let token = first_token + select(pair, 0u, TOKENS == 1u);
            let place = workgroup.x * STRIP + item % STRIP;
            let chunk = place / (4u / parts);
            if i + vector < vectors && chunk < params.chunks && token < params.tokens {
                var sum = vec4<f32>();
                for (var other = item % STRIP; other < WORKGROUP_SIZE; other += STRIP) {
                    sum += sums[vector * WORKGROUP_SIZE + other];
                }
                let columns = columns8(place % (4u / parts) * parts + select(0u, pair, TOKENS == 1u)) + chunk * 8u;
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
