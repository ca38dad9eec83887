// Attention of a chunk of tokens whose keys and values are already in the caches: out [tokens,
// n_head * VALUE_DIM]. Grid: (query heads of the page; ceil(tokens / QUERIES); ceil(VALUE_UNITS /
// OUT_UNITS), or fewer if the last elements of heads are not needed). A workgroup takes QUERIES
// tokens of one head through the keys that they see, KEYS at a time, with an online softmax (Dao et
// al. 2022). An invocation computes 4 x 4 scores from tiles of QUERIES x CHUNK and KEYS x CHUNK
// units of queries and keys. It then computes 4 tokens of every sixteenth unit of OUT_UNITS output
// units. For a wide head, workgroups with other output units compute the same scores.
// WORKGROUP_SIZE must be 128.
#include "attention.wgsl"

const QUERIES: u32 = 32u;
const KEYS: u32 = 64u;
const CHUNK: u32 = 4u;
const OUT_UNITS: u32 = 64u;
// Rows of tiles have one extra unit, so that lanes access different banks.
const KEY_PITCH: u32 = CHUNK + 1u;
const WEIGHT_PITCH: u32 = KEYS / 4u + 1u;

@group(0) @binding(4) var<storage, read_write> out: array<f32>;

// [QUERIES, CHUNK], scaled. Between products: the highest score per token and score lane.
var<workgroup> query_tile: array<vec4<f32>, 128>;
// [4, KEYS / 4, KEY_PITCH]: key 4 i + j is row (j, i). Between products: per token, the factor by
// which a larger maximum shrinks the earlier sums.
var<workgroup> key_tile: array<vec4<f32>, 320>;
// [QUERIES, WEIGHT_PITCH]: scores of four keys per unit, then e^(score - max).
var<workgroup> weights: array<vec4<f32>, 544>;

