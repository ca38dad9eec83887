// Chooses the experts of each token and computes their router weights. SCORE selects the score of a
// logit:
//   0 softmax over all experts
//   1 softmax over the chosen experts; the logits choose
//   2 sigmoid
//   3 SparseMixer; the logits choose. Softmax of each chosen expert over itself and the experts not
//     chosen before it whose logits are nearly as large (NEARLY).
// The `used` experts with the largest score (+ bias, with BIAS) are chosen, largest first. Of equal
// scores the first wins, and NaN is last. With `groups`, only experts of `groups_used` groups are
// chosen: the groups with the largest sums of their `groups_best` best. Router weights are scores
// without bias. They are divided by their sum with `renormalise`, and multiplied by `scale` and,
// with SCALED, by the expert's own factor. ids, places and router_weights are [tokens, used]. An
// expert's place, from `place_of`, tells where its weights are on the device. With `always`, that
// many experts are chosen first. `lift + own * range` is then added to the choices of experts on
// the device, and the other experts are chosen. The range of each token's choices follows the
// router weights. One workgroup per token. The rank of an expert is the number of experts that
// precede it.
#include "lane.wgsl"
#include "order.wgsl"
#include "reduce.wgsl"
#include "params.wgsl"

override SCORE: u32 = 0u;
override BIAS: bool = false;
override SCALED: bool = false;
// Place of an expert that is not on the device.
const NO_NEURON: u32 = 0xffffffffu;
const MOST_EXPERTS: u32 = 512u;
const MOST_USED: u32 = 32u;
const MOST_GROUPS: u32 = 64u;
// Largest difference between nearly equal logits, relative to their magnitude.
const NEARLY: f32 = 0.02;

@group(0) @binding(0) var<storage, read> scores: array<f32>;
// Per expert, with BIAS.
@group(0) @binding(1) var<storage, read> bias: array<f32>;
// Per expert.
@group(0) @binding(2) var<storage, read> place_of: array<u32>;
@group(0) @binding(3) var<storage, read_write> ids: array<u32>;
@group(0) @binding(4) var<storage, read_write> places: array<u32>;
@group(0) @binding(5) var<storage, read_write> router_weights: array<f32>;
// Per expert, with SCALED.
@group(0) @binding(6) var<storage, read> scale_of: array<f32>;

var<workgroup> choices: array<f32, MOST_EXPERTS>;
var<workgroup> keys: array<u32, MOST_EXPERTS>;
// Keys after the preference for experts on the device.
var<workgroup> lifted: array<u32, MOST_EXPERTS>;
// The range of the token's choices.
var<workgroup> range: f32;
var<workgroup> group_keys: array<u32, MOST_GROUPS>;
var<workgroup> chosen: array<u32, MOST_USED>;
var<workgroup> tops: array<f32, WORKGROUP_SIZE>;

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(-x));
}

// Rank of this key among the keys first .. end.
fn place_among(e: u32, first: u32, end: u32) -> u32 {
    let key = keys[e];
    var place = 0u;
    for (var other = first; other < end; other += 1u) {
        place += u32(keys[other] > key || (keys[other] == key && other < e));
    }
    return place;
}

// Sets the keys of experts outside the best groups to 0. All invocations must call it.
fn keep_best_groups(lane: u32, experts: u32) {
    let groups = min(params.groups, MOST_GROUPS);
    let len = experts / groups;
    for (var g = lane; g < groups; g += WORKGROUP_SIZE) {
        var sum = 0.0;
        for (var e = g * len; e < (g + 1u) * len; e += 1u) {
            if place_among(e, g * len, (g + 1u) * len) < params.groups_best {
                sum += choices[e];
            }
        }
        group_keys[g] = order_of(bitcast<u32>(sum));
    }
    workgroupBarrier();
    for (var e = lane; e < experts; e += WORKGROUP_SIZE) {
        let group = min(e / len, groups - 1u);
        let key = group_keys[group];
        var place = 0u;
        for (var other = 0u; other < groups; other += 1u) {
            place += u32(group_keys[other] > key || (group_keys[other] == key && other < group));
        }
        if place >= params.groups_used {
            keys[e] = 0u;
        }
    }
    workgroupBarrier();
}

// Sets the keys to those of the lifted choices. The experts with the `always` largest choices stay
// first, and hidden experts stay hidden. All invocations must call it.
fn prefer_resident(lane: u32, experts: u32, lift: f32) {
    for (var e = lane; e < experts; e += WORKGROUP_SIZE) {
        let place = place_among(e, 0u, experts);
        var key = keys[e];
        if place < params.always {
            key = 0xffffffffu - place;
        } else if key != 0u && place_of[e] != NO_NEURON {
            key = order_of(bitcast<u32>(choices[e] + lift));
        }
        lifted[e] = key;
    }
    workgroupBarrier();
    for (var e = lane; e < experts; e += WORKGROUP_SIZE) {
        keys[e] = lifted[e];
    }
    workgroupBarrier();
}

