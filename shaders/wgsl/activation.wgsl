// hidden = f(gate) * up, or f(up) where there is no gate; f by KIND:
//   0 relu  1 relu squared  2 silu  3 gelu (tanh)  4 drelu: relu(gate) * relu(up)
// gate is overwritten with the result. One invocation per element; the grid is two-dimensional because one dimension
// holds at most 65,535 workgroups.
#include "lane.wgsl"

override KIND: u32 = 0u;
override GATED: bool = true;

struct Params {
    len: u32,
    // Invocations in one row of the grid: workgroups.x * WORKGROUP_SIZE.
    stride: u32,
}

var<immediate> params: Params;
@group(0) @binding(0) var<storage, read_write> gate: array<f32>;
@group(0) @binding(1) var<storage, read> up: array<f32>;

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
        default: {
            return max(v, 0.0);
        }
    }
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn activation(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.y * params.stride + id.x;
    if i >= params.len {
        return;
    }
    if !GATED {
        gate[i] = activate(up[i]);
    } else if KIND == 4u {
        gate[i] = activate(gate[i]) * max(up[i], 0.0);
    } else {
        gate[i] = activate(gate[i]) * up[i];
    }
}
