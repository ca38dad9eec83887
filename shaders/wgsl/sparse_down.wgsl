// The down projection with neurons for rows: of hidden[t] . W, where row j of W [n_ff, d] is neuron j's, workgroup
// (strip, split, t) of the grid writes what its share of the neurons adds to its strip of columns:
//   partials[t, split, c] = sum over the share of hidden[t, k] * W[list[k], c]
// `sum_splits` adds the shares up. Without DENSE there is one token, `hidden` has an element per neuron of the list; with it
// every neuron takes part, in order. Rows whose neuron is silent are not read.
#include "lane.wgsl"
#include "weights.wgsl"

override DENSE: bool = false;
// Chunks of a strip; divides WORKGROUP_SIZE. That many invocations read a row side by side, and the workgroup reads
// WORKGROUP_SIZE / STRIP rows at a time.
override STRIP: u32 = 16u;

struct Params {
    chunks: u32,
    // With DENSE; otherwise the list knows.
    neurons: u32,
    hidden_pitch: u32,
    splits: u32,
}

var<immediate> params: Params;
@group(0) @binding(2) var<storage, read> hidden: array<f32>;
// How many, then which.
@group(0) @binding(3) var<storage, read> list: array<u32>;
@group(0) @binding(4) var<storage, read_write> partials: array<vec4<f32>>;

var<workgroup> sums: array<vec4<f32>, WORKGROUP_SIZE>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn sparse_down(builtins: Builtins) {
    let split = builtins.workgroup.y;
    let token = builtins.workgroup.z;
    let col = builtins.index % STRIP;
    let chunk = builtins.workgroup.x * STRIP + col;
    var count = params.neurons;
    if !DENSE {
        count = list[0];
    }
    let share = (count + params.splits - 1u) / params.splits;
    let end = min((split + 1u) * share, count);
    var acc: array<vec4<f32>, 8>;
    if chunk < params.chunks {
        for (var k = split * share + builtins.index / STRIP; k < end; k += WORKGROUP_SIZE / STRIP) {
            let h = hidden[token * params.hidden_pitch + k];
            if h != 0.0 {
                var neuron = k;
                if !DENSE {
                    neuron = list[1u + k];
                }
                let row = chunk_weights(neuron, chunk, params.chunks);
                for (var i = 0u; i < 8u; i += 1u) {
                    acc[i] += h * row[i];
                }
            }
        }
    }
    let to = ((token * params.splits + split) * params.chunks + chunk) * 8u;
    for (var i = 0u; i < 8u; i += 1u) {
        workgroupBarrier();
        sums[builtins.index] = acc[i];
        workgroupBarrier();
        if builtins.index < STRIP && chunk < params.chunks {
            var sum = sums[col];
            for (var other = col + STRIP; other < WORKGROUP_SIZE; other += STRIP) {
                sum += sums[other];
            }
            partials[to + i] = sum;
        }
    }
}
