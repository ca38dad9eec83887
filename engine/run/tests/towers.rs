//! Vision towers against transformers: from a Hugging Face folder, and from the two files into
//! which a folder is converted.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

#[path = "towers/device.rs"]
mod device;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use safetensors::SafeTensors;
use thermocline_cpu::{Cpu, CpuOptions};
use thermocline_formats::{
    format::{self, Checkpoint, Container, Metadata, Opened, ReadMode, Tensor, TokenizerSource, Value},
    quant::TensorType,
};
use thermocline_model::{LoadOptions, Model, PictureCell, PictureGrid, Tower, convert};
use thermocline_pictures::Picture;
use thermocline_run::runtime::{
    CallInputs, Forward, KvType, Outputs, PictureEmbeddings, PlacedPicture, TowerProcessor,
};

/// Folders of `fixtures/towers`.
const TOWERS: [&str; 12] = [
    "qwen3-vl",
    "qwen3_5",
    "qwen2_5-vl",
    "gemma3",
    "gemma4",
    "gemma4-unified",
    "pixtral",
    "pixtral-llava",
    "minicpm-v2_6",
    "minicpm-v4",
    "minicpm-v4_5",
    "minicpm-v4_6",
];

/// Pictures of each folder: one whose sides need no resizing, and one that is resized.
const PICTURES: [&str; 2] = ["whole", "resized"];

fn fixtures(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(kind)
}

fn fixture(name: &str) -> PathBuf {
    fixtures("towers").join(name)
}

fn tower_of(name: &str) -> Tower {
    Tower::open(&fixture(name), ReadMode::Map).unwrap()
}

fn picture(name: &str, picture: &str) -> Picture {
    Picture::decode(&fs::read(fixture(name).join(format!("{picture}.png"))).unwrap()).unwrap()
}

fn embed(tower: Tower, picture: &Picture, threads: usize) -> PictureEmbeddings {
    let options = CpuOptions { threads: Some(threads), ..CpuOptions::default() };
    TowerProcessor::new(Arc::new(tower), Cpu::new(&options).unwrap()).embed(picture, &mut ()).unwrap()
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

/// The largest difference of a logit of the prompt with both pictures, relative to the largest
/// logit if it is above 1.
fn logits_difference(name: &str, model: Model, tower: &Tower) -> f32 {
    let bytes = fs::read(fixture(name).join("expected.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let words = |what: &str| file.tensor(what).unwrap().data().as_chunks::<4>().0.to_vec();
    let tokens: Vec<u32> = words("tokens").into_iter().map(u32::from_le_bytes).collect();
    let wanted: Vec<f32> = words("logits").into_iter().map(f32::from_le_bytes).collect();
    let made = PICTURES.map(|of| embed(tower.clone(), &picture(name, of), 2));
    let token = model.checkpoint.metadata.usize("thermocline.tokenizer.picture_token_id").unwrap().unwrap() as u32;
    let (pictures, d_model) = (placed(&tokens, token, &made), model.config.d_model);
    let deepstack: Vec<Vec<Vec<f32>>> = pictures.iter().map(|of| of.deepstack(d_model)).collect();
    let pictures: Vec<PlacedPicture<'_>> = pictures
        .iter()
        .zip(&deepstack)
        .map(|(PlacedRun { start, grid, first, of }, deepstack)| {
            let embeddings = &of.embeddings[first * d_model..][..grid.tokens() * d_model];
            let text_positions = tower.has_text_positions();
            PlacedPicture { start: *start, grid: *grid, embeddings, deepstack, text_positions }
        })
        .collect();
    let mut forward = Forward::new(Arc::new(model), Cpu::new(&CpuOptions::default()).unwrap());
    let mut kv = forward.kv_cache(tokens.len(), KvType::F32).unwrap();
    let inputs = CallInputs::with_pictures(&tokens, &pictures);
    let logits = forward.run(inputs, &mut kv, Outputs::All, &mut ()).unwrap();
    assert_eq!(logits.len(), wanted.len(), "{name}");
    let largest = wanted.iter().fold(1.0f32, |most, wanted| most.max(wanted.abs()));
    wanted.iter().zip(logits).fold(0.0f32, |most, (wanted, got)| most.max((wanted - got).abs())) / largest
}

/// A run of the image token: a picture, or a part of one.
struct PlacedRun<'e> {
    start: usize,
    grid: PictureGrid,
    /// The first of its tokens in the picture.
    first: usize,
    of: &'e PictureEmbeddings,
}

impl PlacedRun<'_> {
    fn deepstack(&self, d_model: usize) -> Vec<Vec<f32>> {
        let part = self.first * d_model..(self.first + self.grid.tokens()) * d_model;
        self.of.deepstack.iter().map(|layer| layer[part.clone()].to_vec()).collect()
    }
}

/// Places pictures at the runs of the image token `token`, in order.
fn placed<'e>(tokens: &[u32], token: u32, pictures: &'e [PictureEmbeddings]) -> Vec<PlacedRun<'e>> {
    let (mut pictures, mut runs, mut first, mut start) = (pictures.iter().peekable(), Vec::new(), 0, 0);
    while start < tokens.len() {
        let run = tokens[start..].iter().take_while(|id| **id == token).count();
        let Some(of) = pictures.peek().copied().filter(|_| run > 0) else {
            start += 1;
            continue;
        };
        let all = of.grid.tokens();
        let grid = if run == all { of.grid } else { PictureGrid { rows: 1, cols: run } };
        runs.push(PlacedRun { start, grid, first, of });
        (start, first) = (start + run, first + run);
        if first == all {
            first = 0;
            pictures.next();
        }
    }
    assert!(pictures.next().is_none() && first == 0, "the prompt has a run for every part");
    runs
}

