// Queries and keys of latent attention, from queries [tokens, n_head, nope_dim | rope_dim] and
// projections [tokens, rank | rope_dim]:
//   inputs [tokens * n_head, inputs_pitch]: the first part of each query, padded with zeros
//   q      [tokens, n_head, rank | rope_dim]: the second part, rotated; the first is not written
//   row (position + token) % capacity of keys [capacity, rank | rope_dim]:
//          l / sqrt(mean(l^2) + eps) * norm of the latent l, and the rest rotated
// Heads of q and rows of keys are padded with zeros to a multiple of four elements. Both parts of
// queries grow with their position (QUERY_SCALE).
// Keys hold f32 when KV_F32, else pairs of f16. One workgroup per head and token, and one per key:
// grid (n_head + 1; tokens).
#include "lane.wgsl"
#include "reduce.wgsl"
#include "rotation.wgsl"
#include "token_positions.wgsl"
#include "params.wgsl"

override KV_F32: bool = false;

const MAX_F16: f32 = 65504.0;

@group(0) @binding(0) var<storage, read> queries: array<f32>;
@group(0) @binding(1) var<storage, read> projected: array<f32>;
@group(0) @binding(2) var<storage, read> table: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read> norm: array<f32>;
@group(0) @binding(4) var<storage, read_write> inputs: array<f32>;
@group(0) @binding(5) var<storage, read_write> q: array<f32>;
@group(0) @binding(6) var<storage, read_write> keys: array<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn latent_append(
#include "builtins.wgsl"
) {
    let lane = lane_of(builtins);
    let head = builtins.workgroup.x;
    let token = params.row + builtins.workgroup.y;
    let width = params.rank + params.rope_dim;
    let padded = (width + 3u) / 4u * 4u;
    // The condition is the same for the whole workgroup.
    if head < params.n_head {
        let start = token * params.queries_pitch + head * (params.nope_dim + params.rope_dim);
        let slot = token * params.n_head + head;
        let query_scale = query_growth(params.positions, builtins.workgroup.y);
        for (var i = lane.index; i < params.inputs_pitch; i += WORKGROUP_SIZE) {
            var value = 0.0;
            if i < params.nope_dim {
                value = queries[start + i] * query_scale;
            }
            inputs[slot * params.inputs_pitch + i] = value;
        }
        for (var i = lane.index; i < padded - params.rank; i += WORKGROUP_SIZE) {
            q[slot * padded + params.rank + i] = rotated_query(start + params.nope_dim, token, i) * query_scale;
        }
        return;
    }
    let start = token * params.projected_pitch;
    var squares = 0.0;
    for (var i = lane.index; i < params.rank; i += WORKGROUP_SIZE) {
        squares += projected[start + i] * projected[start + i];
    }
    let scale = inverseSqrt(workgroup_sum(squares, lane) / f32(params.rank) + params.eps);
    let row = (params.positions.first + builtins.workgroup.y) % params.capacity * padded / 2u;
    for (var i = lane.index; i < padded / 2u; i += WORKGROUP_SIZE) {
        let pair = vec2<f32>(key_element(start, token, scale, 2u * i), key_element(start, token, scale, 2u * i + 1u));
        if KV_F32 {
            keys[(row + i) * 2u] = bitcast<u32>(pair.x);
            keys[(row + i) * 2u + 1u] = bitcast<u32>(pair.y);
        } else {
            keys[row + i] = pack2x16float(clamp(pair, vec2<f32>(-MAX_F16), vec2<f32>(MAX_F16)));
        }
    }
}

fn key_element(start: u32, token: u32, scale: f32, i: u32) -> f32 {
    if i < params.rank {
        return projected[start + i] * scale * norm[i];
    }
    let at = i - params.rank;
    if at >= params.rope_dim {
        return 0.0;
    }
    if !ROPE {
        return projected[start + i];
    }
    let to = rotation_of(token, at, params.rope_dim);
    return projected[start + i] * to.cosine + projected[start + params.rank + to.partner] * to.sine;
}

fn rotated_query(start: u32, token: u32, i: u32) -> f32 {
    if i >= params.rope_dim {
        return 0.0;
    }
    if !ROPE {
        return queries[start + i];
    }
    let to = rotation_of(token, i, params.rope_dim);
    return queries[start + i] * to.cosine + queries[start + to.partner] * to.sine;
}
