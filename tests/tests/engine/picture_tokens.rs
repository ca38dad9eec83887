//! Pictures among the tokens of a text. The results are those of the reference for every division
//! into chunks, on the CPU, on the GPU, and on both.
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    ops::{ControlFlow, Range},
    path::{Path, PathBuf},
    sync::Arc,
};

use thermocline_engine::{
    Error,
    cpu::{Isa, ops::KvRows},
    device::GpuLoad,
    hybrid::HybridProcessor,
    model::{LoadOptions, Model, PictureGrid, convert},
    placement::Placement,
    quant::TensorType,
    runtime::{CallInputs, Forward, KvCache, KvType, Outputs, PlacedPicture},
};
use thermocline_tests::{
    golden::{Expected, Setup, forward, max_diff},
    gpu::{FULL, idle_cpu, shared},
};

/// Models of `fixtures/models`. The configuration of those that end in [`WHOLE`] says that tokens
/// of a picture read all of it.
const MODELS: [&str; 6] = ["qwen2_5-vl", "qwen3-vl", "qwen3_5", "gemma3", "gemma4", "gemma4-whole"];
const WHOLE: &str = "-whole";
/// Largest difference of a logit from the reference.
const TOLERANCE: f32 = 1e-3;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path)
}

#[derive(Clone)]
struct RandomPicture {
    start: usize,
    grid: PictureGrid,
    embeddings: Vec<f32>,
    deepstack: Vec<Vec<f32>>,
}

impl RandomPicture {
    fn placed(&self) -> PlacedPicture<'_> {
        let RandomPicture { start, grid, embeddings, deepstack } = self;
        PlacedPicture { start: *start, grid: *grid, embeddings, deepstack, text_positions: false }
    }
}

/// A text with pictures, and its logits, `[tokens, n_vocab]`.
struct PicturedText {
    name: &'static str,
    model: Arc<Model>,
    ids: Vec<u32>,
    pictures: Vec<RandomPicture>,
    logits: Vec<f32>,
    /// The model's folder, if it is a changed copy.
    _scratch: Option<tempfile::TempDir>,
}

impl PicturedText {
    fn read(name: &'static str) -> Self {
        let folder = here("models").join(name.trim_end_matches(WHOLE));
        let scratch = name.ends_with(WHOLE).then(|| tempfile::tempdir().unwrap());
        let path = scratch.as_ref().map_or(folder.clone(), |scratch| scratch.path().to_owned());
        if scratch.is_some() {
            fs::read_dir(&folder).unwrap().for_each(|file| {
                let file = file.unwrap();
                fs::copy(file.path(), path.join(file.file_name())).unwrap();
            });
            let config = fs::read_to_string(folder.join("config.json")).unwrap();
            let [null, vision] = ["null", "\"vision\""].map(|of| format!("\"use_bidirectional_attention\": {of}"));
            assert!(config.contains(&null));
            fs::write(path.join("config.json"), config.replace(&null, &vision)).unwrap();
        }
        let model = Arc::new(Model::open(&path, &LoadOptions::default()).unwrap());
        PicturedText { _scratch: scratch, ..PicturedText::of(name, model) }
    }

    /// The text of `name` for its model in another form.
    fn of(name: &'static str, model: Arc<Model>) -> Self {
        let expected = Expected::read(&here("picture_tokens").join(format!("{name}.safetensors")));
        let (starts, grids, d) = (expected.ids("starts"), expected.ids("grids"), model.config.d_model);
        let embeddings = expected.f32("embeddings");
        let all: usize = embeddings.len() / d;
        let deepstack = if name == "qwen3-vl" { expected.f32("deepstack") } else { Vec::new() };
        let mut first = 0;
        let pictures = starts.iter().zip(grids.chunks_exact(2)).map(|(start, grid)| {
            let grid = PictureGrid { rows: grid[0] as usize, cols: grid[1] as usize };
            let of = first * d..(first + grid.tokens()) * d;
            first += grid.tokens();
            RandomPicture {
                start: *start as usize,
                grid,
                embeddings: embeddings[of.clone()].to_vec(),
                deepstack: deepstack.chunks_exact(all * d).map(|layer| layer[of.clone()].to_vec()).collect(),
            }
        });
        let pictures = pictures.collect();
        assert_eq!(first, all, "{name}");
        PicturedText {
            name,
            ids: expected.ids("input_ids"),
            logits: expected.f32("logits"),
            model,
            pictures,
            _scratch: None,
        }
    }

