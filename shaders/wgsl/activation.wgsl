// hidden = f(gate) * up, or f(up) where there is no gate; f by KIND:
//   0 relu  1 relu squared  2 silu  3 gelu (tanh)  4 gelu (erf)  5 drelu: relu(gate) * relu(up)
// Gate and up stand side by side in a row of the input: [rows, gate cols | up cols], 2 * pitch from row to row (pitch when
// there is no gate). hidden is [rows, cols].
#include "element.wgsl"

override KIND: u32 = 0u;
override GATED: bool = true;

@group(0) @binding(0) var<storage, read> gate_up: array<f32>;
@group(0) @binding(1) var<storage, read_write> hidden: array<f32>;

// Abramowitz and Stegun 7.1.26: off by at most 1.5e-7.
fn erf(v: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.3275911 * abs(v));
    let poly = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
    return sign(v) * (1.0 - poly * exp(-v * v));
}

fn activate(v: f32) -> f32 {
    switch KIND {
        case 1u: {
            let r = max(v, 0.0);
            return r * r;
        }
        case 2u: {
            return v / (1.0 + exp(-v));
        }
        case 3u: {
            // tanh overflows to NaN on some drivers past about 44; 10 is already 1 to the last bit.
            let inner = 0.7978845608 * (v + 0.044715 * v * v * v);
            return 0.5 * v * (1.0 + tanh(clamp(inner, -10.0, 10.0)));
        }
        case 4u: {
            return 0.5 * v * (1.0 + erf(v * 0.7071067812));
        }
        default: {
            return max(v, 0.0);
        }
    }
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn activation(@builtin(global_invocation_id) id: vec3<u32>) {
    let element = element_of(id);
    if !element.inside {
        return;
    }
    let to = element.row * params.pitch + element.col;
    if !GATED {
        hidden[to] = activate(gate_up[to]);
        return;
    }
    let gate = gate_up[element.row * params.pitch * 2u + element.col];
    var up = gate_up[element.row * params.pitch * 2u + params.cols + element.col];
    if KIND == 5u {
        up = max(up, 0.0);
    }
    hidden[to] = activate(gate) * up;
}
