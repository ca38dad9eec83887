// Lists the slots of each neuron block whose neuron is set in `mask`, in ascending order, and
// writes the grids of the kernels that run over the lists. `table` holds the first slot and the
// number of slots of each of BLOCKS blocks, then the neuron of each slot of the layer, or
// NO_NEURON. Workgroup `block` counts slots from its block's first slot, and writes
//   lists[64 * block + first slot]: the number of listed slots, then the slots
//   grids[GRID * block]: an indirect dispatch's grid of at most `stride` workgroups in one row,
//     with `per_workgroup` neurons per workgroup
//   hidden: zeros for every slot of the block, so that slots not on the list are silent
#include "lane.wgsl"
#include "params.wgsl"

override BLOCKS: u32 = 8u;
// Words between the grids of consecutive blocks.
const GRID: u32 = 4u;
const NO_NEURON: u32 = 0xffffffffu;

@group(0) @binding(0) var<storage, read> mask: array<u32>;
@group(0) @binding(1) var<storage, read> table: array<u32>;
@group(0) @binding(2) var<storage, read_write> lists: array<u32>;
@group(0) @binding(3) var<storage, read_write> grids: array<u32>;
@group(0) @binding(4) var<storage, read_write> hidden: array<f32>;

#if subgroups
// Counts per subgroup for two rounds: one is written while the other is read.
var<workgroup> totals: array<u32, 512>;
#else
// Running counts of the slots in the current round, each including its own slot.
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
    // The number of rounds is the same for the whole workgroup.
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
        // A subgroup has at least four invocations, so 256 counts suffice.
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
        // The barriers of this load also make the other counts visible.
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
