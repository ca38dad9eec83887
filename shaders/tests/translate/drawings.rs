//! Tests that every drawing parses, validates and translates to every backend's language, including
//! OpenGL ES 3.0.

use std::mem::offset_of;

use naga::{
    AddressSpace, Module, ShaderStage, TypeInner,
    back::{glsl, hlsl, msl, spv},
    proc::BoundsCheckPolicies,
    valid::{Capabilities, ModuleInfo, ValidationFlags, Validator},
};
use thermocline_shaders::{DRAWINGS, Drawing, MapParams, NEURON_MAP};

fn parse(drawing: &Drawing) -> (Module, ModuleInfo) {
    let module = naga::front::wgsl::parse_str(drawing.text)
        .unwrap_or_else(|error| panic!("{}:\n{}", drawing.name, error.emit_to_string(drawing.text)));
    let info = Validator::new(ValidationFlags::all(), Capabilities::empty())
        .validate(&module)
        .unwrap_or_else(|error| panic!("{}:\n{}", drawing.name, error.emit_to_string(drawing.text)));
    (module, info)
}

#[test]
fn drawing_shaders_translate_to_every_backend() {
    for drawing in DRAWINGS {
        let (module, info) = parse(drawing);
        let spirv = spv::write_vec(&module, &info, &spv::Options::default(), None).unwrap();
        assert!(spirv.len() > 100);
        for (stage, entry) in [(ShaderStage::Vertex, drawing.vertex), (ShaderStage::Fragment, drawing.fragment)] {
            let owned = Some((stage, entry.to_owned()));
            let options = msl::Options { fake_missing_bindings: true, ..msl::Options::default() };
            let pipeline = msl::PipelineOptions { entry_point: owned.clone(), ..msl::PipelineOptions::default() };
            let (metal, _) = msl::write_string(&module, &info, &options, &pipeline).unwrap();

            let mut direct3d = String::new();
            let (options, pipeline) = (hlsl::Options::default(), hlsl::PipelineOptions { entry_point: owned });
            hlsl::Writer::new(&mut direct3d, &options, &pipeline).write(&module, &info, None).unwrap();

            let options = glsl::Options { version: glsl::Version::new_gles(300), ..glsl::Options::default() };
            let pipeline =
                glsl::PipelineOptions { shader_stage: stage, entry_point: entry.to_owned(), multiview: None };
            let (mut gles, bounds) = (String::new(), BoundsCheckPolicies::default());
            glsl::Writer::new(&mut gles, &module, &info, &options, &pipeline, bounds).unwrap().write().unwrap();
            for (language, text) in [("MSL", metal), ("HLSL", direct3d), ("GLSL", gles)] {
                assert!(text.len() > 100, "{entry} as {language}: {text}");
            }
        }
    }
}

#[test]
fn uniform_offsets_match_the_shader() {
    let (module, _) = parse(&NEURON_MAP);
    let mut uniforms = module.global_variables.iter().filter(|(_, variable)| variable.space == AddressSpace::Uniform);
    let (_, params) = uniforms.next().unwrap();
    let TypeInner::Struct { members, span } = &module.types[params.ty].inner else { panic!("no struct") };
    let fields: Vec<_> =
        members.iter().map(|member| (member.name.as_deref().unwrap(), member.offset as usize)).collect();
    let wanted = [
        ("left", offset_of!(MapParams, left)),
        ("top", offset_of!(MapParams, top)),
        ("width", offset_of!(MapParams, width)),
        ("height", offset_of!(MapParams, height)),
        ("columns", offset_of!(MapParams, columns)),
        ("lines", offset_of!(MapParams, lines)),
        ("layers", offset_of!(MapParams, layers)),
        ("row", offset_of!(MapParams, row)),
        ("fold", offset_of!(MapParams, fold)),
        ("linear", offset_of!(MapParams, linear)),
    ];
    assert_eq!(fields, wanted);
    assert!(*span as usize <= MapParams::BYTES && MapParams { row: 7, ..MapParams::default() }.bytes()[28] == 7);
    assert!(uniforms.next().is_none());
}
