//! Writes the HLSL of every kernel in every tier, as passed to Direct3D's compiler, each text to
//! its own file: `hlsl OUT_DIR`. Prints the path and the entry point of each file.
//! `tests/direct3d.sh` compiles them.
#![allow(clippy::unwrap_used)]

#[path = "../tests/translation/mod.rs"]
mod translation;

use std::{collections::HashSet, fs, path::PathBuf};

use thermocline_shaders::KERNELS;
use translation::{direct3d, parse, specialise, switches, texts, type_name, variants};

fn main() {
    let out = PathBuf::from(std::env::args().nth(1).expect("usage: hlsl OUT_DIR"));
    fs::create_dir_all(&out).unwrap();
    // Some kernels have no switches, or are the same in several tiers.
    let mut written = HashSet::new();
    for kernel in KERNELS.iter().filter(|kernel| !kernel.cooperative) {
        for (tier, weights) in texts(kernel) {
            let parsed = parse(kernel, tier, weights);
            for (choice, numbers) in variants::of(kernel) {
                for (on, name) in [(false, "off"), (true, "on")] {
                    let mut constants = switches(&parsed.0, on);
                    constants.extend(numbers.iter().map(|(name, value)| ((*name).to_owned(), *value)));
                    let (text, entry) = direct3d(kernel, weights, &specialise(kernel, &parsed, &constants));
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