#[test]
fn prompts_with_two_pictures_have_the_logits_of_transformers() {
    let scratch = tempfile::tempdir().unwrap();
    for name in TOWERS {
        let folder = fixture(name);
        let (model, tower) =
            (Model::open(&folder, &LoadOptions::default()).unwrap(), Tower::open(&folder, ReadMode::Map));
        let off = logits_difference(name, model, &tower.unwrap());
        let target = scratch.path().join(format!("{name}.gguf"));
        let report = convert(&folder, &target, TensorType::F32, &mut |_, _| {}).unwrap();
        let model = Model::open(&target, &LoadOptions::default()).unwrap();
        let tower = Tower::open(&report.tower.unwrap().path, ReadMode::Map).unwrap();
        let converted = logits_difference(name, model, &tower);
        println!("{name}: folder {off}, converted {converted}");
        assert!(off < 0.05 && converted < 0.05, "{name}: folder {off}, converted {converted}");
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
            // llama.cpp refuses the tower without this number.
            let stacked = model.checkpoint.metadata.usize("qwen3vl.n_deepstack_layers").unwrap();
            assert_eq!(stacked, (name == "qwen3-vl").then_some(2), "{name}");
            assert!(Model::open(&path, &LoadOptions::default()).is_err());
            let off = difference(name, "whole", &embed(tower, &picture(name, "whole"), 2));
            println!("{name} {ty}: {off}");
            assert!(off < most, "{name} {ty}: {off}");
            fs::remove_file(&path).unwrap();
        }
        let beside = scratch.path().join("mmproj-a.gguf");
        fs::write(&beside, b"").unwrap();
        assert_eq!(Tower::beside(&scratch.path().join("model.gguf")), [beside]);
        assert_eq!(Tower::beside(&fixture(name)), [fixture(name)]);
    }
    // Files whose names begin like the name of the model come first.
    let files = ["mmproj-model-b.gguf", "model-mmproj.gguf", "mmproj-a.gguf"].map(|file| scratch.path().join(file));
    files.iter().for_each(|file| fs::write(file, b"").unwrap());
    assert_eq!(Tower::beside(&scratch.path().join("model-b.gguf")), files);
}

/// `config` with `size` in place of every number under `key`.
fn with_size(config: &str, key: &str, size: &str) -> String {
    let mark = format!("\"{key}\": ");
    let mut parts = config.split(&mark);
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |text, part| text + &mark + size + part.trim_start_matches(|digit: char| digit.is_ascii_digit()))
}

/// A folder with impossible sizes is refused, or gives a tower.
#[test]
fn impossible_sizes_of_folders_do_not_panic() {
    let scratch = tempfile::tempdir().unwrap();
    for name in TOWERS {
        for file in ["model.safetensors", "tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"] {
            fs::copy(fixture(name).join(file), scratch.path().join(file)).unwrap();
        }
        let config = fs::read_to_string(fixture(name).join("config.json")).unwrap();
        let mut refused = 0;
        for key in ["num_attention_heads", "num_heads", "patch_size", "pooling_kernel_size", "spatial_merge_size"] {
            for size in ["0", "1099511627776"] {
                fs::write(scratch.path().join("config.json"), with_size(&config, key, size)).unwrap();
                refused += usize::from(Tower::open(scratch.path(), ReadMode::Map).is_err());
            }
        }
        assert!(refused > 0, "{name}");
    }
}

