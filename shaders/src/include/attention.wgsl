// Inputs of attention: queries [tokens, n_head, units], and a page of the caches. For each of the
// kv_heads key/value heads from first_kv_head on, the page has `capacity` rows of keys and of
// values. The rows are a ring: position p is in row p % capacity. It has room for all keys that the
// tokens see and for TILES more positions. Query head h reads key/value head h / (n_head /
// n_kv_head).
#include "head.wgsl"
#include "params.wgsl"

// True if the caches hold f32, otherwise pairs of f16.
override KV_F32: bool = false;
// Each query head has an additional key without a value, with its score in `sinks`.
override SINKS: bool = false;

// Largest tile of positions. Tiles start at multiples of their size, or at the first position that
// is seen.
const TILES: u32 = 64u;

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> keys: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> values: array<vec2<u32>>;
// [n_head]
@group(0) @binding(3) var<storage, read> sinks: array<f32>;

// Four elements of a cache as stored. Values that are loaded early and used late stay in this form.
fn key_words(unit: u32) -> vec4<u32> {
    if KV_F32 {
        return vec4<u32>(keys[2u * unit], keys[2u * unit + 1u]);
    }
    return vec4<u32>(keys[unit], 0u, 0u);
}

fn value_words(unit: u32) -> vec4<u32> {
    if KV_F32 {
        return vec4<u32>(values[2u * unit], values[2u * unit + 1u]);
    }
    return vec4<u32>(values[unit], 0u, 0u);
}

fn widened(words: vec4<u32>) -> vec4<f32> {
    if KV_F32 {
        return bitcast<vec4<f32>>(words);
    }
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}

// The first key that a query at this position sees. The last is its own.
fn first_seen(position: u32) -> u32 {
    return select(0u, position + 1u - params.window, params.window != 0u && params.window <= position);
}

// The position in row 0 from which the row of a key is counted. Positions past the last row
// continue in row 0.
fn ring_start() -> u32 {
    return first_seen(params.position) / TILES * TILES / params.capacity * params.capacity;
}

// The row of the key at this position. `start` is the result of `ring_start`.
fn ring_row(position: u32, start: u32) -> u32 {
    let row = position - start;
    return select(row, row - params.capacity, row >= params.capacity);
}

fn capped(score: vec4<f32>) -> vec4<f32> {
    if params.softcap == 0.0 {
        return score;
    }
    // On some drivers tanh is NaN above about 44. tanh(10) is already 1 to the last bit.
    return params.softcap * tanh(clamp(score / params.softcap, vec4<f32>(-10.0), vec4<f32>(10.0)));
}
