// Per token, the power of two that scales its largest activation to between 2^14 and 2^15, and the
// inverse:
//   scales[t] = (2^(14 - e), 2^(e - 14)) where 2^e <= max |x[t]| < 2^(e + 1)
// gemm_coop multiplies a token's activations by the first and its sums by the second. 16-bit floats
// hold at most 65504, and small numbers with few bits. One workgroup per token.
#include "params.wgsl"

override WORKGROUP_SIZE: u32 = 64u;

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> scales: array<vec2<f32>>;

var<workgroup> tops: array<f32, WORKGROUP_SIZE>;

// 2^exponent, for exponents from -126 to 127.
fn power_of_two(exponent: i32) -> f32 {
    return bitcast<f32>(u32(exponent + 127) << 23u);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn half_scale(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) workgroup: vec3<u32>) {
    let start = workgroup.x * (params.x_pitch / 4u);
    var largest = vec4<f32>();
    for (var i = lane; i < params.chunks * 8u; i += WORKGROUP_SIZE) {
        largest = max(largest, abs(x[start + i]));
    }
    tops[lane] = max(max(largest.x, largest.y), max(largest.z, largest.w));
    workgroupBarrier();
    if lane == 0u {
        var top = 0.0;
        for (var i = 0u; i < WORKGROUP_SIZE; i += 1u) {
            top = max(top, tops[i]);
        }
        // Clamped, so that zeros and the largest floats also have exponents in the range.
        let exponent = clamp(i32(bitcast<u32>(top) >> 23u) - 127, -100, 127) - 14;
        scales[workgroup.x] = vec2<f32>(power_of_two(-exponent), power_of_two(exponent));
    }
}
