// Sums several values per invocation over the workgroup at once: one barrier (or one tree of them) however many there are.
#include "lane.wgsl"

// Most values; WORKGROUP_SIZE is at least that and at most 256.
const SUMS: u32 = 16u;

#if subgroups
// One slot per subgroup, of at least four invocations.
var<workgroup> sum_slots: array<array<f32, SUMS>, 64>;
#else
var<workgroup> sum_slots: array<array<f32, SUMS>, WORKGROUP_SIZE>;
#endif

// In invocations below `count` the total of `values[lane.index]`. All invocations of a workgroup call it, once.
fn workgroup_sums(values: array<f32, SUMS>, count: u32, lane: Lane) -> f32 {
    var own = values;
#if subgroups
    for (var i = 0u; i < count; i += 1u) {
        let partial = subgroupAdd(own[i]);
        if lane.subgroup_lane == 0u {
            sum_slots[lane.subgroup][i] = partial;
        }
    }
    workgroupBarrier();
    var total = 0.0;
    if lane.index < count {
        for (var i = 0u; i < lane.subgroups; i += 1u) {
            total += sum_slots[i][lane.index];
        }
    }
    return total;
#else
    for (var i = 0u; i < count; i += 1u) {
        sum_slots[lane.index][i] = own[i];
    }
    workgroupBarrier();
    // Halves by rounding up, so that any workgroup size works.
    var remaining = WORKGROUP_SIZE;
    while remaining > 1u {
        let upper = (remaining + 1u) / 2u;
        if lane.index + upper < remaining {
            for (var i = 0u; i < count; i += 1u) {
                sum_slots[lane.index][i] += sum_slots[lane.index + upper][i];
            }
        }
        workgroupBarrier();
        remaining = upper;
    }
    if lane.index < count {
        return sum_slots[0][lane.index];
    }
    return 0.0;
#endif
}
