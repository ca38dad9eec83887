//! Kernels as naga modules, and as the HLSL that wgpu passes to Direct3D's compiler.
#![allow(dead_code, clippy::unwrap_used)] // each program uses a part

pub mod variants;

use naga::{
    Expression, Module, ResourceBinding, Scalar, ShaderStage,
    back::{PipelineConstants, hlsl, msl, pipeline_constants::process_overrides, spv},
    proc::{BoundsCheckPolicies, BoundsCheckPolicy},
    valid::{Capabilities, ModuleInfo, SubgroupOperationSet, ValidationFlags, Validator},
};
use thermocline_shaders::{Access, Kernel, Tier, WeightType};

/// The weight types for which a kernel has a text; `None` for a kernel that reads no weights.
pub fn types(kernel: &Kernel) -> Vec<Option<WeightType>> {
    if kernel.weights.is_empty() { vec![None] } else { kernel.weights.iter().copied().map(Some).collect() }
}

/// Name of a weight type, empty for a kernel that reads no weights.
pub fn type_name(weights: Option<WeightType>) -> &'static str {
    weights.map_or("", WeightType::name)
}

/// All texts of a kernel: each tier with each weight type.
pub fn texts(kernel: &Kernel) -> impl Iterator<Item = (Tier, Option<WeightType>)> + '_ {
    kernel.tiers().iter().flat_map(|tier| types(kernel).into_iter().map(move |ty| (*tier, ty)))
}

/// Parses and validates one text with exactly the features of its tier.
pub fn parse(kernel: &Kernel, tier: Tier, weights: Option<WeightType>) -> (Module, ModuleInfo) {
    let source = kernel.source(tier, weights).unwrap_or_else(|error| panic!("{error}"));
    let module = naga::front::wgsl::parse_str(&source)
        .unwrap_or_else(|error| panic!("{} ({tier}):\n{}", kernel.name, error.emit_to_string(&source)));
    // `unpack2x16float` needs the second capability. Every wgpu backend except WebGL has it.
    let mut capabilities = Capabilities::IMMEDIATES | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    capabilities.set(Capabilities::SUBGROUP, tier.subgroups);
    capabilities.set(Capabilities::SHADER_FLOAT16, tier.f16);
    capabilities.set(Capabilities::COOPERATIVE_MATRIX, kernel.cooperative);
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    if tier.subgroups {
        validator.subgroup_operations(SubgroupOperationSet::all()).subgroup_stages(naga::valid::ShaderStages::COMPUTE);
    }
    let info = validator
        .validate(&module)
        .unwrap_or_else(|error| panic!("{} ({tier}):\n{}", kernel.name, error.emit_to_string(&source)));
    (module, info)
}

/// Sets every boolean override of `module` to `value`, except overrides derived from others.
pub fn switches(module: &Module, value: bool) -> PipelineConstants {
    let overrides = module.overrides.iter().map(|(_, number)| number);
    let booleans = overrides.filter(|number| module.types[number.ty].inner.scalar() == Some(Scalar::BOOL));
    let free = booleans.filter(|number| {
        number.init.is_none_or(|init| matches!(module.global_expressions[init], Expression::Literal(_)))
    });
    free.map(|number| (number.name.clone().unwrap(), f64::from(u8::from(value)))).collect()
}

/// A kernel's module with its overrides resolved.
pub fn specialise(
    kernel: &Kernel,
    (module, info): &(Module, ModuleInfo),
    constants: &PipelineConstants,
) -> (Module, ModuleInfo) {
    let entry = Some((ShaderStage::Compute, kernel.name));
    let (module, info) =
        process_overrides(module, info, entry, constants).unwrap_or_else(|error| panic!("{}: {error}", kernel.name));
    (module.into_owned(), info.into_owned())
}

