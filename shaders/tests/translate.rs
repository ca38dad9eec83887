//! Every kernel, in every tier, parses, validates and is translated to every backend's language.
#![allow(clippy::unwrap_used)]

use naga::back::{PipelineConstants, glsl, hlsl, msl, pipeline_constants::process_overrides, spv};
use naga::proc::BoundsCheckPolicies;
use naga::valid::{Capabilities, ModuleInfo, SubgroupOperationSet, ValidationFlags, Validator};
use naga::{AddressSpace, Module, ShaderStage};
use thermocline_shaders::{KERNELS, Kernel, Tier};

fn parse(kernel: &Kernel, tier: Tier) -> (Module, ModuleInfo) {
    let source = kernel.source(tier).unwrap_or_else(|error| panic!("{error}"));
    let module = naga::front::wgsl::parse_str(&source)
        .unwrap_or_else(|error| panic!("{} ({tier}):\n{}", kernel.name, error.emit_to_string(&source)));
    // unpack2x16float needs the second; every wgpu backend but WebGL has it.
    let mut capabilities = Capabilities::IMMEDIATES | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    capabilities.set(Capabilities::SUBGROUP, tier.subgroups);
    capabilities.set(Capabilities::SHADER_FLOAT16, tier.f16);
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    if tier.subgroups {
        validator.subgroup_operations(SubgroupOperationSet::all()).subgroup_stages(naga::valid::ShaderStages::COMPUTE);
    }
    let info = validator
        .validate(&module)
        .unwrap_or_else(|error| panic!("{} ({tier}):\n{}", kernel.name, error.emit_to_string(&source)));
    (module, info)
}

/// Languages a kernel is written in, as (name, length in bytes or words), with every boolean override set to `switches`.
fn translate(kernel: &Kernel, tier: Tier, workgroup_size: f64, switches: bool) -> Vec<(&'static str, usize)> {
    let (module, info) = parse(kernel, tier);
    let mut constants = PipelineConstants::from_iter([("WORKGROUP_SIZE".to_owned(), workgroup_size)]);
    for (_, number) in module.overrides.iter() {
        if module.types[number.ty].inner.scalar() == Some(naga::Scalar::BOOL) {
            constants.insert(number.name.clone().unwrap(), f64::from(u8::from(switches)));
        }
    }
    let entry = Some((ShaderStage::Compute, kernel.name));
    let (module, info) = process_overrides(&module, &info, entry, &constants)
        .unwrap_or_else(|error| panic!("{} ({tier}): {error}", kernel.name));
    let what = |backend: &str, error: &dyn std::fmt::Display| -> usize {
        panic!("{} ({tier}) as {backend}: {error}", kernel.name)
    };
    let owned_entry = Some((ShaderStage::Compute, kernel.name.to_owned()));

    let spv_options = spv::Options { lang_version: (1, 3), ..spv::Options::default() };
    let spirv = match spv::write_vec(&module, &info, &spv_options, None) {
        Ok(words) => words.len(),
        Err(error) => what("SPIR-V", &error),
    };

    let msl_options = msl::Options { lang_version: (2, 4), fake_missing_bindings: true, ..msl::Options::default() };
    let msl_pipeline = msl::PipelineOptions { entry_point: owned_entry.clone(), ..msl::PipelineOptions::default() };
    let metal = match msl::write_string(&module, &info, &msl_options, &msl_pipeline) {
        Ok((text, _)) => text.len(),
        Err(error) => what("MSL", &error),
    };

    let hlsl_options = hlsl::Options {
        shader_model: hlsl::ShaderModel::V6_2,
        immediates_target: Some(hlsl::BindTarget { space: 255, ..hlsl::BindTarget::default() }),
        ..hlsl::Options::default()
    };
    let hlsl_pipeline = hlsl::PipelineOptions { entry_point: owned_entry };
    let mut text = String::new();
    let direct3d = match hlsl::Writer::new(&mut text, &hlsl_options, &hlsl_pipeline).write(&module, &info, None) {
        Ok(_) => text.len(),
        Err(error) => what("HLSL", &error),
    };

    let mut sizes = vec![("SPIR-V", spirv), ("MSL", metal), ("HLSL", direct3d)];
    // naga's GLSL writer has neither f16 nor subgroups on ES.
    if tier == Tier::PORTABLE {
        let options = glsl::Options { version: glsl::Version::new_gles(310), ..glsl::Options::default() };
        let pipeline = glsl::PipelineOptions {
            shader_stage: ShaderStage::Compute,
            entry_point: kernel.name.to_owned(),
            multiview: None,
        };
        let mut text = String::new();
        let written = glsl::Writer::new(&mut text, &module, &info, &options, &pipeline, BoundsCheckPolicies::default())
            .and_then(|mut writer| writer.write().map(|_| ()));
        sizes.push(("GLSL", written.map_or_else(|error| what("GLSL", &error), |()| text.len())));
    }
    sizes
}

#[test]
fn every_kernel_translates_in_every_tier() {
    for kernel in &KERNELS {
        for tier in Tier::ALL {
            for workgroup_size in [32.0, 96.0, 256.0] {
                translate(kernel, tier, workgroup_size, true);
                for (backend, size) in translate(kernel, tier, workgroup_size, false) {
                    assert!(size > 100, "{} ({tier}) as {backend} is {size} long", kernel.name);
                    println!("{:<12} {tier:<14} workgroup {workgroup_size:<4} {backend:<7} {size}", kernel.name);
                }
            }
        }
    }
}

#[test]
fn each_file_has_one_entry_point_of_its_name() {
    for kernel in &KERNELS {
        let (module, _) = parse(kernel, Tier::PORTABLE);
        let names: Vec<_> = module.entry_points.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, [kernel.name]);
    }
}

#[test]
fn params_have_the_size_the_table_says() {
    for kernel in &KERNELS {
        for tier in Tier::ALL {
            let (module, _) = parse(kernel, tier);
            let sizes: Vec<u32> = module
                .global_variables
                .iter()
                .filter(|(_, variable)| variable.space == AddressSpace::Immediate)
                .map(|(_, variable)| module.types[variable.ty].inner.size(module.to_ctx()))
                .collect();
            assert_eq!(sizes, [kernel.params_bytes], "{} ({tier})", kernel.name);
            assert!(kernel.params_bytes <= 128, "{}: DX12 guarantees 128 bytes", kernel.name);
        }
    }
}

#[test]
fn tiers_differ_only_where_they_should() {
    for kernel in &KERNELS {
        let portable = kernel.source(Tier::PORTABLE).unwrap();
        assert!(!portable.contains("subgroupAdd") && !portable.contains("enable f16"), "{}", kernel.name);
        assert!(!portable.contains('#'), "{}: a directive was left", kernel.name);
    }
    let norm = KERNELS.iter().find(|kernel| kernel.name == "norm").unwrap();
    assert!(norm.source(Tier { subgroups: true, f16: false }).unwrap().contains("subgroupAdd"));
}
