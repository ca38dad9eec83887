// Index of an invocation in its workgroup. An entry point takes the arguments of builtins.wgsl and
// calls lane_of.
override WORKGROUP_SIZE: u32 = 128u;

struct Lane {
    index: u32,
    subgroup: u32,
    subgroups: u32,
    subgroup_lane: u32,
}

struct Builtins {
    @builtin(local_invocation_index) index: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
#if subgroups
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
#endif
}

fn lane_of(builtins: Builtins) -> Lane {
#if subgroups
    return Lane(builtins.index, builtins.subgroup, builtins.subgroups, builtins.subgroup_lane);
#else
    return Lane(builtins.index, 0u, 1u, 0u);
#endif
}
