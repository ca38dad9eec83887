//! The pixels that towers see, against those of the models' own image processors in transformers:
//! ten pictures each, enlarged and reduced.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use safetensors::SafeTensors;
use thermocline_formats::format::ReadMode;
use thermocline_model::Tower;
use thermocline_pictures::Picture;

/// Folders of `fixtures/towers`, and settings in `fixtures/preprocessing`.
const FAMILIES: [&str; 8] =
    ["qwen3-vl", "qwen2_5-vl", "gemma3", "gemma4", "gemma4-unified", "pixtral", "minicpm-v2_6", "minicpm-v4_6"];

/// Number of pictures.
const PICTURES: usize = 10;

/// The fixture has every 101st sample of the pixels.
const EVERY: usize = 101;

/// Largest mean difference of a sample from 0 to 255.
const TOLERANCE: f64 = 1.0;

fn fixtures(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(kind)
}

/// The tower of `family`, with the image processor's settings of this fixture.
fn tower(family: &str, scratch: &Path) -> Tower {
    let folder = fixtures("towers").join(family);
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(folder.join(file), scratch.join(file)).unwrap();
    }
    let settings = fixtures("preprocessing").join(format!("{family}.json"));
    fs::copy(settings, scratch.join("preprocessor_config.json")).unwrap();
    Tower::open(scratch, ReadMode::Map).unwrap()
}

#[test]
fn pictures_have_the_pixels_of_their_image_processors() {
    let expected = fs::read(fixtures("preprocessing").join("expected.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&expected).unwrap();
    for family in FAMILIES {
        let scratch = tempfile::tempdir().unwrap();
        let config = tower(family, scratch.path()).config;
        for at in 0..PICTURES {
            let picture = fs::read(fixtures("preprocessing").join(format!("{at}.png"))).unwrap();
            let picture = Picture::decode(&picture).unwrap();
            let size = expected.tensor(&format!("{family}.{at}.size")).unwrap();
            let sides = size.data().as_chunks::<4>().0.iter().map(|side| u32::from_le_bytes(*side) as usize);
            let parts = config.pictures_of(&picture).unwrap();
            let sizes: Vec<usize> = parts.iter().flat_map(|part| [part.width(), part.height()]).collect();
            assert_eq!(sizes, sides.collect::<Vec<_>>(), "{family}, picture {at}");
            let samples = expected.tensor(&format!("{family}.{at}.samples")).unwrap();
            let wanted = samples.data().iter();
            let made: Vec<u8> = parts.iter().flat_map(|part| part.rgb().unwrap().to_vec()).step_by(EVERY).collect();
            assert_eq!(wanted.len(), made.len(), "{family}, picture {at}");
            let sum: u64 = wanted.zip(made).map(|(wanted, made)| u64::from(wanted.abs_diff(made))).sum();
            let mean = sum as f64 / samples.data().len() as f64;
            println!("{family}, picture {at}: {sizes:?}, mean difference {mean:.4} of 255");
            assert!(mean <= TOLERANCE, "{family}, picture {at}: {mean}");
        }
    }
}
