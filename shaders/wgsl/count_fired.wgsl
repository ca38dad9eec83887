// counts[i] += in how many tokens neuron i fired: bit i % 32 of mask[t, i / 32]. One invocation per neuron.
override WORKGROUP_SIZE: u32 = 128u;

struct Params {
    neurons: u32,
    tokens: u32,
}

var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> mask: array<u32>;
@group(0) @binding(1) var<storage, read_write> counts: array<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn count_fired(@builtin(global_invocation_id) id: vec3<u32>) {
    let neuron = id.x;
    if neuron >= params.neurons {
        return;
    }
    let words = (params.neurons + 31u) / 32u;
    var fired = 0u;
    for (var t = 0u; t < params.tokens; t += 1u) {
        fired += (mask[t * words + neuron / 32u] >> (neuron % 32u)) & 1u;
    }
    counts[neuron] += fired;
}