/// In its finer mode, MiniCPM-V 4.6 joins no patches between two layers.
#[test]
fn minicpm_has_four_times_the_tokens_in_its_finer_mode() {
    let scratch = tempfile::tempdir().unwrap();
    for file in ["model.safetensors", "tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"] {
        fs::copy(fixture("minicpm-v4_6").join(file), scratch.path().join(file)).unwrap();
    }
    let config = fs::read_to_string(fixture("minicpm-v4_6").join("config.json")).unwrap();
    let [usual, finer] = ["16x", "4x"].map(|mode| format!("\"downsample_mode\": \"{mode}\""));
    assert!(config.contains(&usual));
    fs::write(scratch.path().join("config.json"), config.replace(&usual, &finer)).unwrap();
    let made = embed(Tower::open(scratch.path(), ReadMode::Map).unwrap(), &picture("minicpm-v4_6", "whole"), 2);
    assert!(difference("minicpm-v4_6", "fine", &made) < 2e-4);
}

/// MiniCPM-o has the towers of MiniCPM-V under other numbers.
#[test]
fn towers_of_minicpm_o_are_those_of_minicpm_v() {
    for (name, version) in [("minicpm-v2_6", 4), ("minicpm-v4_5", 100_045)] {
        let scratch = tempfile::tempdir().unwrap();
        for file in ["model.safetensors", "tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"] {
            fs::copy(fixture(name).join(file), scratch.path().join(file)).unwrap();
        }
        let config = fs::read_to_string(fixture(name).join("config.json")).unwrap();
        assert!(config.contains("\"minicpmv\""), "{name}");
        fs::write(scratch.path().join("config.json"), config.replace("\"minicpmv\"", "\"minicpmo\"")).unwrap();
        let tower = Tower::open(scratch.path(), ReadMode::Map).unwrap();
        assert_eq!(tower.checkpoint.metadata.usize("clip.minicpmv_version").unwrap(), Some(version), "{name}");
        let model = Model::open(scratch.path(), &LoadOptions::default()).unwrap();
        tower.check_belongs(&model).unwrap();
        assert!(difference(name, "whole", &embed(tower, &picture(name, "whole"), 2)) < 2e-4, "{name}");
    }
}

/// Files of llama.cpp's first converter exchange the names of FFN matrices, do not name the width
/// of the text model, and have no number of slices.
#[test]
fn first_files_of_minicpm_are_read() {
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("model.gguf");
    let path = convert(&fixture("minicpm-v4_5"), &target, TensorType::F32, &mut |_, _| {}).unwrap().tower.unwrap().path;
    let Opened::Checkpoint(file) = format::open(&path, ReadMode::Map).unwrap() else { panic!("a GGUF file") };
    let mut metadata = Metadata::new(&path);
    for (key, value) in file.metadata.iter().filter(|(key, _)| *key != "clip.vision.max_slice_nums") {
        metadata.set(key, value.clone());
    }
    metadata.set("clip.vision.projection_dim", Value::U32(0));
    let renamed = file.tensors().iter().map(|tensor| {
        let [up, down] = [("ffn_up", "ffn_down"), ("ffn_down", "ffn_up")]
            .map(|(from, to)| tensor.name.contains(from).then(|| tensor.name.replace(from, to)));
        Tensor { name: up.or(down).unwrap_or_else(|| tensor.name.clone()), ..tensor.clone() }
    });
    let tensors: Vec<Tensor> = renamed.collect();
    let tower = |metadata: Metadata| {
        let checkpoint =
            Checkpoint::new(path.clone(), Container::Gguf(3), metadata, TokenizerSource::Metadata, tensors.clone());
        Tower::from_checkpoint(checkpoint.unwrap())
    };
    let made = embed(tower(metadata.clone()).unwrap(), &picture("minicpm-v4_5", "whole"), 2);
    assert!(difference("minicpm-v4_5", "whole", &made) < 2e-4);
    assert_eq!(tower(metadata.clone()).unwrap().config.sizes.slices().map(|slices| slices.most), Some(9));
    // MiniCPM-V 2.5 marks slices in another way.
    metadata.set("clip.minicpmv_version", Value::I32(2));
    let error = tower(metadata).unwrap_err().to_string();
    assert!(error.contains("version of MiniCPM-V") && error.contains("clip.minicpmv_version = 2"), "{error}");
}

