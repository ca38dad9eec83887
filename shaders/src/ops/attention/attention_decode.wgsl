// Attention of few tokens, each with workgroups of its own. Grid: (splits; kv_heads * ceil(n_head /
// n_kv_head / HEADS); tokens). A workgroup takes HEADS query heads of one key/value head and `span`
// keys, counted from the first key that its token sees. It goes through them in tiles with an
// online softmax (Milakov and Gimelshein 2018). Each key and value is read once for all HEADS.
//   splits > 1: out is partials [tokens, n_head, splits, VALUE_UNITS + 1] in units: the sum of
//               e^(score - max) * value, then max and the sum of e^(score - max).
//               attention_merge combines them. A split that sees no key has max HIDDEN and sum 0.
//   splits = 1: out is the result, [tokens, n_head * VALUE_DIM].
// With SINKS, the first split includes each head's sink in its scores.
// WORKGROUP_SIZE is a multiple of 32 and at least UNITS, VALUE_UNITS and 16 * HEADS. HEADS is at
// most MOST_HEADS, and HEADS * UNITS at most MOST_UNITS.
#include "attention.wgsl"
#include "slices.wgsl"

override HEADS: u32 = 1u;
const MOST_HEADS: u32 = 8u;
const MOST_UNITS: u32 = 256u;
const TILE: u32 = 32u;
// Lanes that share the units of a key in the products, and lanes that share the scores of a head.
const KEY_LANES: u32 = 4u;
const SCORE_LANES: u32 = 16u;
// Rounds in which the lanes go through the keys of a tile.
override ROUNDS: u32 = (TILE * KEY_LANES + WORKGROUP_SIZE - 1u) / WORKGROUP_SIZE;
// Values of a tile per lane, and whether they divide evenly between the lanes.
override READS: u32 = (TILE + SLICES - 1u) / SLICES;
override EVEN: bool = TILE % SLICES == 0u && WORKGROUP_SIZE % VALUE_UNITS == 0u;

@group(0) @binding(4) var<storage, read_write> out: array<f32>;

