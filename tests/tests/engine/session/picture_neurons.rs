//! Neurons at the tokens of pictures, and words after pictures.

use std::{ops::ControlFlow, sync::Arc};

use thermocline_engine::{
    eval::{TokenFiring, attribution, switching_off, token_firing},
    format::ReadMode,
    model::{Ffn, LoadOptions, Model, NeuronIndex, PictureGrid, Tower},
    pictures::Picture,
    runtime::{CallInputs, Forward, LayerFiring, Outputs, PictureEmbeddings, PlacedPicture, Probe, TowerProcessor},
    session::{ChatOptions, PromptInputs},
    sparsity::predictor::metrics::down_norms,
    telemetry::neurons::{NeuronBoard, NeuronRecorder, PicturePatch, Strength, TokenTrace},
};
use thermocline_tests::{
    golden::max_diff,
    pictured::{PICTURE, pictures, with_pictures},
};

use super::*;

/// An engine of a vision model, and its folder.
fn seeing(name: &str, chunk: usize) -> (Engine, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    with_pictures(name, folder.path());
    (Engine::open(folder.path(), EngineOptions { chunk, ..options() }).unwrap(), folder)
}

fn asked(pictures: &[&Picture]) -> Prompt {
    let pictures = pictures.iter().map(|it| (*it).clone()).collect();
    Prompt::Chat(vec![Message { pictures, ..Message::new(Role::User, "Look at these.") }])
}

/// The inputs of a prompt, with computed pictures.
fn inputs(engine: &Engine, prompt: Prompt) -> PromptInputs {
    let inputs = engine.prompt_inputs(prompt, &ChatOptions::default()).unwrap();
    inputs.embed(engine.cpu().unwrap(), &mut ()).unwrap();
    inputs
}

/// Records the neurons of a pass, and the values of all neurons.
struct Recording<'a> {
    recorder: &'a mut NeuronRecorder,
    /// For each layer `[tokens, n_ff]`.
    values: Vec<Vec<f32>>,
}

impl Probe for Recording<'_> {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn wants_strength(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        self.recorder.layer(firing);
        let Some(Strength::All(values)) = firing.strength else { panic!("no values of layer {}", firing.layer) };
        self.values.push(values.to_vec());
    }
}

/// One pass over `tokens`, in which runs of [`PICTURE`] are pictures, without the code of sessions.
fn full_pass(engine: &Engine, tokens: &[u32], pictures: &[&Picture]) -> (Vec<TokenTrace>, Vec<Vec<f32>>) {
    let path = &engine.model().checkpoint.path;
    let model = Arc::new(Model::open(path, &LoadOptions::default()).unwrap());
    let tower = Tower::open(path, ReadMode::Map).unwrap();
    let mut tower = TowerProcessor::new(tower.into(), engine.cpu().unwrap());
    let made: Vec<PictureEmbeddings> = pictures.iter().map(|it| tower.embed(it, &mut ()).unwrap()).collect();
    let (mut placed, mut at) = (Vec::new(), 0);
    for of in &made {
        let start = (at..tokens.len()).find(|at| tokens[*at] == PICTURE).unwrap();
        let PictureEmbeddings { grid, embeddings, deepstack } = of;
        placed.push(PlacedPicture { start, grid: *grid, embeddings, deepstack, text_positions: false });
        at = start + of.grid.tokens();
    }
    let (board, mut recorder) = NeuronBoard::new(model.neuron_shape());
    board.set_mass(engine.neurons().mass());
    recorder.begin(0, 0, tokens, false);
    let mut probe = Recording { recorder: &mut recorder, values: Vec::new() };
    let mut forward = Forward::new(Arc::clone(&model), engine.cpu().unwrap());
    let mut kv = forward.kv_cache(tokens.len(), KvType::F32).unwrap();
    forward.run(CallInputs::with_pictures(tokens, &placed), &mut kv, Outputs::None, &mut probe).unwrap();
    let values = probe.values;
    recorder.end();
    (board.tokens(0..u64::MAX), values)
}

/// Numbers of the neurons that fire at a token, layer by layer.
fn fired(engine: &Engine, token: &TokenTrace) -> Vec<usize> {
    let shape = engine.neurons().shape();
    let of_layer = |layer| token.fired(shape, layer).unwrap().iter().map(|word| word.count_ones() as usize).sum();
    (0..shape.layers()).map(of_layer).collect()
}

