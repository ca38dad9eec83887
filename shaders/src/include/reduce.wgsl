// Sums one value per invocation over the workgroup. Every invocation gets the result. All
// invocations of a one-dimensional workgroup of WORKGROUP_SIZE must call it. Two calls in a row are
// safe.
#include "lane.wgsl"

// With subgroups, one slot per subgroup is used. An array length computed from the override would
// save a few hundred bytes, but naga 30 cannot fold it.
var<workgroup> reduce_slots: array<f32, WORKGROUP_SIZE>;

#if subgroups
fn workgroup_sum(value: f32, lane: Lane) -> f32 {
    let partial = subgroupAdd(value);
    workgroupBarrier();
    if lane.subgroup_lane == 0u {
        reduce_slots[lane.subgroup] = partial;
    }
    workgroupBarrier();
    var sum = 0.0;
    if WORKGROUP_SIZE > 256u {
        // The lanes of a subgroup share the slots. One lane would wait for 32 reads in a row.
        let lanes = subgroupAdd(1u);
        for (var first = 0u; first < lane.subgroups; first += lanes) {
            let i = first + lane.subgroup_lane;
            if i < lane.subgroups {
                sum += reduce_slots[i];
            }
        }
        return subgroupAdd(sum);
    }
    for (var i = 0u; i < lane.subgroups; i += 1u) {
        sum += reduce_slots[i];
    }
    return sum;
}
#else
fn workgroup_sum(value: f32, lane: Lane) -> f32 {
    workgroupBarrier();
    reduce_slots[lane.index] = value;
    workgroupBarrier();
    // Halve and round up, so that any workgroup size works.
    var remaining = WORKGROUP_SIZE;
    while remaining > 1u {
        let upper = (remaining + 1u) / 2u;
        if lane.index + upper < remaining {
            reduce_slots[lane.index] += reduce_slots[lane.index + upper];
        }
        workgroupBarrier();
        remaining = upper;
    }
    return reduce_slots[0];
}
#endif
