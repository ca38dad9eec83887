// Rotates queries or keys in place: x [tokens, heads, head_dim], pair i of the first `dims` elements of each head by the
// angle whose cosine and sine stand in table [tokens, dims / 2]. Pairs are (2i, 2i+1), or (i, i + dims/2) when NEOX.
// One invocation per pair; the grid is (pairs of a token, tokens).
#include "lane.wgsl"

override NEOX: bool = false;

struct Params {
    heads: u32,
    head_dim: u32,
    dims: u32,
}

var<immediate> params: Params;
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read> table: array<vec2<f32>>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn rope(@builtin(global_invocation_id) id: vec3<u32>) {
    let pairs = params.dims / 2u;
    let head = id.x / pairs;
    if head >= params.heads {
        return;
    }
    let pair = id.x % pairs;
    let start = (id.y * params.heads + head) * params.head_dim;
    var first = start + 2u * pair;
    var second = first + 1u;
    if NEOX {
        first = start + pair;
        second = first + pairs;
    }
    let angle = table[id.y * pairs + pair];
    let a = x[first];
    let b = x[second];
    x[first] = a * angle.x - b * angle.y;
    x[second] = a * angle.y + b * angle.x;
}
