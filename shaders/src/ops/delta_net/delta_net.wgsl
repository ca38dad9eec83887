// The gated delta rule (Yang et al. 2024), token by token. Each value head has a state S
// [STATE_ROWS, v_dim], which is corrected with a key and read with a query:
//   S = decay S;  delta = rate (v - S^T k);  S = S + k delta^T;  out = S^T q
// Queries, keys and rates come from delta_inputs. Value head h uses key head h mod k_heads when
// INTERLEAVED, else h / (v_heads / k_heads). A token's vectors are [queries | keys | values].
// Grid: (ceil(v_dim / COLUMNS); v_heads). Because S^T q = (decay S)^T q + delta (k . q), one sum
// over the slices serves both products.
#include "scan.wgsl"
#include "params.wgsl"

override INTERLEAVED: bool = false;

@group(0) @binding(0) var<storage, read> vectors: array<f32>;
@group(0) @binding(1) var<storage, read> rates: array<f32>;
@group(0) @binding(2) var<storage, read_write> state: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

// [2, SLICES, COLUMNS]: parts of S^T k, S^T q and k . q. Tokens alternate between the two halves,
// so that each needs one barrier.
var<workgroup> parts: array<vec4<f32>, 2u * MOST_LANES>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn delta_net(
#include "builtins.wgsl"
) {
    let lane = builtins.index;
    let head = builtins.workgroup.y;
    let slice = lane / COLUMNS;
    let place = lane % COLUMNS;
    let column = builtins.workgroup.x * COLUMNS + place;
    let inside = column < params.v_dim;
    let first = slice * ROWS;
    var k_head = head / (params.v_heads / params.k_heads);
    if INTERLEAVED {
        k_head = head % params.k_heads;
    }
    let keys = params.k_heads * STATE_ROWS;

    var s = load_rows(head, first, column, params.v_dim);
    for (var token = 0u; token < params.tokens; token += 1u) {
        let at_row = params.row + token;
        let row = at_row * params.qkv_pitch;
        let query = row + k_head * STATE_ROWS;
        let decay = rates[at_row * params.rates_pitch + params.decay_at + head];
        let rate = rates[at_row * params.rates_pitch + params.rate_at + head];
        var value = 0.0;
        if inside {
            value = vectors[row + 2u * keys + head * params.v_dim + column];
        }
        var k: Rows;
        var part = vec4<f32>();
        for (var unit = 0u; unit < UNITS; unit += 1u) {
            let q = elements(query, first + unit * 4u);
            k[unit] = elements(query + keys, first + unit * 4u);
            s[unit] *= decay;
            part += vec4<f32>(dot(s[unit], k[unit]), dot(s[unit], q), dot(k[unit], q), 0.0);
        }
        let turn = token % 2u * MOST_LANES;
        parts[turn + lane] = part;
        workgroupBarrier();
        var sum = vec4<f32>();
        for (var i = 0u; i < SLICES; i += 1u) {
            sum += parts[turn + i * COLUMNS + place];
        }
        let delta = rate * (value - sum.x);
        for (var unit = 0u; unit < UNITS; unit += 1u) {
            s[unit] += k[unit] * delta;
        }
        if slice == 0u && inside {
            out[at_row * params.out_pitch + head * params.v_dim + column] = sum.y + delta * sum.z;
        }
    }
    save_rows(&s, head, first, column, params.v_dim);
}
