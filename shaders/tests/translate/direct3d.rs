//! Requirements of Direct3D's compiler on the inputs of entry points. naga does not check them in
//! its HLSL.

use thermocline_shaders::KERNELS;

use crate::translation::{direct3d, parse, specialise, switches, texts, type_name};

/// The inputs of an entry point as declared in the text: its arguments, or the members of a struct
/// argument.
fn inputs<'a>(text: &'a str, entry: &str) -> Vec<&'a str> {
    let (_, behind) = text.split_once(&format!("void {entry}(")).unwrap_or_else(|| panic!("no {entry} in\n{text}"));
    let (arguments, _) = behind.split_once(")\n{").unwrap_or_else(|| panic!("no body of {entry} in\n{text}"));
    let declared = arguments.split(", ").flat_map(|argument| {
        let ty = argument.split(' ').next().unwrap();
        let members = text.split_once(&format!("struct {ty} {{\n")).and_then(|(_, behind)| behind.split_once("};"));
        members.map_or(vec![argument], |(members, _)| members.lines().map(str::trim).collect())
    });
    declared.filter(|input| !input.is_empty()).collect()
}

fn has_semantic(input: &str) -> bool {
    input.contains(" : SV_")
}

#[test]
fn every_input_of_an_entry_point_has_a_semantic() {
    let (mut entries, mut refused) = (0, Vec::new());
    for kernel in KERNELS.iter().filter(|kernel| !kernel.cooperative) {
        for (tier, weights) in texts(kernel) {
            let parsed = parse(kernel, tier, weights);
            for on in [false, true] {
                let (text, entry) = direct3d(kernel, weights, &specialise(kernel, &parsed, &switches(&parsed.0, on)));
                let inputs = inputs(&text, &entry);
                assert!(!inputs.is_empty(), "{} ({tier}): an entry point without inputs:\n{text}", kernel.name);
                let without: Vec<_> = inputs.into_iter().filter(|input| !has_semantic(input)).collect();
                entries += 1;
                if !without.is_empty() {
                    refused.push(format!("{} {} ({tier}): {}", kernel.name, type_name(weights), without.join(" ")));
                }
            }
        }
    }
    assert!(refused.is_empty(), "{} of {entries} entry points:\n{}", refused.len(), refused.join("\n"));
}

#[test]
fn members_of_a_struct_are_inputs() {
    let text = "struct Other {\n    uint a;\n};\n\n\
        struct Builtins {\n    uint index : SV_GroupIndex;\n    uint subgroup;\n};\n\n\
        [numthreads(1, 1, 1)]\nvoid main_(Builtins builtins, uint3 id : SV_GroupID)\n{\n    return;\n}\n";
    let inputs = inputs(text, "main_");
    assert_eq!(inputs, ["uint index : SV_GroupIndex;", "uint subgroup;", "uint3 id : SV_GroupID"]);
    let with: Vec<_> = inputs.into_iter().map(has_semantic).collect();
    assert_eq!(with, [true, false, true]);
}
