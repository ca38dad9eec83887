// The list of the neurons whose bit is set in mask, in ascending order, and the grid of the kernels that run over it:
// list[0] is how many there are, list[1..] which; grid is what an indirect dispatch takes, for `per_workgroup` neurons to
// a workgroup, `stride` workgroups in one row. Workgroup `block` takes a word per invocation and finds its place from the
// counts of the blocks before it, which `active_mask` wrote with the same WORKGROUP_SIZE.
#include "lane.wgsl"
#include "reduce.wgsl"

struct Params {
    neurons: u32,
    per_workgroup: u32,
    stride: u32,
}

var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> mask: array<u32>;
@group(0) @binding(1) var<storage, read> counts: array<u32>;
@group(0) @binding(2) var<storage, read_write> list: array<u32>;
@group(0) @binding(3) var<storage, read_write> grid: array<u32>;

// How many the words up to and with this one hold.
var<workgroup> ends: array<u32, WORKGROUP_SIZE>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn active_list(
#include "builtins.wgsl"
) {
    let lane = lane_of(builtins);
    let block = builtins.workgroup.x;
    let words = (params.neurons + 31u) / 32u;
    let word = block * WORKGROUP_SIZE + lane.index;
    var part = 0.0;
    for (var before = lane.index; before < block; before += WORKGROUP_SIZE) {
        part += f32(counts[before]);
    }
    let before = u32(workgroup_sum(part, lane));
    var bits = 0u;
    if word < words {
        bits = mask[word];
    }
    let own = countOneBits(bits);
    ends[lane.index] = own;
    for (var distance = 1u; distance < WORKGROUP_SIZE; distance *= 2u) {
        workgroupBarrier();
        var left = 0u;
        if lane.index >= distance {
            left = ends[lane.index - distance];
        }
        workgroupBarrier();
        ends[lane.index] += left;
    }
    // Only this invocation has written it since the last barrier.
    let end = before + ends[lane.index];
    for (var to = end - own; to < end; to += 1u) {
        list[1u + to] = word * 32u + countTrailingZeros(bits);
        bits &= bits - 1u;
    }
    // The last word's invocation knows them all.
    if word + 1u == words {
        let workgroups = (end + params.per_workgroup - 1u) / params.per_workgroup;
        list[0] = end;
        grid[0] = min(workgroups, params.stride);
        grid[1] = max((workgroups + params.stride - 1u) / params.stride, 1u);
        grid[2] = 1u;
    }
}
