//! Writes the HLSL that Direct3D's compiler is given for every kernel in every tier, each text to a file of its own, and prints
//! for each file its path and its entry point: `hlsl OUT_DIR`. `tests/direct3d.sh` compiles them.
#![allow(clippy::unwrap_used)]

#[path = "../tests/translation/mod.rs"]
mod translation;

use std::{collections::HashSet, fs, path::PathBuf};

use thermocline_shaders::{KERNELS, Kernel};
use translation::{direct3d, parse, specialise, switches, texts, type_name};

/// Numbers the engine makes pipelines with, where loops and conditions depend on them. Kernels that are not here are written
/// with their defaults.
const NUMBERS: &[(&str, &[(&str, f64)])] = &[
    ("activation", &[("KIND", 0.0)]),
    ("activation", &[("KIND", 4.0)]),
    ("active_mask", &[("TEST", 0.0)]),
    ("active_mask", &[("TEST", 1.0)]),
    ("active_mask", &[("TEST", 2.0)]),
    ("attention_decode", &[("HEAD_DIM", 64.0), ("HEADS", 1.0), ("WORKGROUP_SIZE", 128.0)]),
    ("attention_decode", &[("HEAD_DIM", 64.0), ("HEADS", 8.0), ("WORKGROUP_SIZE", 128.0)]),
    ("attention_decode", &[("HEAD_DIM", 128.0), ("HEADS", 1.0), ("WORKGROUP_SIZE", 128.0)]),
    ("attention_decode", &[("HEAD_DIM", 128.0), ("HEADS", 4.0), ("WORKGROUP_SIZE", 128.0)]),
    ("attention_decode", &[("HEAD_DIM", 128.0), ("HEADS", 7.0), ("WORKGROUP_SIZE", 128.0)]),
    ("attention_decode", &[("HEAD_DIM", 256.0), ("HEADS", 4.0), ("WORKGROUP_SIZE", 128.0)]),
    ("attention_merge", &[("HEAD_DIM", 64.0)]),
    ("attention_merge", &[("HEAD_DIM", 256.0)]),
    ("attention_prompt", &[("HEAD_DIM", 64.0)]),
    ("attention_prompt", &[("HEAD_DIM", 128.0)]),
    ("attention_prompt", &[("HEAD_DIM", 256.0)]),
    ("gemv", &[("ROWS", 4.0), ("TOKENS", 1.0), ("WORKGROUP_SIZE", 128.0)]),
    ("gemv", &[("ROWS", 8.0), ("TOKENS", 1.0), ("WORKGROUP_SIZE", 64.0)]),
    ("gemv", &[("ROWS", 2.0), ("TOKENS", 1.0), ("WORKGROUP_SIZE", 256.0)]),
    ("gemv", &[("ROWS", 4.0), ("TOKENS", 4.0), ("WORKGROUP_SIZE", 128.0)]),
    ("gemv_dot", &[("ROWS", 4.0), ("WORKGROUP_SIZE", 128.0)]),
    ("gemv_dot", &[("ROWS", 8.0), ("WORKGROUP_SIZE", 64.0)]),
    ("slot_list", &[("BLOCKS", 16.0), ("WORKGROUP_SIZE", 256.0)]),
    ("sparse_down", &[("TOKENS", 1.0)]),
    ("sparse_down", &[("TOKENS", 8.0)]),
];

/// The choices of numbers for a kernel.
fn numbers(kernel: &Kernel) -> Vec<&'static [(&'static str, f64)]> {
    let chosen: Vec<_> = NUMBERS.iter().filter(|(name, _)| *name == kernel.name).map(|(_, numbers)| *numbers).collect();
    if chosen.is_empty() { vec![&[]] } else { chosen }
}

fn main() {
    let out = PathBuf::from(std::env::args().nth(1).expect("usage: hlsl OUT_DIR"));
    fs::create_dir_all(&out).unwrap();
    for (name, _) in NUMBERS {
        assert!(Kernel::named(name).is_some(), "no kernel {name}");
    }
    // Not every kernel has switches or differs from tier to tier.
    let mut written = HashSet::new();
    for kernel in KERNELS.iter().filter(|kernel| !kernel.cooperative) {
        for (tier, weights) in texts(kernel) {
            let parsed = parse(kernel, tier, weights);
            for (choice, numbers) in numbers(kernel).into_iter().enumerate() {
                for (on, name) in [(false, "off"), (true, "on")] {
                    let mut constants = switches(&parsed.0, on);
                    constants.extend(numbers.iter().map(|(name, value)| ((*name).to_owned(), *value)));
                    let (text, entry) = direct3d(kernel, &specialise(kernel, &parsed, &constants));
                    let file = format!("{}-{}-{tier}-{choice}-{name}.hlsl", kernel.name, type_name(weights));
                    let path = out.join(file);
                    if !written.contains(&text) {
                        fs::write(&path, &text).unwrap();
                        println!("{}\t{entry}", path.display());
                        written.insert(text);
                    }
                }
            }
        }
    }
}
