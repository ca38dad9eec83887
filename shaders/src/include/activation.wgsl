// f(v), selected by KIND:
//   0 relu  1 relu squared  2 silu  3 gelu (tanh)  4 gelu (erf)  5 drelu: relu(gate) * relu(up)
//   6 clamped SwiGLU: with h = min(gate, 7), h * sigmoid(1.702 h) * (1 + min(max(up, -7), 7))
// With a LIMIT above 0, activated gates are at most LIMIT, and ups are between -LIMIT and LIMIT.
// NaN is kept.
override KIND: u32 = 0u;
override LIMIT: f32 = 0.0;

// Abramowitz and Stegun 7.1.26, with an error of at most 1.5e-7.
fn erf(v: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.3275911 * abs(v));
    let poly = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
    return sign(v) * (1.0 - poly * exp(-v * v));
}

fn unlimited(v: f32) -> f32 {
    switch KIND {
        case 1u: {
            let r = max(v, 0.0);
            return r * r;
        }
        case 2u: {
            return v / (1.0 + exp(-v));
        }
        case 3u: {
            // On some drivers tanh is NaN above about 44. tanh(10) is already 1 to the last bit.
            let inner = 0.7978845608 * (v + 0.044715 * v * v * v);
            return 0.5 * v * (1.0 + tanh(clamp(inner, -10.0, 10.0)));
        }
        case 4u: {
            return 0.5 * v * (1.0 + erf(v * 0.7071067812));
        }
        case 6u: {
            let h = min(v, 7.0);
            return h / (1.0 + exp(-1.702 * h));
        }
        default: {
            return max(v, 0.0);
        }
    }
}

fn activate(v: f32) -> f32 {
    let value = unlimited(v);
    if LIMIT > 0.0 && value > LIMIT {
        return LIMIT;
    }
    return value;
}

// f(gate) * up.
fn activate_gated(gate: f32, up: f32) -> f32 {
    var factor = up;
    if LIMIT > 0.0 && abs(up) > LIMIT {
        factor = sign(up) * LIMIT;
    }
    if KIND == 5u {
        factor = max(factor, 0.0);
    } else if KIND == 6u {
        factor = 1.0 + clamp(factor, -7.0, 7.0);
    }
    return activate(gate) * factor;
}
