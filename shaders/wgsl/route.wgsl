// Experts of each token and their router weights: the `used` largest of softmax(scores[t]), largest first, the first of
// equals, NaN last; with `renormalise` the weights are divided by their sum. ids, places and router_weights are
// [tokens, used]; an expert's place, of `place_of`, is where products find its weights. One workgroup per token.
// Every expert counts those that go before it; its place is their number.
#include "lane.wgsl"
#include "order.wgsl"
#include "reduce.wgsl"

const MOST_EXPERTS: u32 = 512u;
const MOST_USED: u32 = 32u;

struct Params {
    experts: u32,
    pitch: u32,
    used: u32,
    tokens: u32,
    renormalise: u32,
}

var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> scores: array<f32>;
// Per expert.
@group(0) @binding(1) var<storage, read> place_of: array<u32>;
@group(0) @binding(2) var<storage, read_write> ids: array<u32>;
@group(0) @binding(3) var<storage, read_write> places: array<u32>;
@group(0) @binding(4) var<storage, read_write> router_weights: array<f32>;

var<workgroup> keys: array<u32, MOST_EXPERTS>;
var<workgroup> chosen: array<u32, MOST_USED>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn route(
#include "builtins.wgsl"
) {
    let lane = lane_of(builtins);
    let token = builtins.workgroup.x;
    if token >= params.tokens {
        return;
    }
    let experts = min(params.experts, MOST_EXPERTS);
    let used = min(params.used, MOST_USED);
    let start = token * params.pitch;
    for (var e = lane.index; e < experts; e += WORKGROUP_SIZE) {
        keys[e] = order_of(bitcast<u32>(scores[start + e]));
    }
    workgroupBarrier();
    for (var e = lane.index; e < experts; e += WORKGROUP_SIZE) {
        let key = keys[e];
        var place = 0u;
        for (var other = 0u; other < experts; other += 1u) {
            place += u32(keys[other] > key || (keys[other] == key && other < e));
        }
        if place < used {
            chosen[place] = e;
        }
    }
    workgroupBarrier();
    // The largest goes first, so that no exponential overflows.
    let top = scores[start + chosen[0]];
    var part = 0.0;
    if params.renormalise == 0u {
        for (var e = lane.index; e < experts; e += WORKGROUP_SIZE) {
            part += exp(scores[start + e] - top);
        }
    } else {
        for (var s = lane.index; s < used; s += WORKGROUP_SIZE) {
            part += exp(scores[start + chosen[s]] - top);
        }
    }
    let sum = workgroup_sum(part, lane);
    for (var s = lane.index; s < used; s += WORKGROUP_SIZE) {
        ids[token * params.used + s] = chosen[s];
        places[token * params.used + s] = place_of[chosen[s]];
        router_weights[token * params.used + s] = exp(scores[start + chosen[s]] - top) / sum;
    }
}
