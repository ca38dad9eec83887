// Tests an adapter's subgroups. answer[0] is the number of subgroups per workgroup. answer[1 + i]
// is invocation i's result of the sum of index + value over the workgroup. The sum must be a whole
// number below 2^24.
#include "lane.wgsl"
#include "reduce.wgsl"
#include "params.wgsl"

@group(0) @binding(0) var<storage, read_write> answer: array<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn subgroup_trial(
#include "builtins.wgsl"
) {
    let lane = lane_of(builtins);
    let sum = workgroup_sum(f32(lane.index + params.value), lane);
    answer[1u + lane.index] = u32(sum);
    if lane.index == 0u {
        answer[0] = lane.subgroups;
    }
}
