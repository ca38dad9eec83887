// sums[i] = sum of all words of data[i + k * invocations], wrapping. Does nothing but read, to
// measure the read bandwidth. Adjacent invocations read adjacent elements, with four loads in
// flight each.
#include "params.wgsl"

override WORKGROUP_SIZE: u32 = 256u;

@group(0) @binding(0) var<storage, read> data: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> sums: array<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn read_bandwidth(@builtin(global_invocation_id) id: vec3<u32>) {
    let first = id.y * params.stride + id.x;
    let step = params.invocations;
    var sum = vec4<u32>();
    var at = first;
    // `at` stays below `len`, and `len` elements are less than 2^31 bytes, so nothing overflows.
    for (; at + 3u * step < params.len; at += 4u * step) {
        let a = data[at];
        let b = data[at + step];
        let c = data[at + 2u * step];
        let d = data[at + 3u * step];
        sum += (a + b) + (c + d);
    }
    for (; at < params.len; at += step) {
        sum += data[at];
    }
    sums[first] = sum.x + sum.y + sum.z + sum.w;
}
