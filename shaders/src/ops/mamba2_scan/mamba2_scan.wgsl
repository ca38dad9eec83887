// The scan of Mamba-2 (Dao and Gu 2024), token by token. A head has a state S [STATE_ROWS, width].
// With the token's step dt, the head's input x and its group's vectors B and C:
//   dt = clamp(ln(1 + e^(step + dt_bias)), least, most)
//   S = e^(a dt) S + B (dt x)^T;  out = S^T C + d x
// A token's vectors are [x of the heads | B of the groups | C of the groups]. Its steps start at
// `steps_at` in a row of `rates`. `heads` is [a | dt_bias | d], one of each per head.
// Grid: (ceil(width / COLUMNS); heads). No state depends on another token's output, so outputs are
// summed over the slices for TURNS tokens at a time, one token per slice.
#include "scan.wgsl"
#include "softplus.wgsl"
#include "params.wgsl"

const TURNS: u32 = 8u;

@group(0) @binding(0) var<storage, read> vectors: array<f32>;
@group(0) @binding(1) var<storage, read> rates: array<f32>;
@group(0) @binding(2) var<storage, read> heads: array<f32>;
@group(0) @binding(3) var<storage, read_write> state: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

// [TURNS, SLICES, COLUMNS]: parts of S^T C.
var<workgroup> parts: array<f32, TURNS * MOST_LANES>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn mamba2_scan(
#include "builtins.wgsl"
) {
    let lane = builtins.index;
    let head = builtins.workgroup.y;
    let slice = lane / COLUMNS;
    let place = lane % COLUMNS;
    let column = builtins.workgroup.x * COLUMNS + place;
    let inside = column < params.width;
    let first = slice * ROWS;
    // Index in a token's vectors, and in its outputs.
    let input = head * params.width + column;
    let b = params.heads * params.width + head / (params.heads / params.groups) * STATE_ROWS;
    let c = b + params.groups * STATE_ROWS;
    let a = heads[head];
    let dt_bias = heads[params.heads + head];
    let d = heads[2u * params.heads + head];

    var s = load_rows(head, first, column, params.width);
    for (var begin = 0u; begin < params.tokens; begin += TURNS) {
        let turns = min(TURNS, params.tokens - begin);
        for (var turn = 0u; turn < turns; turn += 1u) {
            let row = (params.row + begin + turn) * params.vectors_pitch;
            let step = rates[(params.row + begin + turn) * params.rates_pitch + params.steps_at + head];
            let dt = clamp(softplus(step + dt_bias), params.least, params.most);
            let decay = exp(a * dt);
            var x = 0.0;
            if inside {
                x = dt * vectors[row + input];
            }
            var part = 0.0;
            for (var unit = 0u; unit < UNITS; unit += 1u) {
                s[unit] = s[unit] * decay + elements(row + b, first + unit * 4u) * x;
                part += dot(s[unit], elements(row + c, first + unit * 4u));
            }
            parts[turn * MOST_LANES + lane] = part;
        }
        workgroupBarrier();
        for (var turn = slice; turn < turns; turn += SLICES) {
            var sum = 0.0;
            for (var i = 0u; i < SLICES; i += 1u) {
                sum += parts[turn * MOST_LANES + i * COLUMNS + place];
            }
            if inside {
                let token = params.row + begin + turn;
                out[token * params.out_pitch + input] = sum + d * vectors[token * params.vectors_pitch + input];
            }
        }
        workgroupBarrier();
    }
    save_rows(&s, head, first, column, params.width);
}