fn firing_of(engine: &Engine, inputs: &PromptInputs, places: &[usize]) -> Vec<TokenFiring> {
    let pictures = inputs.placed().unwrap();
    let context = CallInputs::with_pictures(inputs.tokens(), &pictures);
    let (cpu, wanted) = (engine.cpu().unwrap(), places[0]..places[places.len() - 1] + 1);
    let go = &mut || ControlFlow::Continue(());
    let all = token_firing(engine.model(), &cpu, context, wanted.clone(), engine.neurons(), 4, go).unwrap();
    assert_eq!(all.len(), wanted.len());
    places.iter().map(|place| all[place - wanted.start].clone()).collect()
}

#[test]
fn neurons_of_picture_tokens_are_those_of_a_full_pass() {
    for name in ["qwen2_5-vl", "qwen3-vl", "gemma3"] {
        let (engine, folder) = seeing(name, 512);
        let [a, b, _] = pictures(folder.path());
        let prompt = asked(&[&a, &b]);
        generate(&session_of(&engine, 360), Request { prompt: prompt.clone(), ..greedy(&[], 2) });
        let inputs = inputs(&engine, prompt);
        let (wanted, values) = full_pass(&engine, inputs.tokens(), &[&a, &b]);
        let told = engine.neurons().tokens(0..wanted.len() as u64);
        let shape = engine.neurons().shape();
        for (told, wanted) in told.iter().zip(&wanted) {
            assert_eq!((told.position, told.token, told.decoded), (wanted.position, wanted.token, false), "{name}");
            assert_eq!(told.patch.is_some(), told.token == PICTURE, "{name}");
            for layer in 0..shape.layers() {
                assert_eq!(told.fired(shape, layer), wanted.fired(shape, layer), "{name}: token {}", told.position);
            }
        }
        for picture in [&a, &b] {
            let PictureGrid { rows, cols } = engine.tower().unwrap().grid(picture.width(), picture.height()).unwrap();
            let places = inputs.patches(picture.hash().unwrap());
            assert_eq!(places.len(), rows * cols, "{name}");
            for ((index, place), of) in places.iter().enumerate().zip(firing_of(&engine, &inputs, &places)) {
                let patch = PicturePatch {
                    picture: picture.hash().unwrap().0,
                    token: index as u32,
                    tokens: places.len() as u32,
                    rows: rows as u32,
                    cols: cols as u32,
                    index: index as u32,
                };
                assert_eq!(told[*place].patch, Some(patch), "{name}");
                assert_eq!(of.fired, fired(&engine, &wanted[*place]).iter().sum::<usize>(), "{name}");
                check_shares(&engine, &of, *place, &values);
            }
        }
    }
}

