// Prepares queries and appends keys and values to a page of the caches. The input is stacked
// queries, keys and values [tokens, (n_head + n_kv_head) * head_dim + n_kv_head * value_dim]. The
// outputs are queries [tokens, n_head, head_dim] and rows position .. position + tokens (modulo
// capacity) of the page, [kv_heads, capacity, head_dim or value_dim] from head first_kv_head on.
// Only the dispatch of the page with the first head writes queries.
// Queries and keys are normalised per head (QK_NORM: x / sqrt(mean(x^2) + eps) * w), or over all
// heads of a token together (with QK_NORM_ALL). Values are normalised per head without weights
// (V_NORM), and multiplied by VALUE_SCALE. The first `dims` elements of queries and keys are
// rotated. Queries then grow with their position (QUERY_SCALE). With NORM_AFTER_ROPE, the whole
// norm is applied after the rotation. Rotations keep lengths, so its scale can be computed before.
// With GATED, each query head is followed by its gate of head_dim elements, which is not copied.
// Heads of q and rows of the caches are padded with zeros to a multiple of four elements. The
// caches hold f32 when KV_F32, else pairs of f16. One workgroup per head and token: grid (2
// kv_heads, preceded by n_head if the dispatch writes queries; tokens). Any WORKGROUP_SIZE works;
// head_dim / 2 is best.
#include "lane.wgsl"
#include "reduce.wgsl"
#include "rotation.wgsl"
#include "token_positions.wgsl"
#include "params.wgsl"

override QK_NORM: bool = false;
override QK_NORM_ALL: bool = false;
override NORM_AFTER_ROPE: bool = false;
override GATED: bool = false;
override V_NORM: bool = false;
override VALUE_SCALE: f32 = 1.0;
override KV_F32: bool = false;

const MAX_F16: f32 = 65504.0;

@group(0) @binding(0) var<storage, read> qkv: array<f32>;
@group(0) @binding(1) var<storage, read> table: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read> q_norm: array<f32>;
@group(0) @binding(3) var<storage, read> k_norm: array<f32>;
@group(0) @binding(4) var<storage, read_write> q: array<vec2<f32>>;
@group(0) @binding(5) var<storage, read_write> keys: array<u32>;
@group(0) @binding(6) var<storage, read_write> values: array<u32>;

struct Head {
    // Index of its first element in qkv.
    start: u32,
    // Row of its token.
    row: u32,
    is_query: bool,
    is_value: bool,
    // Scale of the norm, without the weights.
    scale: f32,
    // Index of its first element in the norm's weights.
    weights: u32,
    // Number of its elements.
    len: u32,
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn rope_append(
#include "builtins.wgsl"
) {
    let lane = lane_of(builtins);
    let token = builtins.workgroup.y;
    let at_row = params.row + token;
    let queries = select(0u, params.n_head, params.first_kv_head == 0u);
    let is_query = builtins.workgroup.x < queries;
    // Index among the keys, then the values, of the page.
    let cached = builtins.workgroup.x - queries;
    let in_page = cached % params.kv_heads;
    // Index among all queries, keys and values of a token.
    let slot_of_cached = params.n_head + cached / params.kv_heads * params.n_kv_head + params.first_kv_head + in_page;
    let slot = select(slot_of_cached, builtins.workgroup.x, is_query);
    var at = slot;
    if GATED {
        at += min(slot, params.n_head);
    }
    var start = at_row * params.qkv_pitch + at * params.head_dim;
    let keys_end = params.n_head + params.n_kv_head;
    let is_value = slot >= keys_end;
    var own_dim = params.head_dim;
    if is_value {
        let value = slot - keys_end;
        start = at_row * params.qkv_pitch + (at - value) * params.head_dim + value * params.value_dim;
        own_dim = params.value_dim;
    }
    var head = Head(start, at_row, is_query, is_value, 1.0, 0u, own_dim);
    if (QK_NORM && !is_value) || (V_NORM && is_value) {
        var begin = start;
        var len = own_dim;
        if QK_NORM_ALL && !is_value {
            let first = select(params.n_head, 0u, is_query);
            head.weights = (slot - first) * params.head_dim;
            begin = start - head.weights;
            len *= select(params.n_kv_head, params.n_head, is_query);
        }
        var squares = 0.0;
        for (var i = lane.index; i < len; i += WORKGROUP_SIZE) {
            squares += qkv[begin + i] * qkv[begin + i];
        }
        head.scale = inverseSqrt(workgroup_sum(squares, lane) / f32(len) + params.eps);
    }
    let query_scale = query_growth(params.positions, token);
    if is_value {
        head.scale *= VALUE_SCALE;
    }
    let pairs = (own_dim + 3u) / 4u * 2u;
    let row = (in_page * params.capacity + (params.positions.first + token) % params.capacity) * pairs;
    for (var i = lane.index; i < pairs; i += WORKGROUP_SIZE) {
        let pair = vec2<f32>(element(head, i * 2u), element(head, i * 2u + 1u));
        if is_query {
            q[at_row * params.q_pitch / 2u + slot * pairs + i] = pair * query_scale;
        } else if KV_F32 {
            append(is_value, (row + i) * 2u, bitcast<u32>(pair.x));
            append(is_value, (row + i) * 2u + 1u, bitcast<u32>(pair.y));
        } else {
            let finite = clamp(pair, vec2<f32>(-MAX_F16), vec2<f32>(MAX_F16));
            append(is_value, row + i, pack2x16float(finite));
        }
    }
}

fn append(is_value: bool, at: u32, word: u32) {
    if is_value {
        values[at] = word;
    } else {
        keys[at] = word;
    }
}

// Applies the norm to an element.
fn normed(head: Head, i: u32, x: f32) -> f32 {
    if head.is_value {
        return x * head.scale;
    }
    if !QK_NORM {
        return x;
    }
    let at = head.weights + i;
    // Read only one of the weights, because the other may be shorter.
    var weight = 0.0;
    if head.is_query {
        weight = q_norm[at];
    } else {
        weight = k_norm[at];
    }
    return x * head.scale * weight;
}

// An element before the rotation.
fn unrotated(head: Head, i: u32) -> f32 {
    let x = qkv[head.start + i];
    if NORM_AFTER_ROPE && !head.is_value {
        return x;
    }
    return normed(head, i, x);
}

fn element(head: Head, i: u32) -> f32 {
    if i >= head.len {
        return 0.0;
    }
    let x = rotated(head, i);
    if NORM_AFTER_ROPE && !head.is_value {
        return normed(head, i, x);
    }
    return x;
}

fn rotated(head: Head, i: u32) -> f32 {
    let x = unrotated(head, i);
    if !ROPE || head.is_value || i >= params.dims {
        return x;
    }
    let to = rotation_of(head.row, i, params.dims);
    return x * to.cosine + unrotated(head, to.partner) * to.sine;
}
