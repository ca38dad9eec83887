// Merges the partials of attention_decode [tokens, n_head, splits, VALUE_UNITS + 1] into out
// [tokens, n_head * VALUE_DIM]:
//   out = sum(e^(max_s - max) * values_s) / sum(e^(max_s - max) * sum_s)
// One workgroup per head and token: grid (n_head; tokens). WORKGROUP_SIZE is at least VALUE_UNITS,
// and there are at most MOST_SPLITS splits.
#include "slices.wgsl"
#include "reduce.wgsl"
#include "params.wgsl"

const MOST_SPLITS: u32 = 256u;
// Number of partials that a lane reads at once.
const READS: u32 = 4u;

@group(0) @binding(0) var<storage, read> partials: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

var<workgroup> highest: array<f32, WORKGROUP_SIZE>;
var<workgroup> weights: array<f32, MOST_SPLITS>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn attention_merge(
#include "builtins.wgsl"
) {
    let lane = lane_of(builtins);
    let head = builtins.workgroup.x;
    let token = builtins.workgroup.y;
    let first = (token * params.n_head + head) * params.splits;

    var top = HIDDEN;
    for (var split = lane.index; split < params.splits; split += WORKGROUP_SIZE) {
        top = max(top, partials[(first + split) * (VALUE_UNITS + 1u) + VALUE_UNITS].x);
    }
    highest[lane.index] = top;
    workgroupBarrier();
    for (var i = 0u; i < min(params.splits, WORKGROUP_SIZE); i += 1u) {
        top = max(top, highest[i]);
    }
    var sum = 0.0;
    for (var split = lane.index; split < params.splits; split += WORKGROUP_SIZE) {
        let part = partials[(first + split) * (VALUE_UNITS + 1u) + VALUE_UNITS];
        weights[split] = exp(part.x - top);
        sum += weights[split] * part.y;
    }
    // The barriers of this call also make the weights visible.
    let total = workgroup_sum(sum, lane);

    let unit = lane.index % VALUE_UNITS;
    let slice = lane.index / VALUE_UNITS;
    var values = vec4<f32>();
    for (var split = slice; split < params.splits; split += SLICES * READS) {
        for (var i = 0u; i < READS; i += 1u) {
            let at = min(split + i * SLICES, params.splits - 1u);
            let weight = select(0.0, weights[at], split + i * SLICES < params.splits);
            values += weight * partials[(first + at) * (VALUE_UNITS + 1u) + unit];
        }
    }
    let result = sum_slices(values, lane.index) / total;
    if lane.index < VALUE_UNITS {
        write_unit((params.row + token) * params.out_pitch + head * VALUE_DIM, lane.index, result);
    }
}