    fn pictures(&self) -> Vec<PlacedPicture<'_>> {
        self.pictures.iter().map(RandomPicture::placed).collect()
    }

    /// The places of a picture.
    fn places(&self, picture: usize) -> Range<usize> {
        let RandomPicture { start, grid, .. } = self.pictures[picture];
        start..start + grid.tokens()
    }

    fn cache(&self, forward: &mut Forward) -> KvCache {
        forward.kv_cache(self.ids.len() + 8, KvType::F32).unwrap()
    }

    /// Computes the tokens at `places`, and compares their logits with the reference.
    fn check(&self, forward: &mut Forward, kv: &mut KvCache, places: Range<usize>, what: &str) {
        assert_eq!(kv.len(), places.start, "{} {what}", self.name);
        let (pictures, n_vocab) = (self.pictures(), self.model.config.n_vocab);
        let inputs = CallInputs::with_pictures(&self.ids[places.clone()], &pictures);
        let logits = forward.run(inputs, kv, Outputs::All, &mut ()).unwrap_or_else(|error| panic!("{what}: {error}"));
        let wanted = &self.logits[places.start * n_vocab..places.end * n_vocab];
        let error = max_diff(logits, wanted);
        assert!(error <= TOLERANCE, "{} {what}: logits of {places:?} differ by {error}", self.name);
    }

    /// Computes a prompt, and then the last tokens one by one, without naming pictures.
    fn check_all(&self, forward: &mut Forward, what: &str) {
        let mut kv = self.cache(forward);
        let prompt = self.ids.len() - 4;
        self.check(forward, &mut kv, 0..prompt, what);
        let n_vocab = self.model.config.n_vocab;
        for (id, wanted) in self.ids[prompt..].iter().zip(self.logits[prompt * n_vocab..].chunks_exact(n_vocab)) {
            let logits = forward.run(&[*id], &mut kv, Outputs::Last, &mut ()).unwrap();
            let error = max_diff(logits, wanted);
            assert!(error <= TOLERANCE, "{} {what}: a token alone differs by {error}", self.name);
        }
    }
}

#[test]
fn pictures_are_those_of_the_reference_in_chunks_of_any_size() {
    for name in MODELS {
        let text = PicturedText::read(name);
        for (chunk, isa) in [(512, None), (512, Some(Isa::Scalar)), (16, None), (7, None), (1, None)] {
            let mut forward = forward(&text.model, Setup { chunk, isa, ..Setup::default() });
            text.check_all(&mut forward, &format!("chunks of {chunk}"));
        }
    }
}

/// The text of `text` many times, longer than the rings of layers with windows. One chunk of all
/// tokens, without rings, gives its logits.
fn repeated(text: &PicturedText, times: usize) -> PicturedText {
    let len = text.ids.len();
    let of_time =
        |time: usize| text.pictures.iter().map(move |of| RandomPicture { start: of.start + time * len, ..of.clone() });
    let mut long = PicturedText {
        ids: text.ids.repeat(times),
        pictures: (0..times).flat_map(of_time).collect(),
        logits: Vec::new(),
        model: Arc::clone(&text.model),
        name: text.name,
        _scratch: None,
    };
    let mut forward = forward(&text.model, Setup { chunk: 2 * len * times, ..Setup::default() });
    let tokens = long.ids.len();
    let mut kv = KvCache::for_passes(&text.model.config, tokens + 8, KvType::F32, tokens).unwrap();
    assert_eq!(kv.longest_pass(), usize::MAX);
    let pictures = long.pictures();
    let inputs = CallInputs::with_pictures(&long.ids, &pictures);
    let logits = forward.run(inputs, &mut kv, Outputs::All, &mut ()).unwrap().to_vec();
    drop(pictures);
    long.logits = logits;
    long
}

#[test]
fn whole_pictures_are_computed_in_the_rings_of_windows() {
    for name in ["gemma3", "gemma4-whole"] {
        let text = PicturedText::read(name);
        let long = repeated(&text, 24);
        let (end, last) = (long.ids.len(), long.places(46));
        for chunk in [512, 100, 13] {
            let mut forward = forward(&text.model, Setup { chunk, ..Setup::default() });
            let mut kv = long.cache(&mut forward);
            assert!(kv.longest_pass() < long.ids.len());
            long.check(&mut forward, &mut kv, 0..end, &format!("chunks of {chunk}"));
            for back in [last.start + 3, last.start] {
                kv.truncate(back);
                let held = kv.len();
                assert_eq!(held, last.start, "{name}");
                long.check(&mut forward, &mut kv, held..end, "after going back");
            }
        }
    }
}

