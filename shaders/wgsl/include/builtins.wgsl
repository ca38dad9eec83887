// The arguments of an entry point that includes lane.wgsl, to be included between its parentheses. `subgroup_size` is for
// Direct3D: naga's HLSL writer fills the subgroup members of a struct only if an argument beside it is a subgroup builtin, and
// otherwise declares them as inputs without a semantic, which the compiler refuses.
    builtins: Builtins,
#if subgroups
    @builtin(subgroup_size) subgroup_size: u32,
#endif
