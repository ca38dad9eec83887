// A workgroup holds as many copies of a head's values as fit, at least one. One lane per unit: lane
// = slice * VALUE_UNITS + unit.
#include "head.wgsl"

override SLICES: u32 = WORKGROUP_SIZE / VALUE_UNITS;

var<workgroup> slice_values: array<vec4<f32>, WORKGROUP_SIZE>;

// Sums over the slices. Each lane below VALUE_UNITS gets the sum of its unit. All lanes must call
// it; lanes past the last slice are ignored.
fn sum_slices(value: vec4<f32>, lane: u32) -> vec4<f32> {
    workgroupBarrier();
    slice_values[lane] = value;
    workgroupBarrier();
    var sum = vec4<f32>();
    if lane < VALUE_UNITS {
        for (var slice = 0u; slice < SLICES; slice += 1u) {
            sum += slice_values[slice * VALUE_UNITS + lane];
        }
    }
    return sum;
}