/// Without their positions, additions or directions, the pictures would have other logits.
#[test]
fn pictures_differ_from_other_embeddings_in_more_than_their_inputs() {
    for name in ["qwen2_5-vl", "qwen3-vl", "gemma3"] {
        let text = PicturedText::read(name);
        let mut pictures = text.pictures();
        for picture in &mut pictures {
            picture.deepstack = &[];
            // Single tokens have no other tokens of a picture, and positions like text.
            picture.grid = PictureGrid { rows: 1, cols: 1 };
        }
        let d = text.model.config.d_model;
        let singles: Vec<PlacedPicture<'_>> = pictures
            .iter()
            .flat_map(|of| {
                let singles = of.embeddings.chunks_exact(d).enumerate();
                singles.map(move |(i, embeddings)| PlacedPicture { start: of.start + i, embeddings, ..*of })
            })
            .collect();
        let mut forward = forward(&text.model, Setup::default());
        let mut kv = text.cache(&mut forward);
        let inputs = CallInputs::with_pictures(&text.ids, &singles);
        let logits = forward.run(inputs, &mut kv, Outputs::All, &mut ()).unwrap();
        assert!(max_diff(logits, &text.logits) > 0.05, "{name}");
    }
}

#[test]
fn a_conversation_goes_back_into_pictures_and_branches_off() {
    for name in MODELS {
        let text = PicturedText::read(name);
        let mut forward = forward(&text.model, Setup::default());
        let (end, second) = (text.ids.len(), text.places(1));
        let mut kv = text.cache(&mut forward);
        text.check(&mut forward, &mut kv, 0..end, "from the beginning");
        for back in [end - 2, second.end, second.start + 3, second.start, text.places(0).end - 1, 2] {
            kv.truncate(back);
            let held = kv.len();
            assert!(held <= back);
            let whole = text.model.config.attentions().any(|of| of.whole_pictures);
            assert!(!whole || (0..2).all(|n| !text.places(n).contains(&held) || text.places(n).start == held));
            text.check(&mut forward, &mut kv, held..end, &format!("after going back to {back}"));
            let mut branch = text.cache(&mut forward);
            let copied = forward.copy_prefix(&kv, &mut branch, back).unwrap();
            assert!(copied <= back && branch.len() == copied);
            text.check(&mut forward, &mut branch, copied..end, &format!("after a branch at {back}"));
        }
        if kv.is_recurrent() {
            continue;
        }
        // Other text after a part of a picture.
        kv.truncate(second.start + 3);
        forward.run(&[3, 4, 5], &mut kv, Outputs::Last, &mut ()).unwrap();
        kv.truncate(second.start);
        let held = kv.len();
        text.check(&mut forward, &mut kv, held..end, "after other text");
    }
}

#[test]
fn conversations_with_and_without_pictures_share_passes() {
    for name in ["qwen2_5-vl", "qwen3-vl", "gemma3"] {
        let text = PicturedText::read(name);
        let mut forward = forward(&text.model, Setup::default());
        let n_vocab = text.model.config.n_vocab;
        let prompt = text.ids.len() - 3;
        let (mut with, mut without) = (text.cache(&mut forward), text.cache(&mut forward));
        text.check(&mut forward, &mut with, 0..prompt, "prompt");
        forward.run(&text.ids[..4], &mut without, Outputs::None, &mut ()).unwrap();
        let batch = &mut [(&mut without, &text.ids[4..5]), (&mut with, &text.ids[prompt..])];
        let logits = forward.run_batch(batch, &mut ()).unwrap();
        let wanted = [&text.logits[4 * n_vocab..5 * n_vocab], &text.logits[prompt * n_vocab..]].concat();
        assert!(max_diff(logits, &wanted) <= TOLERANCE, "{name}");
    }
}

fn rows(rows: &KvRows, dim: usize) -> Vec<f32> {
    let mut all = vec![0.0; rows.len() * dim];
    all.chunks_mut(dim).enumerate().for_each(|(i, row)| rows.get(i, row));
    all
}

