// Sums several values per invocation over the workgroup at once, with one barrier (or one tree of
// barriers). Values are four per vector and indexed by constants. Compilers that keep loops, such
// as Direct3D's, put arrays indexed by a loop into memory.
#include "lane.wgsl"

// There are at most 4 * SUMS values. WORKGROUP_SIZE is at least that and at most 256.
const SUMS: u32 = 4u;

#if subgroups
// One slot per subgroup. A subgroup has at least four invocations.
var<workgroup> sum_slots: array<array<vec4<f32>, SUMS>, 64>;
#else
var<workgroup> sum_slots: array<array<vec4<f32>, SUMS>, WORKGROUP_SIZE>;
#endif

// Returns the total of value lane.index in invocations below `count`. All invocations of a
// workgroup call it, once.
fn workgroup_sums(values: array<vec4<f32>, SUMS>, count: u32, lane: Lane) -> f32 {
    put_sums(0u, values[0], lane);
    if count > 4u {
        put_sums(1u, values[1], lane);
    }
    if count > 8u {
        put_sums(2u, values[2], lane);
    }
    if count > 12u {
        put_sums(3u, values[3], lane);
    }
    workgroupBarrier();
    let own = vec2<u32>(lane.index / 4u, lane.index % 4u);
#if subgroups
    var total = 0.0;
    if lane.index < count {
        for (var i = 0u; i < lane.subgroups; i += 1u) {
            total += sum_slots[i][own.x][own.y];
        }
    }
    return total;
#else
    // Halve and round up, so that any workgroup size works.
    var remaining = WORKGROUP_SIZE;
    while remaining > 1u {
        let upper = (remaining + 1u) / 2u;
        if lane.index + upper < remaining {
            for (var i = 0u; i < count; i += 4u) {
                sum_slots[lane.index][i / 4u] += sum_slots[lane.index + upper][i / 4u];
            }
        }
        workgroupBarrier();
        remaining = upper;
    }
    if lane.index < count {
        return sum_slots[0][own.x][own.y];
    }
    return 0.0;
#endif
}

fn put_sums(i: u32, values: vec4<f32>, lane: Lane) {
#if subgroups
    let partial = vec4<f32>(
        subgroupAdd(values.x),
        subgroupAdd(values.y),
        subgroupAdd(values.z),
        subgroupAdd(values.w),
    );
    if lane.subgroup_lane == 0u {
        sum_slots[lane.subgroup][i] = partial;
    }
#else
    sum_slots[lane.index][i] = values;
#endif
}