// The range of all finite choices.
fn range_of_choices(experts: u32) -> f32 {
    var low = 3.4e38;
    var high = -3.4e38;
    for (var e = 0u; e < experts; e += 1u) {
        let choice = choices[e];
        if abs(choice) < 3.4e38 {
            low = min(low, choice);
            high = max(high, choice);
        }
    }
    return max(high - low, 0.0);
}

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
    // Without bias and groups, logits and scores choose the same experts.
    let by_score = BIAS || params.groups != 0u;
    var top = 0.0;
    var all = 1.0;
    if SCORE == 0u && by_score {
        var own = scores[start];
        for (var e = lane.index; e < experts; e += WORKGROUP_SIZE) {
            own = max(own, scores[start + e]);
        }
        tops[lane.index] = own;
        workgroupBarrier();
        top = own;
        for (var i = 0u; i < WORKGROUP_SIZE; i += 1u) {
            top = max(top, tops[i]);
        }
        var part = 0.0;
        for (var e = lane.index; e < experts; e += WORKGROUP_SIZE) {
            part += exp(scores[start + e] - top);
        }
        all = workgroup_sum(part, lane);
    }
    for (var e = lane.index; e < experts; e += WORKGROUP_SIZE) {
        var choice = scores[start + e];
        if by_score && SCORE == 0u {
            choice = exp(choice - top) / all;
        }
        if by_score && SCORE == 2u {
            choice = sigmoid(choice);
        }
        if BIAS {
            choice += bias[e];
        }
        choices[e] = choice;
        keys[e] = order_of(bitcast<u32>(choice));
    }
    workgroupBarrier();
    if params.always != 0u && lane.index == 0u {
        range = range_of_choices(experts);
        router_weights[params.tokens * params.used + token] = range;
    }
    if params.groups != 0u {
        keep_best_groups(lane.index, experts);
    }
    if params.always != 0u && params.lift + params.own > 0.0 {
        let lift = params.lift + params.own * workgroupUniformLoad(&range);
        prefer_resident(lane.index, experts, lift);
    }
    for (var e = lane.index; e < experts; e += WORKGROUP_SIZE) {
        let place = place_among(e, 0u, experts);
        if place < used {
            chosen[place] = e;
        }
    }
    // The barriers of this load also make the other choices visible.
    let likeliest = workgroupUniformLoad(&chosen[0]);
    // Subtracting the largest logit prevents overflow of the exponentials.
    if !by_score {
        top = scores[start + likeliest];
    } else if SCORE == 1u {
        top = scores[start + likeliest];
        for (var s = 1u; s < used; s += 1u) {
            top = max(top, scores[start + chosen[s]]);
        }
    }
    var part = 0.0;
    if SCORE == 1u || params.renormalise != 0u {
        for (var s = lane.index; s < used; s += WORKGROUP_SIZE) {
            part += unscaled(start, s, top);
        }
    } else if SCORE == 0u {
        for (var e = lane.index; e < experts; e += WORKGROUP_SIZE) {
            part += exp(scores[start + e] - top);
        }
    }
    // All sigmoids can be zero.
    var sum = max(workgroup_sum(part, lane), 1.1754944e-38);
    if SCORE >= 2u && params.renormalise == 0u {
        sum = 1.0;
    }
    for (var s = lane.index; s < used; s += WORKGROUP_SIZE) {
        ids[token * params.used + s] = chosen[s];
        places[token * params.used + s] = place_of[chosen[s]];
        var weight = unscaled(start, s, top) / sum * params.scale;
        if SCALED {
            weight *= scale_of[chosen[s]];
        }
        router_weights[token * params.used + s] = weight;
    }
}

// The score of the choice with rank `s`, before the division by the softmax's sum.
fn unscaled(start: u32, s: u32, top: f32) -> f32 {
    let logit = scores[start + chosen[s]];
    if SCORE == 2u {
        return sigmoid(logit);
    }
    if SCORE == 3u {
        return mixed(start, s, logit);
    }
    return exp(logit - top);
}

// SparseMixer's weight of the choice with rank `s` and this logit.
fn mixed(start: u32, s: u32, logit: f32) -> f32 {
    var sum = 0.0;
    for (var e = 0u; e < min(params.experts, MOST_EXPERTS); e += 1u) {
        let other = scores[start + e];
        var counts = logit - other <= NEARLY * max(abs(other), logit);
        for (var before = 0u; before < s; before += 1u) {
            counts = counts && chosen[before] != e;
        }
        if counts {
            sum += exp(other - logit);
        }
    }
    return 1.0 / sum;
}
