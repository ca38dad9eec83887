// Slots of a layer's neuron blocks that hold neurons whose bit is set in mask, in ascending order, and the grids of the kernels
// that run over the lists. `table` has for each of BLOCKS blocks its first slot and how many it has, and behind them the
// neuron of each slot of the layer, NO_NEURON where there is none. Workgroup `block` writes, counting slots from its
// block's first,
//   lists[64 * block + first slot]: their number, then the slots
//   grids[GRID * block]: the grid of an indirect dispatch, for `per_workgroup` neurons to a workgroup, `stride` workgroups
//     in one row
//   hidden: zeros for every slot of the block, so that those not on the list are silent
#include "lane.wgsl"

override BLOCKS: u32 = 8u;
// Words from one block's grid to the next's.
const GRID: u32 = 4u;
const NO_NEURON: u32 = 0xffffffffu;

struct Params {
    per_workgroup: u32,
    stride: u32,
}

var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> mask: array<u32>;
@group(0) @binding(1) var<storage, read> table: array<u32>;
@group(0) @binding(2) var<storage, read_write> lists: array<u32>;
@group(0) @binding(3) var<storage, read_write> grids: array<u32>;
@group(0) @binding(4) var<storage, read_write> hidden: array<f32>;

#if subgroups
// How many the subgroups hold, of two rounds: one is written while the other is read.
var<workgroup> totals: array<u32, 512>;
#else
// How many the slots up to and with this one hold, of those the workgroup looks at at once.
var<workgroup> ends: array<u32, WORKGROUP_SIZE>;
#endif

@compute @workgroup_size(WORKGROUP_SIZE)
fn slot_list(
#include "builtins.wgsl"
) {
    let at_lane = lane_of(builtins);
    let lane = at_lane.index;
    let block = builtins.workgroup.x;
    let start = table[2u * block];
    let slots = table[2u * block + 1u];
    let list = start + 64u * block;
    var before = 0u;
    // Rounds are the same for the whole workgroup.
    for (var round = 0u; round < (slots + WORKGROUP_SIZE - 1u) / WORKGROUP_SIZE; round += 1u) {
        let slot = round * WORKGROUP_SIZE + lane;
        var own = 0u;
        if slot < slots {
            hidden[start + slot] = 0.0;
            let neuron = table[2u * BLOCKS + start + slot];
            if neuron != NO_NEURON {
                own = (mask[neuron / 32u] >> (neuron % 32u)) & 1u;
            }
        }
#if subgroups
        // A subgroup has at least four invocations.
        let half = round % 2u * 256u;
        let own_end = subgroupInclusiveAdd(own);
        let held = subgroupAdd(own);
        if at_lane.subgroup_lane == 0u {
            totals[half + at_lane.subgroup] = held;
        }
        workgroupBarrier();
        var end = own_end;
        var all = 0u;
        for (var i = 0u; i < at_lane.subgroups; i += 1u) {
            end += select(0u, totals[half + i], i < at_lane.subgroup);
            all += totals[half + i];
        }
#else
        workgroupBarrier();
        ends[lane] = own;
        for (var distance = 1u; distance < WORKGROUP_SIZE; distance *= 2u) {
            workgroupBarrier();
            var left = 0u;
            if lane >= distance {
                left = ends[lane - distance];
            }
            workgroupBarrier();
            ends[lane] += left;
        }
        // Its barriers also make the others visible.
        let all = workgroupUniformLoad(&ends[WORKGROUP_SIZE - 1u]);
        let end = ends[lane];
#endif
        if own == 1u {
            lists[list + before + end] = slot;
        }
        before += all;
    }
    if lane == 0u {
        let workgroups = (before + params.per_workgroup - 1u) / params.per_workgroup;
        lists[list] = before;
        grids[GRID * block] = min(workgroups, params.stride);
        grids[GRID * block + 1u] = max((workgroups + params.stride - 1u) / params.stride, 1u);
        grids[GRID * block + 2u] = 1u;
    }
}