#[test]
fn folders_of_unknown_minicpm_models_are_refused_by_name() {
    let scratch = tempfile::tempdir().unwrap();
    for file in ["model.safetensors", "tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"] {
        fs::copy(fixture("minicpm-v4_6").join(file), scratch.path().join(file)).unwrap();
    }
    let config = fs::read_to_string(fixture("minicpm-v4_6").join("config.json")).unwrap();
    for (from, to, said) in [
        ("\"minicpmv4_6\"", "\"minicpmv4_7\"", "minicpmv4_7"),
        ("\"merger_times\": 1", "\"merger_times\": 2", "merger_times = 2"),
        ("\"downsample_mode\": \"16x\"", "\"downsample_mode\": \"2x\"", "downsample_mode = 2x"),
    ] {
        assert!(config.contains(from), "{from}");
        fs::write(scratch.path().join("config.json"), config.replace(from, to)).unwrap();
        let error = Tower::open(scratch.path(), ReadMode::Map).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn marks_follow_the_parts_of_sliced_pictures() {
    let tower = Tower::open(&fixture("minicpm-v2_6"), ReadMode::Map).unwrap();
    let after = |width: usize, height: usize| -> Vec<String> {
        let parts = tower.parts(width, height).unwrap();
        assert!(parts.iter().all(|part| part.grid == PictureGrid { rows: 1, cols: 5 }));
        assert_eq!(tower.grid(width, height).unwrap().tokens(), 5 * parts.len());
        parts.iter().map(|part| part.after.concat()).collect()
    };
    assert_eq!(after(80, 48), ["</image>"]);
    let (next, row, last) = ("</slice><slice>", "</slice>\n<slice>", "</slice>");
    assert_eq!(after(200, 150), ["</image><slice>", next, next, row, next, next, row, next, next, last]);
    let ends = tower.part_ends();
    assert!(tower.parts(200, 150).unwrap().iter().flat_map(|part| &part.after).all(|text| ends.contains(text)));
    // A part has five tokens and up to three marks. With room for 48 tokens, a picture has an
    // overview and at most five slices.
    for (room, count) in [(80, 10), (48, 5), (24, 3), (23, 1), (0, 1)] {
        let mut small = tower.clone();
        small.config.sizes.limit(room);
        let parts = small.parts(200, 150).unwrap();
        assert_eq!(parts.len(), count, "room for {room} tokens");
        let tokens: usize = parts.iter().map(|part| part.grid.tokens() + part.after.len()).sum();
        assert!(tokens <= room || count == 1, "{tokens} of {room} tokens");
    }
}

/// Patches see cells of their own, and queries see whole parts. Slices lie side by side.
#[test]
fn tokens_see_cells_of_the_overview_and_of_slices() {
    let cells = |name: &str, [width, height]: [usize; 2]| {
        let tower = tower_of(name);
        let cells = tower.cells(width, height).unwrap();
        assert_eq!(cells.len(), tower.grid(width, height).unwrap().tokens(), "{name}");
        cells
    };
    let all_of = |rows: usize, cols: usize, each: usize| -> Vec<PictureCell> {
        let grid = PictureGrid { rows, cols };
        (0..rows * cols * each).map(|at| PictureCell { grid, index: at / each }).collect()
    };
    let PictureGrid { rows, cols } = embed(tower_of("qwen3-vl"), &picture("qwen3-vl", "whole"), 2).grid;
    let of_whole = picture("qwen3-vl", "whole");
    assert_eq!(cells("qwen3-vl", [of_whole.width(), of_whole.height()]), all_of(rows, cols, 1));
    assert_eq!(cells("minicpm-v2_6", [80, 48]), all_of(1, 1, 5));
    assert_eq!(cells("minicpm-v2_6", [200, 150]), [all_of(1, 1, 5), all_of(3, 3, 5)].concat());
    let sizes = [300, 150];
    let sliced = cells("minicpm-v4_6", sizes);
    let tower = tower_of("minicpm-v4_6");
    let parts = tower.parts(sizes[0], sizes[1]).unwrap();
    let overview = parts[0].grid;
    assert_eq!(sliced[..overview.tokens()], all_of(overview.rows, overview.cols, 1));
    let slices = tower.config.sizes.slices().unwrap().grid(sizes[0], sizes[1]).unwrap();
    let (of_slices, part) = (&sliced[overview.tokens()..], parts[1].grid);
    let grid = PictureGrid { rows: slices.rows * part.rows, cols: slices.cols * part.cols };
    assert!(of_slices.iter().all(|cell| cell.grid == grid));
    let mut seen: Vec<usize> = of_slices.iter().map(|cell| cell.index).collect();
    assert_eq!(seen[part.tokens() - 1], (part.rows - 1) * grid.cols + part.cols - 1, "the end of the first slice");
    seen.sort_unstable();
    assert_eq!(seen, (0..grid.tokens()).collect::<Vec<_>>(), "each cell once");
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