/// The first layer's keys depend only on a token and its position. After a shift they equal those
/// of the remaining tokens, computed anew.
#[test]
fn a_shift_forgets_whole_pictures_and_moves_later_positions() {
    for name in ["qwen2_5-vl", "qwen3-vl"] {
        let text = PicturedText::read(name);
        let (first, second) = (text.places(0), text.places(1));
        let dim = text.model.config.attentions().next().unwrap().heads.head_dim;
        let mut forward = forward(&text.model, Setup::default());
        let mut kv = text.cache(&mut forward);
        text.check(&mut forward, &mut kv, 0..text.ids.len(), "all");
        for (keep, discard) in [(2, first.start), (first.start + 1, 100), (second.start - 1, 3)] {
            let discard = discard.min(second.end - 1 - keep);
            assert!(matches!(kv.shift(forward.isa(), keep, discard), Err(Error::Unsupported { .. })), "{keep}");
        }
        let discard = first.end + 1 - 2;
        kv.shift(forward.isa(), 2, discard).unwrap();
        let left = [&text.ids[..2], &text.ids[2 + discard..]].concat();
        let mut pictures = text.pictures();
        pictures.remove(0);
        pictures[0].start -= discard;
        let mut fresh = text.cache(&mut forward);
        let inputs = CallInputs::with_pictures(&left, &pictures);
        forward.run(inputs, &mut fresh, Outputs::None, &mut ()).unwrap();
        assert_eq!((kv.len(), fresh.len()), (left.len(), left.len()));
        for place in 0..left.len() + 3 {
            assert_eq!(kv.position(place), fresh.position(place), "{name}: place {place}");
        }
        let (kv, fresh) = (kv.layer_mut(0).unwrap(), fresh.layer_mut(0).unwrap());
        for (a, b) in kv.keys.iter().zip(&fresh.keys) {
            assert!(max_diff(&rows(a, dim), &rows(b, dim)) < 2e-4, "{name}");
        }
    }
}

#[test]
fn pictures_that_do_not_fit_are_refused() {
    let text = PicturedText::read("gemma3");
    let mut forward = forward(&text.model, Setup::default());
    let mut kv = text.cache(&mut forward);
    let (pictures, first) = (text.pictures(), text.places(0));
    let mut refused = |tokens: &[u32], pictures: &[PlacedPicture<'_>], what: &str| {
        let inputs = CallInputs::with_pictures(tokens, pictures);
        let error = forward.run(inputs, &mut kv, Outputs::Last, &mut ()).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
        assert_eq!(kv.len(), 0);
    };
    // A part of a picture whose tokens read all of it.
    refused(&text.ids[..first.end - 1], &pictures, "all 12 tokens of a picture");
    let short = PlacedPicture { embeddings: &pictures[0].embeddings[1..], ..pictures[0] };
    refused(&text.ids, &[short], "12 embeddings of 64 numbers");
    refused(&text.ids, &[pictures[1], pictures[0]], "from token");
    let empty = PlacedPicture { grid: PictureGrid { rows: 0, cols: 4 }, embeddings: &[], ..pictures[0] };
    refused(&text.ids, &[empty], "0 rows of 4 tokens");
    let deep = vec![pictures[0].embeddings.to_vec(); 4];
    refused(&text.ids, &[PlacedPicture { deepstack: &deep, ..pictures[0] }], "after at most 3 layers");
}

#[test]
fn converted_models_keep_the_axes_and_directions_of_pictures() {
    let scratch = tempfile::tempdir().unwrap();
    for name in MODELS {
        let text = PicturedText::read(name);
        let target = scratch.path().join(format!("{name}.gguf"));
        if name.ends_with(WHOLE) {
            continue;
        }
        convert(&here("models").join(name), &target, TensorType::F32, &mut |_, _| ()).unwrap();
        let model = Arc::new(Model::open(&target, &LoadOptions::default()).unwrap());
        let whole = |model: &Model| model.config.attentions().map(|of| of.whole_pictures).collect::<Vec<_>>();
        assert_eq!(whole(&model), whole(&text.model), "{name}");
        let converted = PicturedText::of(name, model);
        converted.check_all(&mut forward(&converted.model, Setup::default()), "converted");
    }
}

#[test]
fn pictures_are_those_of_the_reference_on_a_gpu() {
    for name in MODELS {
        let text = PicturedText::read(name);
        let n_layer = text.model.config.n_layer();
        let all = |layer: usize| (0..text.model.weights.layers[layer].ffn.units() as u32).collect::<Vec<u32>>();
        let placements = [(0, true, n_layer), (0, false, 1), (1, true, 0), (n_layer - 1, false, n_layer)];
        for ((first_resident, head, hot), chunk) in placements.into_iter().zip([64, 24, 32, 64]) {
            let of_layer = |layer| if layer < first_resident || layer >= hot { Vec::new() } else { all(layer) };
            let placement = Placement { first_resident, hot: (0..n_layer).map(of_layer).collect(), head };
            let load = GpuLoad { chunk, ..GpuLoad::default() };
            let mut go_on = |_, _| ControlFlow::Continue(());
            let gpu = shared(FULL);
            let processor = HybridProcessor::load(gpu, idle_cpu(), &text.model, &placement, &load, &mut go_on).unwrap();
            let mut forward = Forward::on(Arc::clone(&text.model), Box::new(processor));
            forward.set_chunk(chunk);
            text.check_all(&mut forward, &format!("from layer {first_resident}, chunks of {chunk}"));
        }
    }
}
