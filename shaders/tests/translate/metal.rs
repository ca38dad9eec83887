//! Checks names in the kernels' Metal texts against tables of its specification, because Metal's
//! compiler runs only on macOS.

use std::collections::BTreeSet;

use thermocline_shaders::KERNELS;

use crate::translation::{METAL_LANGUAGE, metal, parse, specialise, switches, texts};

/// Version of the Metal language.
type Version = (u8, u8);

/// Names of Metal's library other than number types, each with the first language version for macOS
/// that has it. Names of versions later than the texts' version are listed so that they are
/// rejected.
const LIBRARY: [(Version, &[&str]); 7] = [
    (
        (1, 0),
        &[
            "abs",
            "all",
            "any",
            "atomic_exchange_explicit",
            "atomic_fetch_add_explicit",
            "atomic_fetch_and_explicit",
            "atomic_fetch_max_explicit",
            "atomic_fetch_min_explicit",
            "atomic_fetch_or_explicit",
            "atomic_fetch_sub_explicit",
            "atomic_fetch_xor_explicit",
            "atomic_int",
            "atomic_load_explicit",
            "atomic_store_explicit",
            "atomic_uint",
            "ceil",
            "clamp",
            "clz",
            "cos",
            "cross",
            "ctz",
            "dot",
            "exp",
            "exp2",
            "floor",
            "fma",
            "fmod",
            "fract",
            "isinf",
            "isnan",
            "length",
            "log",
            "log2",
            "max",
            "mem_flags",
            "memory_order_relaxed",
            "min",
            "mix",
            "mulhi",
            "normalize",
            "popcount",
            "pow",
            "rint",
            "round",
            "rsqrt",
            "saturate",
            "select",
            "sign",
            "sin",
            "sqrt",
            "step",
            "tan",
            "tanh",
            "threadgroup_barrier",
            "transpose",
            "trunc",
        ],
    ),
    ((1, 2), &["extract_bits", "insert_bits"]),
    (
        (2, 0),
        &[
            "quad_broadcast",
            "quad_shuffle_xor",
            "simd_broadcast",
            "simd_shuffle",
            "simd_shuffle_down",
            "simd_shuffle_up",
            "simd_shuffle_xor",
            "simdgroup_barrier",
        ],
    ),
    (
        (2, 1),
        &[
            "reverse_bits",
            "simd_all",
            "simd_and",
            "simd_any",
            "simd_ballot",
            "simd_broadcast_first",
            "simd_max",
            "simd_min",
            "simd_or",
            "simd_prefix_exclusive_product",
            "simd_prefix_exclusive_sum",
            "simd_prefix_inclusive_product",
            "simd_prefix_inclusive_sum",
            "simd_product",
            "simd_sum",
            "simd_xor",
        ],
    ),
    ((2, 3), &["simdgroup_load", "simdgroup_multiply_accumulate", "simdgroup_store"]),
    ((3, 0), &["atomic_float"]),
    ((3, 1), &["atomic_ulong", "bfloat"]),
];

/// True if the library has this name in the version of the texts.
fn library_has(name: &str) -> bool {
    LIBRARY.iter().any(|(since, names)| *since <= METAL_LANGUAGE && names.contains(&name))
}

/// The library names that a text uses.
fn library_names(text: &str) -> impl Iterator<Item = &str> {
    text.split("metal::").skip(1).filter_map(|rest| rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next())
}

/// True for types of Metal's specification that begin like scalars, vectors, matrices or SIMD-group
/// tiles.
fn metal_has(name: &str) -> bool {
    const SCALARS: [&str; 13] = [
        "bool",
        "char",
        "uchar",
        "short",
        "ushort",
        "int",
        "uint",
        "long",
        "ulong",
        "half",
        "float",
        "size_t",
        "ptrdiff_t",
    ];
    let split = name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len());
    let (base, size) = name.split_at(split);
    if let Some(element) = base.strip_prefix("simdgroup_") {
        // Hardware tiles are 8 x 8.
        return ["half", "float", "bfloat"].contains(&element) && size == "8x8";
    }
    let of_packed = base.strip_prefix("packed_").unwrap_or(base);
    let vector = matches!(size, "" | "2" | "3" | "4");
    let matrix = matches!(of_packed, "half" | "float")
        && matches!(size.as_bytes(), [cols @ b'2'..=b'4', b'x', rows @ b'2'..=b'4'] if cols.is_ascii_digit() && rows.is_ascii_digit());
    SCALARS.contains(&of_packed) && (vector || matrix)
}

/// The types with such names in a Metal text.
fn metal_types(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let looks_like_a_type = |word: &&str| {
        let base = word.trim_start_matches("simdgroup_").trim_start_matches("packed_");
        let split = base.find(|c: char| c.is_ascii_digit()).unwrap_or(base.len());
        let (letters, size) = base.split_at(split);
        let scalar = [
            "bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "half", "float", "double",
            "bfloat",
        ];
        scalar.contains(&letters) && size.chars().all(|c| c.is_ascii_digit() || c == 'x')
    };
    words.filter(looks_like_a_type).collect()
}

#[test]
fn metal_texts_name_only_what_metal_has() {
    let (mut missing, mut library) = (BTreeSet::new(), BTreeSet::new());
    // Metal lacks tiles of 16 x 16. The engine creates this kernel only if an adapter offers them.
    for kernel in KERNELS.iter().filter(|kernel| kernel.name != "gemm_coop") {
        for (tier, weights) in texts(kernel) {
            let parsed = parse(kernel, tier, weights);
            for on in [false, true] {
                let text = metal(kernel, &specialise(kernel, &parsed, &switches(&parsed.0, on)));
                let types = metal_types(&text);
                assert!(types.contains(&"uint"), "{}: no types were found", kernel.name);
                let strange = types.into_iter().filter(|name| !metal_has(name));
                let unknown = library_names(&text).filter(|name| !metal_has(name) && !library_has(name));
                missing.extend(strange.chain(unknown).map(|name| (kernel.name, name.to_owned())));
                library.extend(library_names(&text).map(str::to_owned));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
    let found = ["threadgroup_barrier", "simd_sum", "simdgroup_half8x8"];
    assert!(found.into_iter().all(|name| library.contains(name)), "{library:?}");
}

#[test]
fn names_that_metal_lacks_are_noticed() {
    for (name, has) in [
        ("float4", true),
        ("packed_float3", true),
        ("simdgroup_float8x8", true),
        ("half4x4", true),
        ("simdgroup_half16x16", false),
        ("double", false),
        ("float5", false),
        ("long8", false),
        ("int2x2", false),
    ] {
        assert_eq!(metal_has(name), has, "{name}");
    }
    let text = "metal::uint3 a; metal::simd_sum(b); (metal::atomic_float) metal::bfloat4(c); metal::pow2(d)";
    let names: Vec<_> = library_names(text).collect();
    assert_eq!(names, ["uint3", "simd_sum", "atomic_float", "bfloat4", "pow2"]);
    let refused = names.into_iter().filter(|name| !metal_has(name) && !library_has(name));
    assert_eq!(refused.collect::<Vec<_>>(), ["atomic_float", "bfloat4", "pow2"]);
}
