//! Writes the SPIR-V of every kernel, as passed to a Vulkan driver, with one folder per tier:
//! `spirv OUT_DIR`. Prints for each file, separated by tabs: the path without `.spv`, the kernel,
//! its bindings, the bytes of its immediates, and the bytes of weights that an invocation takes at
//! once. `tests/gpu_offline.sh` passes the files to a validator and to drivers.
#![allow(clippy::unwrap_used)]

#[path = "../tests/translation/mod.rs"]
mod translation;

use std::{collections::HashSet, fs, path::PathBuf};

use thermocline_shaders::{KERNELS, Tier, WeightType};
use translation::{parse, specialise, switches, texts, type_name, variants, vulkan};

/// Columns of the row for which bytes are counted: several super-blocks.
const COLS: usize = 1 << 12;

/// The tier of real drivers, for which all modules are written. For other tiers, only modules that
/// differ are written.
const RICHEST: Tier = Tier { subgroups: true, f16: true };

fn main() {
    let out = PathBuf::from(std::env::args().nth(1).expect("usage: spirv OUT_DIR"));
    // Some kernels have no switches, or are the same in several tiers.
    let mut written = HashSet::new();
    for kernel in KERNELS {
        for (tier, weights) in texts(kernel) {
            let parsed = parse(kernel, tier, weights);
            let folder = out.join(tier.to_string());
            fs::create_dir_all(&folder).unwrap();
            for (variant, numbers) in variants::of(kernel) {
                for (on, name) in [(false, ""), (true, "on")] {
                    let mut constants = switches(&parsed.0, on);
                    constants.extend(numbers.iter().map(|(name, value)| ((*name).to_owned(), *value)));
                    let words = vulkan(kernel, tier, &specialise(kernel, &parsed, &constants));
                    if !written.insert((tier == RICHEST, words.clone())) {
                        continue;
                    }
                    let parts = [kernel.name, variant, name, type_name(weights)];
                    let label = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-");
                    let path = folder.join(label);
                    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                    fs::write(path.with_extension("spv"), bytes).unwrap();
                    let place = |ty: WeightType| (ty.device_row_bytes(COLS) * 8 * ty.parts()) as f64 / COLS as f64;
                    let bindings = kernel.bindings_of(weights).map(|(binding, _)| binding + 1).max().unwrap_or(0);
                    let params = kernel.params_bytes;
                    let place = weights.map_or(0.0, place);
                    println!("{}\t{}\t{bindings}\t{params}\t{place}", path.display(), kernel.name);
                }
            }
        }
    }
}
