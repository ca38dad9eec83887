// Sorts pairs of a token and one of its experts by expert, and divides them into the tiles that
// `expert_gemm` takes: TOKENS pairs of one expert. For each tile, writes its expert, the index of
// its first pair in the order, and the end of its expert's pairs. Pairs with an expert >= `experts`
// are in no tile and not in the order. Tiles after the last have an expert that does not exist. One
// workgroup.
#include "lane.wgsl"
#include "params.wgsl"

const MOST_EXPERTS: u32 = 512u;
// Pairs per tile.
const TOKENS: u32 = 64u;
// Pairs per batch: the capacity of `part`.
const BATCH: u32 = 1024u;

@group(0) @binding(0) var<storage, read> ids: array<u32>;
@group(0) @binding(1) var<storage, read_write> order: array<u32>;
// Per tile: expert, first pair, end of the expert's pairs.
@group(0) @binding(2) var<storage, read_write> tiles: array<u32>;

var<workgroup> part: array<u32, BATCH>;
// Per expert: the number of its pairs, then the index of the first; and the index of its first
// tile.
var<workgroup> firsts: array<u32, MOST_EXPERTS>;
var<workgroup> first_tiles: array<u32, MOST_EXPERTS>;
// One invocation writes these, and all read them as loop ends. They use workgroupUniformLoad,
// because some drivers lose the barrier before a plain load.
var<workgroup> tiles_used: u32;
var<workgroup> pairs_used: u32;

// Reads the pairs from `start` on into `part`, and returns their number.
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
    // The barriers of this load also make `firsts` visible.
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
