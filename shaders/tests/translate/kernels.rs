//! Tests that every kernel parses, validates and translates to every backend's language, in every
//! tier.

use naga::{
    AddressSpace, Module, ShaderStage, TypeInner,
    back::{PipelineConstants, glsl, spv},
    proc::BoundsCheckPolicies,
    valid::ModuleInfo,
};
use thermocline_shaders::{Access, KERNELS, Kernel, Tier, WeightType};

use crate::translation::{direct3d, metal, parse, specialise, switches, texts, type_name, types};

/// Translates a kernel's text and returns (name, length in bytes or words) per language. Sets every
/// boolean override to `on`.
fn translate(
    kernel: &Kernel,
    tier: Tier,
    weights: Option<WeightType>,
    parsed: &(Module, ModuleInfo),
    workgroup_size: f64,
    on: bool,
) -> Vec<(&'static str, usize)> {
    let mut constants = switches(&parsed.0, on);
    constants.insert("WORKGROUP_SIZE".to_owned(), workgroup_size);
    let specialised = specialise(kernel, parsed, &constants);
    let (module, info) = &specialised;
    let what = |backend: &str, error: &dyn std::fmt::Display| -> usize {
        panic!("{} ({tier}) as {backend}: {error}", kernel.name)
    };
    let spv_options = spv::Options { lang_version: (1, 3), ..spv::Options::default() };
    let spirv = match spv::write_vec(module, info, &spv_options, None) {
        Ok(words) => words.len(),
        Err(error) => what("SPIR-V", &error),
    };

    let metal = metal(kernel, &specialised).len();

    let mut sizes = vec![("SPIR-V", spirv), ("MSL", metal)];
    if kernel.cooperative {
        return sizes;
    }
    sizes.push(("HLSL", direct3d(kernel, weights, &specialised).0.len()));
    // naga's GLSL writer supports neither f16 nor subgroups on ES.
    if tier == Tier::PORTABLE {
        let options = glsl::Options { version: glsl::Version::new_gles(310), ..glsl::Options::default() };
        let pipeline = glsl::PipelineOptions {
            shader_stage: ShaderStage::Compute,
            entry_point: kernel.name.to_owned(),
            multiview: None,
        };
        let mut text = String::new();
        let written = glsl::Writer::new(&mut text, module, info, &options, &pipeline, BoundsCheckPolicies::default())
            .and_then(|mut writer| writer.write().map(|_| ()));
        sizes.push(("GLSL", written.map_or_else(|error| what("GLSL", &error), |()| text.len())));
    }
    sizes
}

/// Translates every text of `tier`.
fn every_kernel_translates(tier: Tier) {
    for kernel in KERNELS {
        for (_, weights) in texts(kernel).filter(|(of, _)| *of == tier) {
            let parsed = parse(kernel, tier, weights);
            for workgroup_size in [32.0, 96.0, 256.0] {
                translate(kernel, tier, weights, &parsed, workgroup_size, true);
                for (backend, size) in translate(kernel, tier, weights, &parsed, workgroup_size, false) {
                    assert!(size > 100, "{} ({tier}) as {backend} is {size} long", kernel.name);
                    let (name, ty) = (kernel.name, type_name(weights));
                    println!("{name:<18} {ty:<5} {tier:<14} workgroup {workgroup_size:<4} {backend:<7} {size}");
                }
            }
        }
    }
}

#[test]
fn every_kernel_translates_in_the_portable_tier() {
    every_kernel_translates(Tier::PORTABLE);
}

#[test]
fn every_kernel_translates_with_f16() {
    every_kernel_translates(Tier { subgroups: false, f16: true });
}

#[test]
fn every_kernel_translates_with_subgroups() {
    every_kernel_translates(Tier { subgroups: true, f16: false });
}

#[test]
fn every_kernel_translates_with_subgroups_and_f16() {
    every_kernel_translates(Tier { subgroups: true, f16: true });
}

