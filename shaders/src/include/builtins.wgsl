// The arguments of an entry point that includes lane.wgsl, to be included between its parentheses.
// `subgroup_size` is needed for Direct3D. naga's HLSL writer fills the subgroup members of a struct
// only if another argument is a subgroup builtin. Otherwise it declares them as inputs without a
// semantic, which the compiler rejects.
    builtins: Builtins,
#if subgroups
    @builtin(subgroup_size) subgroup_size: u32,
#endif