// Rows of a head in the cache: its first row, and the start of the ring.
struct CacheRows {
    first: u32,
    ring: u32,
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn attention_prompt(
#include "builtins.wgsl"
) {
    let lane = builtins.index;
    let group = params.n_head / params.n_kv_head;
    let head = params.first_kv_head * group + builtins.workgroup.x;
    // The last tokens see the most keys, so they run first.
    let tiles = (params.tokens + QUERIES - 1u) / QUERIES;
    let first = (tiles - 1u - builtins.workgroup.y) * QUERIES;
    let count = min(QUERIES, params.tokens - first);
    let rows = CacheRows(builtins.workgroup.x / group * params.capacity, ring_start());
    let end = max(params.position + first + count, params.seen_end);

    // For products and outputs: tokens 4 * row .. + 4, keys 4 * col .. + 4, units unit, unit + 16
    // ...
    let row = lane / 16u;
    let col = lane % 16u;
    let unit = builtins.workgroup.z * OUT_UNITS + col;
    // For scores: one token, and every fourth of its units of scores.
    let score_row = lane / 4u;
    let score_lane = lane % 4u;
    let position = params.position + first + score_row;
    let seen_start = max(first_seen(position), params.seen_start);
    let seen_end = max(position + 1u, params.seen_end);
    var highest = HIDDEN;
    var sum = 0.0;
    if SINKS {
        highest = sinks[head];
        sum = select(0.0, 1.0, score_lane == 0u);
    }
    var out_0: mat4x4<f32>;
    var out_1: mat4x4<f32>;
    var out_2: mat4x4<f32>;
    var out_3: mat4x4<f32>;
    let start = max(first_seen(params.position + first), params.seen_start) / KEYS * KEYS;
    var next_query = query_part(lane, first, count, head, 0u);
    var next_key_0 = key_part(lane, rows, start, end, 0u);
    var next_key_1 = key_part(lane, rows, start + KEYS / 2u, end, 0u);
    for (var tile = start; tile < end; tile += KEYS) {
        // Column r: scores of token r.
        var scores: mat4x4<f32>;
        for (var chunk = 0u; chunk < UNITS; chunk += CHUNK) {
            workgroupBarrier();
            query_tile[lane] = next_query * params.scale;
            stage_key(lane, 0u, next_key_0);
            stage_key(lane, KEYS / 2u, next_key_1);
            workgroupBarrier();
            // The loads of the next chunk overlap with the products of this chunk.
            let is_last = chunk + CHUNK >= UNITS;
            let next_chunk = select(chunk + CHUNK, 0u, is_last);
            let next_tile = select(tile, tile + KEYS, is_last);
            next_query = query_part(lane, first, count, head, next_chunk);
            next_key_0 = key_part(lane, rows, next_tile, end, next_chunk);
            next_key_1 = key_part(lane, rows, next_tile + KEYS / 2u, end, next_chunk);
            for (var u = 0u; u < CHUNK; u += 1u) {
                let queries = mat4x4<f32>(
                    query_tile[(row * 4u) * CHUNK + u],
                    query_tile[(row * 4u + 1u) * CHUNK + u],
                    query_tile[(row * 4u + 2u) * CHUNK + u],
                    query_tile[(row * 4u + 3u) * CHUNK + u],
                );
                let part = mat4x4<f32>(
                    key_tile[col * KEY_PITCH + u],
                    key_tile[(16u + col) * KEY_PITCH + u],
                    key_tile[(32u + col) * KEY_PITCH + u],
                    key_tile[(48u + col) * KEY_PITCH + u],
                );
                scores += transpose(part) * queries;
            }
        }
        for (var r = 0u; r < 4u; r += 1u) {
            weights[(row * 4u + r) * WEIGHT_PITCH + col] = scores[r];
        }
        workgroupBarrier();

        var top = HIDDEN;
        for (var i = score_lane; i < KEYS / 4u; i += 4u) {
            let at = score_row * WEIGHT_PITCH + i;
            let key = vec4<u32>(0u, 1u, 2u, 3u) + (tile + i * 4u);
            let seen = (key >= vec4<u32>(seen_start)) & (key < vec4<u32>(seen_end));
            let score = select(vec4<f32>(HIDDEN), capped(weights[at]), seen);
            weights[at] = score;
            top = max(top, max(max(score.x, score.y), max(score.z, score.w)));
        }
        query_tile[lane] = vec4<f32>(top);
        workgroupBarrier();
        top = highest;
        for (var i = 0u; i < 4u; i += 1u) {
            top = max(top, query_tile[score_row * 4u + i].x);
        }
        let left = exp(highest - top);
        highest = top;
        sum *= left;
        for (var i = score_lane; i < KEYS / 4u; i += 4u) {
            let at = score_row * WEIGHT_PITCH + i;
            // If a token sees no key yet, `top` is HIDDEN and the weight is 1. The first key that
            // it sees shrinks such weights to 0.
            let weight = exp(weights[at] - top);
            weights[at] = weight;
            sum += dot(weight, vec4<f32>(1.0));
        }
        if score_lane == 0u {
            key_tile[score_row] = vec4<f32>(left);
        }
        workgroupBarrier();

        for (var r = 0u; r < 4u; r += 1u) {
            let factor = key_tile[row * 4u + r].x;
            out_0[r] *= factor;
            out_1[r] *= factor;
            out_2[r] *= factor;
            out_3[r] *= factor;
        }
        for (var key = 0u; key < min(KEYS, end - tile); key += 4u) {
            let weight = mat4x4<f32>(
                weights[(row * 4u) * WEIGHT_PITCH + key / 4u],
                weights[(row * 4u + 1u) * WEIGHT_PITCH + key / 4u],
                weights[(row * 4u + 2u) * WEIGHT_PITCH + key / 4u],
                weights[(row * 4u + 3u) * WEIGHT_PITCH + key / 4u],
            );
            out_0 += four_values(rows, tile + key, end, unit) * weight;
            if VALUE_UNITS > 16u {
                out_1 += four_values(rows, tile + key, end, unit + 16u) * weight;
            }
            if VALUE_UNITS > 32u {
                out_2 += four_values(rows, tile + key, end, unit + 32u) * weight;
            }
            if VALUE_UNITS > 48u {
                out_3 += four_values(rows, tile + key, end, unit + 48u) * weight;
            }
        }
    }

    workgroupBarrier();
    query_tile[lane] = vec4<f32>(sum);
    workgroupBarrier();
    for (var r = 0u; r < 4u; r += 1u) {
        let at = (row * 4u + r) * 4u;
        let total = query_tile[at].x + query_tile[at + 1u].x + query_tile[at + 2u].x + query_tile[at + 3u].x;
        if row * 4u + r < count {
            let to = (params.row + first + row * 4u + r) * params.out_pitch + head * VALUE_DIM;
            write_column(to, unit, out_0[r] / total);
            write_column(to, unit + 16u, out_1[r] / total);
            write_column(to, unit + 32u, out_2[r] / total);
            write_column(to, unit + 48u, out_3[r] / total);
        }
    }
}

// The unit of a chunk of queries that this lane stages. Tokens past the last repeat the last token.
fn query_part(lane: u32, first: u32, count: u32, head: u32, chunk: u32) -> vec4<f32> {
    let unit = chunk + lane % CHUNK;
    let token = first + min(lane / CHUNK, count - 1u);
    let part = q[(params.row + token) * params.q_pitch / 4u + head * UNITS + min(unit, UNITS - 1u)];
    return select(vec4<f32>(), part, unit < UNITS);
}

// Returns the words of the key that `lane` loads for a chunk of units and half of a tile's keys. A
// key past the end repeats the last key, and its score is hidden. Units past the head are
// multiplied by zeros of the queries.
fn key_part(lane: u32, rows: CacheRows, key: u32, end: u32, chunk: u32) -> vec4<u32> {
    let row = rows.first + ring_row(min(key + lane / CHUNK, end - 1u), rows.ring);
    return key_words(row * UNITS + min(chunk + lane % CHUNK, UNITS - 1u));
}

fn stage_key(lane: u32, half: u32, words: vec4<u32>) {
    let key = half + lane / CHUNK;
    key_tile[(key % 4u * 16u + key / 4u) * KEY_PITCH + lane % CHUNK] = widened(words);
}

// One unit of the values of four keys. Values past the end have weight 0 and are read from the last
// row, which holds numbers.
fn four_values(rows: CacheRows, key: u32, end: u32, unit: u32) -> mat4x4<f32> {
    let row = min(vec4<u32>(0u, 1u, 2u, 3u) + key, vec4<u32>(end - 1u)) - rows.ring;
    let capacity = vec4<u32>(params.capacity);
    let at = vec4<u32>(rows.first) + select(row, row - capacity, row >= capacity);
    let inside = min(unit, VALUE_UNITS - 1u);
    return mat4x4<f32>(
        widened(value_words(at.x * VALUE_UNITS + inside)),
        widened(value_words(at.y * VALUE_UNITS + inside)),
        widened(value_words(at.z * VALUE_UNITS + inside)),
        widened(value_words(at.w * VALUE_UNITS + inside)),
    );
}

fn write_column(start: u32, unit: u32, value: vec4<f32>) {
    if unit < VALUE_UNITS {
        write_unit(start, unit, value);
    }
}