/// The listed neurons have the largest parts of their layers' outputs at the token at `place`.
/// `values` are those of a full pass.
fn check_shares(engine: &Engine, of: &TokenFiring, place: usize, values: &[Vec<f32>]) {
    let mut all = Vec::new();
    for (layer, values) in values.iter().enumerate() {
        let Ffn::Dense(ffn) = &engine.model().weights.layers[layer].ffn else { panic!("no dense FFN") };
        let norms = down_norms(ffn);
        let row = &values[place * norms.len()..][..norms.len()];
        let lengths: Vec<f32> = row.iter().zip(&norms).map(|(value, norm)| value.abs() * norm).collect();
        let sum: f32 = lengths.iter().sum();
        all.extend(lengths.iter().enumerate().map(|(neuron, length)| (length / sum, NeuronIndex { layer, neuron })));
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    assert_eq!(of.neurons.len(), 4);
    for (neuron, (share, place)) in of.neurons.iter().zip(&all) {
        assert_eq!(neuron.place, *place);
        assert!((neuron.share - share).abs() < 1e-4 && neuron.activation != 0.0, "{neuron:?}, not {share}");
    }
}

#[test]
fn patches_are_recorded_in_chunks_of_any_size_and_within_ends_of_rows() {
    for (name, chunk) in [("qwen3-vl", 3), ("pixtral", 512), ("pixtral", 5)] {
        let (engine, folder) = seeing(name, chunk);
        let [a, ..] = pictures(folder.path());
        let prompt = asked(&[&a]);
        generate(&session_of(&engine, 360), Request { prompt: prompt.clone(), ..greedy(&[], 1) });
        let inputs = inputs(&engine, prompt);
        let places = inputs.patches(a.hash().unwrap());
        let told = engine.neurons().tokens(0..inputs.tokens().len() as u64);
        let patches: Vec<(usize, u32)> =
            told.iter().filter_map(|token| Some((token.position, token.patch?.index))).collect();
        assert_eq!(patches, places.iter().copied().zip(0..).collect::<Vec<_>>(), "{name}");
        let firing = firing_of(&engine, &inputs, &places);
        assert!(firing.iter().all(|of| of.fired > 0 && of.neurons.len() == 4), "{name}");
        // A patch is not a picture's neighbour in the text.
        assert!(inputs.patches(pictures(folder.path())[1].hash().unwrap()).is_empty());
    }
}

/// Tokens of an overview and of slices name the cells that they see.
#[test]
fn tokens_of_sliced_pictures_are_recorded_with_their_cells() {
    for name in ["minicpm-v2_6", "minicpm-v4_6"] {
        let (engine, folder) = seeing(name, 5);
        let [_, sliced, _] = pictures(folder.path());
        let prompt = asked(&[&sliced]);
        generate(&session_of(&engine, 360), Request { prompt: prompt.clone(), ..greedy(&[], 1) });
        let inputs = inputs(&engine, prompt);
        let picture = sliced.hash().unwrap();
        let places = inputs.patches(picture);
        let cells = engine.tower().unwrap().cells(sliced.width(), sliced.height()).unwrap();
        assert!(cells[0].grid != cells[cells.len() - 1].grid, "{name}: an overview and slices");
        assert!(places[places.len() - 1] - places[0] >= places.len(), "{name}: marks between the parts");
        let told = engine.neurons().tokens(0..inputs.tokens().len() as u64);
        let patches: Vec<(usize, PicturePatch)> =
            told.iter().filter_map(|token| Some((token.position, token.patch?))).collect();
        let tokens = cells.len() as u32;
        let wanted = places.iter().zip(&cells).enumerate().map(|(token, (place, cell))| {
            let [token, rows, cols, index] = [token, cell.grid.rows, cell.grid.cols, cell.index].map(|it| it as u32);
            (*place, PicturePatch { picture: picture.0, token, tokens, rows, cols, index })
        });
        assert_eq!(patches, wanted.collect::<Vec<_>>(), "{name}");
        let firing = firing_of(&engine, &inputs, &places);
        assert!(firing.iter().all(|of| of.fired > 0 && of.neurons.len() == 4), "{name}");
    }
}

#[test]
fn logits_after_pictures_are_explained() {
    for name in ["qwen3-vl", "gemma3"] {
        let (engine, folder) = seeing(name, 512);
        let [a, _, c] = pictures(folder.path());
        let (cpu, token, go) = (engine.cpu().unwrap(), 9, &mut || ControlFlow::Continue(()));
        let mut logits = Vec::new();
        for picture in [&a, &c] {
            let inputs = inputs(&engine, asked(&[picture]));
            let pictures = inputs.placed().unwrap();
            let context = CallInputs::with_pictures(inputs.tokens(), &pictures);
            let mut forward = Forward::new(Arc::clone(engine.model()), engine.cpu().unwrap());
            let mut kv = forward.kv_cache(inputs.tokens().len(), KvType::F32).unwrap();
            let whole = forward.run(context, &mut kv, Outputs::Last, &mut ()).unwrap()[token as usize];
            let of = attribution(engine.model(), &cpu, context, token, 5, go).unwrap();
            let off: Vec<NeuronIndex> = of.neurons.iter().map(|neuron| neuron.place).collect();
            let without = switching_off(engine.model(), &cpu, context, token, &off, go).unwrap();
            assert!(max_diff(&[of.logit, without.whole], &[whole, whole]) < 1e-3, "{name}: {of:?} {without:?} {whole}");
            assert!((of.layers.iter().sum::<f32>() + of.residual - of.logit).abs() < 1e-3, "{name}");
            logits.push(of.logit);
        }
        assert!((logits[0] - logits[1]).abs() > 1e-3, "{name}: the picture is not read: {logits:?}");
    }
}

#[test]
fn tokens_outside_a_context_have_no_neurons() {
    let (engine, folder) = seeing("qwen3-vl", 512);
    let [a, ..] = pictures(folder.path());
    let inputs = engine.prompt_inputs(asked(&[&a]), &ChatOptions::default()).unwrap();
    assert!(matches!(inputs.placed(), Err(Error::Invalid { .. })), "the picture is not computed");
    let (cpu, len) = (engine.cpu().unwrap(), 3);
    for wanted in [2..2, 2..len + 1] {
        let tokens = &inputs.tokens()[..len];
        let go = &mut || ControlFlow::Continue(());
        let refused = token_firing(engine.model(), &cpu, tokens, wanted.clone(), engine.neurons(), 4, go);
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{wanted:?}");
    }
    let stop = &mut || ControlFlow::Break(());
    let stopped = token_firing(engine.model(), &cpu, &inputs.tokens()[..2], 0..2, engine.neurons(), 4, stop);
    assert!(matches!(stopped, Err(Error::Cancelled)));
}
