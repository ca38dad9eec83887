// Pairs of a token and one of its experts in the order of their experts, and the tiles of TOKENS pairs of one expert
// that `expert_gemm` takes: for each tile its expert, where it begins in the order, and where its expert's pairs end. Pairs
// whose expert is not below `experts` are in no tile and not in the order; tiles beyond the last have an expert that does not
// exist. One workgroup.
#include "lane.wgsl"

const MOST_EXPERTS: u32 = 512u;
// Pairs of a tile.
const TOKENS: u32 = 64u;
// Pairs of a batch: as many as `part` holds.
const BATCH: u32 = 1024u;

struct Params {
    experts: u32,
    pairs: u32,
    // Room in `tiles`: at least as many as there can be, pairs / TOKENS + experts.
    tiles: u32,
}

var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> ids: array<u32>;
@group(0) @binding(1) var<storage, read_write> order: array<u32>;
// Expert, first, end.
@group(0) @binding(2) var<storage, read_write> tiles: array<u32>;

var<workgroup> part: array<u32, BATCH>;
// Per expert: its pairs, then where they begin, its tiles, then where those begin.
var<workgroup> firsts: array<u32, MOST_EXPERTS>;
var<workgroup> first_tiles: array<u32, MOST_EXPERTS>;
// Written by one invocation and read by all, which have loops that end there: by workgroupUniformLoad, since drivers have lost the
// barrier before a plain load.
var<workgroup> tiles_used: u32;
var<workgroup> pairs_used: u32;

// Reads pairs `start` .. into `part`; returns how many there are.
fn read_batch(index: u32, start: u32) -> u32 {
    let count = min(params.pairs - start, BATCH);
    workgroupBarrier();
    for (var s = index; s < count; s += WORKGROUP_SIZE) {
        part[s] = ids[start + s];
    }
    workgroupBarrier();
    return count;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn group_slots(
#include "builtins.wgsl"
) {
    let index = builtins.index;
    let experts = min(params.experts, MOST_EXPERTS);
    for (var e = index; e < experts; e += WORKGROUP_SIZE) {
        firsts[e] = 0u;
    }
    for (var start = 0u; start < params.pairs; start += BATCH) {
        let count = read_batch(index, start);
        for (var e = index; e < experts; e += WORKGROUP_SIZE) {
            var own = 0u;
            for (var s = 0u; s < count; s += 1u) {
                own += u32(part[s] == e);
            }
            firsts[e] += own;
        }
    }
    workgroupBarrier();
    if index == 0u {
        var first = 0u;
        var first_tile = 0u;
        for (var e = 0u; e < experts; e += 1u) {
            let own = firsts[e];
            firsts[e] = first;
            first_tiles[e] = first_tile;
            first += own;
            first_tile += (own + TOKENS - 1u) / TOKENS;
        }
        tiles_used = first_tile;
        pairs_used = first;
    }
    // Its barriers also make the firsts visible.
    let last_tile = workgroupUniformLoad(&tiles_used);
    let last_pair = workgroupUniformLoad(&pairs_used);
    for (var tile = last_tile + index; tile < params.tiles; tile += WORKGROUP_SIZE) {
        tiles[3u * tile] = 0xffffffffu;
    }
    for (var e = index; e < experts; e += WORKGROUP_SIZE) {
        let first = firsts[e];
        var end = last_pair;
        if e + 1u < experts {
            end = firsts[e + 1u];
        }
        var tile = first_tiles[e];
        for (var at = first; at < end; at += TOKENS) {
            tiles[3u * tile] = e;
            tiles[3u * tile + 1u] = at;
            tiles[3u * tile + 2u] = end;
            tile += 1u;
        }
    }
    workgroupBarrier();
    for (var start = 0u; start < params.pairs; start += BATCH) {
        let count = read_batch(index, start);
        for (var e = index; e < experts; e += WORKGROUP_SIZE) {
            var to = firsts[e];
            for (var s = 0u; s < count; s += 1u) {
                if part[s] == e {
                    order[to] = start + s;
                    to += 1u;
                }
            }
            firsts[e] = to;
        }
    }
}