#[test]
fn each_file_has_one_entry_point_of_its_name() {
    for kernel in KERNELS {
        let (module, _) = parse(kernel, kernel.tiers()[0], types(kernel)[0]);
        let names: Vec<_> = module.entry_points.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, [kernel.name]);
    }
}

#[test]
fn param_offsets_match_the_kernel_table() {
    for kernel in KERNELS {
        for tier in kernel.tiers().iter().copied() {
            let (module, _) = parse(kernel, tier, types(kernel)[0]);
            let immediates: Vec<_> = module
                .global_variables
                .iter()
                .filter(|(_, variable)| variable.space == AddressSpace::Immediate)
                .map(|(_, variable)| &module.types[variable.ty].inner)
                .collect();
            let [TypeInner::Struct { members, span }] = immediates[..] else { panic!("{}: no params", kernel.name) };
            let fields: Vec<_> =
                members.iter().map(|member| (member.name.as_deref().unwrap(), member.offset as usize)).collect();
            let of_rust: Vec<_> = kernel.params.iter().map(|field| (field.name, field.offset)).collect();
            assert_eq!(fields, of_rust, "{} ({tier})", kernel.name);
            assert_eq!(*span, kernel.params_bytes, "{} ({tier})", kernel.name);
            for member in members {
                // The languages differ in the layout of other structs within the parameters.
                let TypeInner::Struct { span, .. } = module.types[member.ty].inner else { continue };
                assert!(member.offset % 16 == 0 && span % 16 == 0, "{} ({tier}): {member:?}", kernel.name);
            }
            assert!(kernel.params_bytes <= 128, "{}: DX12 guarantees 128 bytes", kernel.name);
        }
    }
}

#[test]
fn bindings_match_the_kernel_table() {
    for kernel in KERNELS {
        for (tier, weights) in texts(kernel) {
            let (module, _) = parse(kernel, tier, weights);
            let mut bindings: Vec<_> = module
                .global_variables
                .iter()
                .filter_map(|(_, variable)| {
                    let AddressSpace::Storage { access } = variable.space else { return None };
                    let place = variable.binding.as_ref().unwrap();
                    assert_eq!(place.group, 0);
                    let write = access.contains(naga::StorageAccess::STORE);
                    Some((place.binding, if write { Access::Write } else { Access::Read }))
                })
                .collect();
            bindings.sort_by_key(|(binding, _)| *binding);
            let expected: Vec<_> = kernel.bindings_of(weights).collect();
            assert_eq!(bindings, expected, "{} ({tier})", kernel.name);
            assert!(bindings.len() <= 8, "{}: an adapter need not have more", kernel.name);
        }
    }
}

#[test]
fn workgroups_fit_the_smallest_shared_memory() {
    for kernel in KERNELS {
        for (tier, weights) in texts(kernel) {
            // The largest workgroup size of kernels with arrays per invocation. Other kernels need
            // less.
            let constants = PipelineConstants::from_iter([("WORKGROUP_SIZE".to_owned(), 128.0)]);
            let (module, _) = specialise(kernel, &parse(kernel, tier, weights), &constants);
            let shared =
                module.global_variables.iter().filter(|(_, variable)| variable.space == AddressSpace::WorkGroup);
            let bytes: u32 = shared.map(|(_, variable)| module.types[variable.ty].inner.size(module.to_ctx())).sum();
            assert!(bytes <= 16 << 10, "{} ({tier}): {bytes} bytes", kernel.name);
        }
    }
}

#[test]
fn portable_sources_have_no_tier_features() {
    for kernel in KERNELS.iter().filter(|kernel| !kernel.cooperative) {
        let portable = kernel.source(Tier::PORTABLE, types(kernel)[0]).unwrap();
        assert!(!portable.contains("subgroupAdd") && !portable.contains("enable f16"), "{}", kernel.name);
        assert!(!portable.contains('#'), "{}: a directive was left", kernel.name);
    }
    let norm = Kernel::named("norm").unwrap();
    assert!(norm.source(Tier { subgroups: true, f16: false }, None).unwrap().contains("subgroupAdd"));
}
