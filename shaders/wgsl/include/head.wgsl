// Heads in units of four elements. Heads of q and rows of the caches are padded to whole units, with zeros.
#include "lane.wgsl"

override HEAD_DIM: u32 = 128u;
override UNITS: u32 = (HEAD_DIM + 3u) / 4u;

// Score of a key that is not seen. Finite, so that the difference of two is a number.
const HIDDEN: f32 = -1e30;

// A workgroup holds as many copies of a head as fit, one lane per unit: lane = slice * UNITS + unit.
override SLICES: u32 = WORKGROUP_SIZE / UNITS;

var<workgroup> slice_values: array<vec4<f32>, WORKGROUP_SIZE>;

// Sums over the slices; lanes below UNITS get their unit's. All lanes must call it; those past the last slice do not count.
fn sum_slices(value: vec4<f32>, lane: u32) -> vec4<f32> {
    workgroupBarrier();
    slice_values[lane] = value;
    workgroupBarrier();
    var sum = vec4<f32>();
    if lane < UNITS {
        for (var slice = 0u; slice < SLICES; slice += 1u) {
            sum += slice_values[slice * UNITS + lane];
        }
    }
    return sum;
}