// [HEADS, UNITS], scaled
var<workgroup> queries: array<vec4<f32>, MOST_UNITS>;
// [HEADS, TILE, KEY_LANES]
var<workgroup> products: array<f32, 1024>;
// [HEADS, SCORE_LANES]
var<workgroup> of_lanes: array<f32, 128>;
// [TILE, MOST_HEADS]: e^(score - max)
var<workgroup> weights: array<f32, 256>;
// Per head, the factor by which a larger maximum shrinks the earlier sums.
var<workgroup> shrink: array<f32, MOST_HEADS>;
var<workgroup> maxima: array<f32, MOST_HEADS>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn attention_decode(
#include "builtins.wgsl"
) {
    let lane = builtins.index;
    let split = builtins.workgroup.x;
    let token = builtins.workgroup.z;
    let group = params.n_head / params.n_kv_head;
    let blocks = (group + HEADS - 1u) / HEADS;
    let in_page = builtins.workgroup.y / blocks;
    let kv_head = params.first_kv_head + in_page;
    // Heads past the group's last head repeat that head and are not written.
    let first_head = builtins.workgroup.y % blocks * HEADS;

    let position = params.position + token;
    // Where a token's splits begin does not depend on the other tokens.
    let start = first_seen(position) + split * params.span;
    let end = min(start + params.span, position + 1u);
    let rows = in_page * params.capacity;
    let ring = ring_start();

    for (var i = lane; i < HEADS * UNITS; i += WORKGROUP_SIZE) {
        let head = kv_head * group + min(first_head + i / UNITS, group - 1u);
        queries[i] = q[(params.row + token) * params.q_pitch / 4u + head * UNITS + i % UNITS] * params.scale;
    }
    workgroupBarrier();

    let key_lane = lane % KEY_LANES;
    let score_head = lane / SCORE_LANES;
    let score_lane = lane % SCORE_LANES;
    let unit = lane % VALUE_UNITS;
    let slice = lane / VALUE_UNITS;
    var highest = HIDDEN;
    var sum = 0.0;
    // Only the first split includes the sinks.
    if SINKS && split == 0u && score_head < HEADS {
        highest = sinks[kv_head * group + min(first_head + score_head, group - 1u)];
        sum = select(0.0, 1.0, score_lane == 0u);
    }
    var sums: array<vec4<f32>, MOST_HEADS>;
    for (var tile = start; tile < end; tile += TILE) {
        for (var round = 0u; round < ROUNDS; round += 1u) {
            let key = (round * WORKGROUP_SIZE + lane) / KEY_LANES;
            if key < TILE {
                let row = (rows + ring_row(min(tile + key, end - 1u), ring)) * UNITS;
                multiply(row, key, key_lane);
            }
        }
        // These loads overlap with the scores. Values past the end have weight 0 and are read from
        // the last row, which holds numbers.
        var parts: array<vec4<u32>, TILE>;
        for (var i = 0u; i < READS; i += 1u) {
            let row = rows + ring_row(min(tile + i * SLICES + slice, end - 1u), ring);
            parts[i] = value_words(row * VALUE_UNITS + unit);
        }
        workgroupBarrier();

        // Two keys per lane.
        var scores = vec2<f32>(HIDDEN);
        if score_head < HEADS {
            let at = (score_head * TILE + score_lane) * KEY_LANES;
            let other = at + SCORE_LANES * KEY_LANES;
            let low = products[at] + products[at + 1u] + products[at + 2u] + products[at + 3u];
            let high = products[other] + products[other + 1u] + products[other + 2u] + products[other + 3u];
            let seen = vec2<u32>(score_lane, score_lane + SCORE_LANES) + tile < vec2<u32>(end);
            scores = select(scores, capped(vec4<f32>(low, high, 0.0, 0.0)).xy, seen);
            of_lanes[score_head * SCORE_LANES + score_lane] = max(scores.x, scores.y);
        }
        workgroupBarrier();
        if score_head < HEADS {
            var top = highest;
            for (var i = 0u; i < SCORE_LANES; i += 1u) {
                top = max(top, of_lanes[score_head * SCORE_LANES + i]);
            }
            // The first key of a tile is always seen, so `top` is a score or a sink, and weights of
            // hidden keys are 0.
            let weight = exp(scores - top);
            weights[score_lane * MOST_HEADS + score_head] = weight.x;
            weights[(score_lane + SCORE_LANES) * MOST_HEADS + score_head] = weight.y;
            let left = exp(highest - top);
            sum = sum * left + weight.x + weight.y;
            highest = top;
            if score_lane == 0u {
                shrink[score_head] = left;
            }
        }
        workgroupBarrier();

        for (var h = 0u; h < HEADS; h += 1u) {
            sums[h] *= shrink[h];
        }
        for (var i = 0u; i < READS; i += 1u) {
            let key = i * SLICES + slice;
            if EVEN || key < TILE {
                let value = widened(parts[i]);
                for (var h = 0u; h < HEADS; h += 1u) {
                    sums[h] += weights[key * MOST_HEADS + h] * value;
                }
            }
        }
    }

    if score_head < HEADS {
        of_lanes[score_head * SCORE_LANES + score_lane] = sum;
        if score_lane == 0u {
            maxima[score_head] = highest;
        }
    }
    for (var h = 0u; h < HEADS; h += 1u) {
        // The barriers of this call also make the lanes' sums and maxima visible.
        let result = sum_slices(sums[h], lane);
        if lane < VALUE_UNITS && first_head + h < group {
            write_result(token, kv_head * group + first_head + h, split, h, lane, result);
        }
    }
}

// Computes this lane's part of the products of a key with the queries.
fn multiply(row: u32, key: u32, key_lane: u32) {
    var dots: array<f32, MOST_HEADS>;
    for (var i = 0u; i < (UNITS + KEY_LANES - 1u) / KEY_LANES; i += 1u) {
        let unit = i * KEY_LANES + key_lane;
        if UNITS % KEY_LANES == 0u || unit < UNITS {
            let part = widened(key_words(row + unit));
            for (var h = 0u; h < HEADS; h += 1u) {
                dots[h] += dot(part, queries[h * UNITS + unit]);
            }
        }
    }
    for (var h = 0u; h < HEADS; h += 1u) {
        products[(h * TILE + key) * KEY_LANES + key_lane] = dots[h];
    }
}

fn write_result(token: u32, head: u32, split: u32, h: u32, unit: u32, result: vec4<f32>) {
    var total = 0.0;
    for (var i = 0u; i < SCORE_LANES; i += 1u) {
        total += of_lanes[h * SCORE_LANES + i];
    }
    if params.splits == 1u {
        write_unit((params.row + token) * params.out_pitch + head * VALUE_DIM, unit, result / total);
        return;
    }
    let partial = ((token * params.n_head + head) * params.splits + split) * (VALUE_UNITS + 1u) * 4u;
    for (var i = 0u; i < 4u; i += 1u) {
        out[partial + unit * 4u + i] = result[i];
    }
    if unit == 0u {
        out[partial + VALUE_UNITS * 4u] = maxima[h];
        out[partial + VALUE_UNITS * 4u + 1u] = total;
    }
}
