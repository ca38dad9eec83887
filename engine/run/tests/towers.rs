//! Vision towers against transformers: from a Hugging Face folder, and from the two files into
//! which a folder is converted.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use safetensors::SafeTensors;
use thermocline_cpu::{Cpu, CpuOptions};
use thermocline_formats::{format::ReadMode, quant::TensorType};
use thermocline_model::{LoadOptions, Model, PictureGrid, Tower, convert};
use thermocline_pictures::Picture;
use thermocline_run::runtime::{PictureEmbeddings, TowerProcessor};

/// Folders of `fixtures/towers`.
const TOWERS: [&str; 5] = ["qwen3-vl", "qwen3_5", "qwen2_5-vl", "gemma3", "gemma4"];

/// Pictures of each folder: one whose sides need no resizing, and one that is resized.
const PICTURES: [&str; 2] = ["whole", "resized"];

fn fixtures(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(kind)
}

fn fixture(name: &str) -> PathBuf {
    fixtures("towers").join(name)
}

fn picture(name: &str, picture: &str) -> Picture {
    Picture::decode(&fs::read(fixture(name).join(format!("{picture}.png"))).unwrap()).unwrap()
}

fn embed(tower: Tower, picture: &Picture, threads: usize) -> PictureEmbeddings {
    let options = CpuOptions { threads: Some(threads), ..CpuOptions::default() };
    TowerProcessor::new(Arc::new(tower), Cpu::new(&options).unwrap()).embed(picture).unwrap()
}

/// Largest difference of `made` from what transformers made of the picture, relative to the largest
/// number if it is above 1.
fn difference(name: &str, picture: &str, made: &PictureEmbeddings) -> f32 {
    let bytes = fs::read(fixture(name).join("expected.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let words = |what: &str| file.tensor(&format!("{picture}.{what}")).map(|it| it.data().as_chunks::<4>().0.to_vec());
    let [rows, cols] = words("grid").unwrap().into_iter().map(u32::from_le_bytes).collect::<Vec<_>>()[..] else {
        panic!("a grid has rows and columns")
    };
    assert_eq!(made.grid, PictureGrid { rows: rows as usize, cols: cols as usize });
    let off = |wanted: &[[u8; 4]], got: &[f32]| {
        assert_eq!(wanted.len(), got.len());
        let wanted = wanted.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let largest = wanted.clone().fold(1.0f32, |most, wanted| most.max(wanted.abs()));
        wanted.zip(got).fold(0.0f32, |most, (wanted, got)| most.max((wanted - got).abs())) / largest
    };
    let stacked = (0..).map_while(|at| words(&format!("deepstack.{at}")).ok()).collect::<Vec<_>>();
    assert_eq!(stacked.len(), made.deepstack.len(), "{name}");
    let stacked = stacked.iter().zip(&made.deepstack).map(|(wanted, got)| off(wanted, got));
    stacked.fold(off(&words("embeddings").unwrap(), &made.embeddings), f32::max)
}

#[test]
fn pictures_have_the_embeddings_of_transformers() {
    for name in TOWERS {
        for of in PICTURES {
            let tower = Tower::open(&fixture(name), ReadMode::Map).unwrap();
            let made = embed(tower, &picture(name, of), 2);
            let off = difference(name, of, &made);
            println!("{name} {of}: {off}");
            // A resized picture may differ by one step of a sample.
            assert!(off < if of == "whole" { 2e-4 } else { 0.05 }, "{name} {of}: {off}");
        }
    }
}

#[test]
fn pictures_have_the_same_embeddings_for_any_number_of_workers() {
    let results = [1, 3].map(|threads| {
        let tower = Tower::open(&fixture("qwen3-vl"), ReadMode::Map).unwrap();
        embed(tower, &picture("qwen3-vl", "resized"), threads)
    });
    assert_eq!(results[0], results[1]);
}

#[test]
fn converted_towers_lie_beside_their_models_and_belong_to_them() {
    let scratch = tempfile::tempdir().unwrap();
    for name in TOWERS {
        for (ty, most) in [(TensorType::F32, 2e-4), (TensorType::F16, 0.02), (TensorType::Q8_0, 0.15)] {
            let target = scratch.path().join(format!("{name}-{ty}.gguf"));
            let report = convert(&fixture(name), &target, ty, &mut |_, _| {}).unwrap();
            let path = report.tower.unwrap().path;
            let model = Model::open(&target, &LoadOptions::default()).unwrap();
            let tower = Tower::open(&path, ReadMode::Map).unwrap();
            tower.check_belongs(&model).unwrap();
            assert!(Model::open(&path, &LoadOptions::default()).is_err());
            let off = difference(name, "whole", &embed(tower, &picture(name, "whole"), 2));
            println!("{name} {ty}: {off}");
            assert!(off < most, "{name} {ty}: {off}");
            fs::remove_file(&path).unwrap();
        }
        let beside = scratch.path().join("mmproj-a.gguf");
        fs::write(&beside, b"").unwrap();
        assert_eq!(Tower::beside(&scratch.path().join("model.gguf")), Some(beside));
        assert_eq!(Tower::beside(&fixture(name)), Some(fixture(name)));
    }
}

#[test]
fn towers_of_other_models_are_refused() {
    let tower = Tower::open(&fixture("qwen3-vl"), ReadMode::Map).unwrap();
    for (model, said) in [("qwen3", "projector `qwen3vl_merger`"), ("qwen3_5", "length 48")] {
        let folder = fixtures("models").join(model);
        let model = Model::open(&folder, &LoadOptions::default()).unwrap();
        let error = tower.check_belongs(&model).unwrap_err().to_string();
        assert!(error.starts_with("vision tower: expected ") && error.contains(said), "{error}");
    }
}