/// HLSL of a specialised kernel, with wgpu-hal's options for naga, and the name of its entry point.
pub fn direct3d(
    kernel: &Kernel,
    weights: Option<WeightType>,
    (module, info): &(Module, ModuleInfo),
) -> (String, String) {
    let (mut read, mut written) = (0, 0);
    let mut binding_map = hlsl::BindingMap::default();
    for (binding, access) in kernel.bindings_of(weights) {
        let register = if access == Access::Write { &mut written } else { &mut read };
        let target = hlsl::BindTarget { register: *register, restrict_indexing: true, ..hlsl::BindTarget::default() };
        *register += 1;
        binding_map.insert(ResourceBinding { group: 0, binding }, target);
    }
    let options = hlsl::Options {
        shader_model: hlsl::ShaderModel::V6_6,
        binding_map,
        fake_missing_bindings: false,
        immediates_target: Some(hlsl::BindTarget::default()),
        zero_initialize_workgroup_memory: false,
        restrict_indexing: true,
        force_loop_bounding: false,
        ..hlsl::Options::default()
    };
    let pipeline = hlsl::PipelineOptions { entry_point: Some((ShaderStage::Compute, kernel.name.to_owned())) };
    let mut text = String::new();
    let reflection = hlsl::Writer::new(&mut text, &options, &pipeline)
        .write(module, info, None)
        .unwrap_or_else(|error| panic!("{} as HLSL: {error}", kernel.name));
    let [Ok(entry)] = &reflection.entry_point_names[..] else {
        panic!("{} as HLSL: {:?}", kernel.name, reflection.entry_point_names)
    };
    (text, entry.clone())
}

/// Version of the Metal language of the texts.
pub const METAL_LANGUAGE: (u8, u8) = (2, 4);

/// Metal text of a specialised kernel.
pub fn metal(kernel: &Kernel, (module, info): &(Module, ModuleInfo)) -> String {
    let options = msl::Options {
        lang_version: METAL_LANGUAGE,
        fake_missing_bindings: true,
        zero_initialize_workgroup_memory: false,
        force_loop_bounding: false,
        emit_int_div_checks: false,
        ..msl::Options::default()
    };
    let entry_point = Some((ShaderStage::Compute, kernel.name.to_owned()));
    let pipeline = msl::PipelineOptions { entry_point, ..msl::PipelineOptions::default() };
    match msl::write_string(module, info, &options, &pipeline) {
        Ok((text, _)) => text,
        Err(error) => panic!("{} as MSL: {error}", kernel.name),
    }
}

/// SPIR-V of a specialised kernel, with wgpu-hal's options for naga on a driver that checks buffer
/// bounds itself.
pub fn vulkan(kernel: &Kernel, tier: Tier, (module, info): &(Module, ModuleInfo)) -> Vec<u32> {
    use spv::Capability as C;
    let mut capabilities = vec![C::Shader, C::Matrix, C::Int8];
    capabilities.extend([C::DotProductInputAllKHR, C::DotProductInput4x8BitKHR]);
    capabilities.extend([C::DotProductInput4x8BitPackedKHR, C::DotProductKHR]);
    if tier.subgroups {
        capabilities.extend([C::GroupNonUniform, C::GroupNonUniformVote, C::GroupNonUniformArithmetic]);
        capabilities.extend([C::GroupNonUniformBallot, C::GroupNonUniformShuffle, C::GroupNonUniformShuffleRelative]);
    }
    if tier.f16 {
        capabilities.push(C::Float16);
    }
    if kernel.cooperative {
        capabilities.extend([C::CooperativeMatrixKHR, C::VulkanMemoryModel]);
    }
    let options = spv::Options {
        lang_version: (1, 6),
        flags: spv::WriterFlags::LABEL_VARYINGS | spv::WriterFlags::FORCE_POINT_SIZE,
        capabilities: Some(capabilities.into_iter().collect()),
        bounds_check_policies: BoundsCheckPolicies {
            index: BoundsCheckPolicy::Restrict,
            buffer: BoundsCheckPolicy::Unchecked,
            image_load: BoundsCheckPolicy::Unchecked,
            binding_array: BoundsCheckPolicy::Unchecked,
        },
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        emit_int_div_checks: false,
        ..spv::Options::default()
    };
    let pipeline = spv::PipelineOptions { entry_point: kernel.name.to_owned(), shader_stage: ShaderStage::Compute };
    spv::write_vec(module, info, &options, Some(&pipeline))
        .unwrap_or_else(|error| panic!("{} as SPIR-V: {error}", kernel.name))
}
