// The k largest of every RANGE values, sorted: larger first, the lower id first among equals, NaN
// last. One workgroup per range writes `k` values and ids at `workgroup * k`. The host runs rounds
// over the results until one workgroup is left. A range with fewer than k values is padded with
// -inf and NO_ID. A bitonic sort in shared memory: the order of the work does not depend on the
// values.
#include "order.wgsl"
#include "params.wgsl"

override WORKGROUP_SIZE: u32 = 128u;
// The first round: ids are the indices of the values, and `ids` is not read.
override FIRST: bool = false;
const RANGE: u32 = 1024u;
const NO_ID: u32 = 0xffffffffu;

// Bits of the f32 values.
@group(0) @binding(0) var<storage, read> values: array<u32>;
@group(0) @binding(1) var<storage, read> ids: array<u32>;
@group(0) @binding(2) var<storage, read_write> top_values: array<u32>;
@group(0) @binding(3) var<storage, read_write> top_ids: array<u32>;

var<workgroup> keys: array<u32, RANGE>;
var<workgroup> places: array<u32, RANGE>;

// The bits of a key's float. Key 0 is NaN, or no value at all.
fn bits_of(key: u32, id: u32) -> u32 {
    if key == 0u {
        return select(0x7fc00000u, 0xff800000u, id == NO_ID);
    }
    return select(~key, key & 0x7fffffffu, key >= 0x80000000u);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn top_k(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) workgroup: vec3<u32>) {
    let first = workgroup.x * RANGE;
    for (var i = lane; i < RANGE; i += WORKGROUP_SIZE) {
        let at = first + i;
        var key = 0u;
        var id = NO_ID;
        if at < params.len {
            id = at;
            if !FIRST {
                id = ids[at];
            }
            // Padding from an earlier round sorts below NaN, too.
            if id != NO_ID {
                key = order_of(values[at]);
            }
        }
        keys[i] = key;
        places[i] = id;
    }
    // Sorts runs of `run` elements, alternately ascending and descending. The last run, of all
    // elements, is descending.
    for (var run = 2u; run <= RANGE; run *= 2u) {
        for (var distance = run / 2u; distance > 0u; distance /= 2u) {
            workgroupBarrier();
            for (var pair = lane; pair < RANGE / 2u; pair += WORKGROUP_SIZE) {
                let a = pair + (pair & ~(distance - 1u));
                let b = a + distance;
                let key_a = keys[a];
                let key_b = keys[b];
                let place_a = places[a];
                let place_b = places[b];
                let descending = key_a > key_b || (key_a == key_b && place_a < place_b);
                if descending != ((a & run) == 0u) {
                    keys[a] = key_b;
                    keys[b] = key_a;
                    places[a] = place_b;
                    places[b] = place_a;
                }
            }
        }
    }
    workgroupBarrier();
    for (var i = lane; i < min(params.k, RANGE); i += WORKGROUP_SIZE) {
        let to = workgroup.x * params.k + i;
        top_values[to] = bits_of(keys[i], places[i]);
        top_ids[to] = places[i];
    }
}
