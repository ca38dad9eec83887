//! Parts of logits that neurons contribute. They are compared with the forward pass and with models
//! whose neurons are switched off.

#![allow(clippy::unwrap_used)]

use std::{ops::ControlFlow, path::Path, sync::Arc};

use thermocline_engine::{
    Error,
    cpu::{Cpu, CpuOptions, InputPrecision},
    eval::{Attribution, attribution, neuron_lens, switching_off, token_neurons},
    model::{Ffn, LoadOptions, Model, NeuronIndex},
    runtime::{Forward, KvType, Outputs, Sparsity},
    sparsity::predictor::metrics::down_norms,
    tokenizer::{EncodeOptions, Tokenizer},
};

fn open(path: &str) -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    Arc::new(Model::open(&path, &LoadOptions::default()).unwrap())
}

fn cpu() -> Cpu {
    let options = CpuOptions { threads: Some(2), activations: InputPrecision::Float, ..CpuOptions::default() };
    Cpu::new(&options).unwrap()
}

fn parts(model: &Arc<Model>, context: &[u32], token: u32, top: usize) -> Attribution {
    attribution(model, &cpu(), context, token, top, &mut || ControlFlow::Continue(())).unwrap()
}

fn logits(model: &Arc<Model>, context: &[u32], mode: Sparsity) -> Vec<f32> {
    let mut forward = Forward::new(Arc::clone(model), cpu());
    forward.set_sparsity(mode);
    let mut kv = forward.kv_cache(context.len(), KvType::F32).unwrap();
    let (last, before) = context.split_last().unwrap();
    forward.run(before, &mut kv, Outputs::None, &mut ()).unwrap();
    forward.run(&[*last], &mut kv, Outputs::Last, &mut ()).unwrap().to_vec()
}

fn likeliest(logits: &[f32]) -> u32 {
    (0u32..).zip(logits).max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0
}

const CONTEXT: [u32; 6] = [1, 7, 30, 12, 9, 21];

/// Families with different steps between a neuron and the residual stream: none, a layer norm at
/// the end, norms behind FFNs, parallel attention, experts, shared experts, a norm of hidden
/// values, residual factors.
const MODELS: [&str; 13] = [
    "llama-relu",
    "opt",
    "falcon-new",
    "gemma2",
    "gemma3",
    "olmo3",
    "mixtral",
    "qwen2-moe",
    "nemotron-3-nano",
    "bitnet",
    "granite-4-dense",
    "phi3",
    "gpt-oss",
];

#[test]
fn attribution_logit_is_that_of_the_forward_pass() {
    for name in MODELS {
        let model = open(&format!("fixtures/models/{name}"));
        let all = logits(&model, &CONTEXT, Sparsity::Dense);
        let token = likeliest(&all);
        let of = parts(&model, &CONTEXT, token, 5);
        let logit = all[token as usize];
        let logit = model.config.final_softcap.map_or(logit, |cap| cap * (logit / cap).atanh());
        assert!((of.logit - logit).abs() < 1e-3 * (1.0 + logit.abs()), "{name}: {} {logit}", of.logit);
        let sum = of.layers.iter().sum::<f32>() + of.residual;
        assert!((of.logit - sum).abs() < 1e-4 * (1.0 + sum.abs()) && of.probability > 0.0, "{name}: {sum}");
        assert_eq!(of.neurons.len(), 5, "{name}");
    }
}

/// The sum of a layer is what its FFN adds. With all neurons of the last layer off, only the final
/// norm's scale changes the rest of the logit. `direction` of both passes contains that scale.
#[test]
fn effects_of_the_last_layer_are_what_switching_it_off_takes_away() {
    for name in MODELS {
        let model = open(&format!("fixtures/models/{name}"));
        let last =
            (0..model.config.n_layer()).rev().find(|layer| !matches!(model.weights.layers[*layer].ffn, Ffn::None));
        let last = last.unwrap();
        if last + 1 != model.config.n_layer() {
            continue;
        }
        let count = model.neuron_shape().neurons(last);
        let off: Vec<NeuronIndex> = (0..count).map(|neuron| NeuronIndex { layer: last, neuron }).collect();
        let without = Arc::new(model.without_neurons(&off).unwrap());
        // The ratio of the remaining logits of two tokens does not depend on the scale of an RMS
        // norm.
        let [a, b] = [3, 11].map(|token| (parts(&model, &CONTEXT, token, 0), parts(&without, &CONTEXT, token, 0)));
        for (_, without) in [&a, &b] {
            assert_eq!(without.layers[last], 0.0, "{name}");
        }
        let rest = |of: &Attribution| f64::from(of.logit - of.layers[last]);
        let off_by = rest(&a.0) * f64::from(b.1.logit) - rest(&b.0) * f64::from(a.1.logit);
        let size = rest(&a.0).abs() * f64::from(b.1.logit).abs() + 1e-3;
        // The final norm does not scale biases of heads and norms, and biases of down projections
        // remain.
        let biased = model.weights.output.bias.is_some() || model.weights.output_norm.bias.is_some();
        assert!(biased || off_by.abs() < 2e-3 * size, "{name}: {off_by} of {size}");
    }
}

#[test]
fn switched_off_neurons_add_nothing_in_any_mode() {
    for name in ["llama-relu", "mixtral", "gpt-oss", "nemotron-3-nano", "gemma3n"] {
        let model = open(&format!("fixtures/models/{name}"));
        let shape = model.neuron_shape();
        let layer = (0..shape.layers()).find(|layer| shape.neurons(*layer) > 0).unwrap();
        let off: Vec<NeuronIndex> =
            (0..shape.neurons(layer)).step_by(2).map(|neuron| NeuronIndex { layer, neuron }).collect();
        let without = Arc::new(model.without_neurons(&off).unwrap());
        let (dense, exact) = (logits(&without, &CONTEXT, Sparsity::Dense), logits(&without, &CONTEXT, Sparsity::Exact));
        let gap = dense.iter().zip(&exact).fold(0.0f32, |gap, (a, b)| gap.max((a - b).abs()));
        assert!(gap < 1e-3, "{name}: {gap}");
        if name != "gemma3n" {
            let of = parts(&without, &CONTEXT, 3, usize::MAX);
            assert!(!of.neurons.is_empty(), "{name}");
            assert!(of.neurons.iter().all(|neuron| !off.contains(&neuron.place)), "{name}");
        }
        assert_ne!(dense, logits(&model, &CONTEXT, Sparsity::Dense), "{name}");
    }
    let model = open("fixtures/models/llama-relu");
    let outside = NeuronIndex { layer: 0, neuron: 1 << 20 };
    assert!(matches!(model.without_neurons(&[outside]), Err(Error::Invalid { .. })));
    assert!(matches!(neuron_lens(&model, &cpu(), outside, 3), Err(Error::Invalid { .. })));
}

#[test]
fn attribution_refuses_what_it_cannot_do() {
    let go = || ControlFlow::Continue(());
    let model = open("fixtures/models/gemma3n");
    assert!(matches!(attribution(&model, &cpu(), &CONTEXT, 3, 1, &mut go.clone()), Err(Error::Unsupported { .. })));
    let model = open("fixtures/models/llama-relu");
    assert!(matches!(attribution(&model, &cpu(), &[], 3, 1, &mut go.clone()), Err(Error::Invalid { .. })));
    assert!(matches!(attribution(&model, &cpu(), &CONTEXT, 1 << 30, 1, &mut go.clone()), Err(Error::Invalid { .. })));
    let stopped = attribution(&model, &cpu(), &CONTEXT, 3, 1, &mut || ControlFlow::Break(()));
    assert!(matches!(stopped, Err(Error::Cancelled)));
}

/// A neuron's cosine times the length of its down column equals its lens value for the token, up to
/// a factor of the token.
#[test]
fn token_neurons_are_the_lenses_of_all_neurons_seen_from_a_token() {
    let (token, go) = (7, || ControlFlow::Continue(()));
    for name in MODELS {
        let model = open(&format!("fixtures/models/{name}"));
        let shape = model.neuron_shape();
        let layer = (0..shape.layers()).rev().find(|layer| shape.neurons(*layer) > 0).unwrap();
        let all = token_neurons(&model, &cpu(), &[token], &mut go.clone()).unwrap();
        assert_eq!(all.iter().map(Vec::len).sum::<usize>(), shape.total(), "{name}");
        assert!(all.iter().flatten().all(|cosine| cosine.abs() < 1.001), "{name}");
        let norms: Vec<f32> = match &model.weights.layers[layer].ffn {
            Ffn::Dense(ffn) => down_norms(ffn),
            // The length of a vector in a latent differs from its length behind it.
            Ffn::Experts(moe) if moe.latent.is_some() => continue,
            Ffn::Experts(moe) => moe.ffns().flat_map(down_norms).collect(),
            Ffn::None => unreachable!(),
        };
        let mut factor = None;
        for neuron in (0..shape.neurons(layer)).step_by(shape.neurons(layer) / 9) {
            let lens = neuron_lens(&model, &cpu(), NeuronIndex { layer, neuron }, usize::MAX).unwrap();
            let logit = lens.promoted.iter().find(|(id, _)| *id == token).unwrap().1;
            let own = all[layer][neuron] * norms[neuron];
            let factor = *factor.get_or_insert(logit / own);
            assert!(
                (logit - own * factor).abs() < 1e-3 * (1.0 + logit.abs()),
                "{name} {neuron}: {logit} {own} {factor}"
            );
        }
    }
    let model = open("fixtures/models/llama-relu");
    let refused = |tokens: &[u32]| token_neurons(&model, &cpu(), tokens, &mut go.clone());
    assert!(
        matches!(refused(&[]), Err(Error::Invalid { .. })) && matches!(refused(&[1 << 30]), Err(Error::Invalid { .. }))
    );
    let stopped = token_neurons(&model, &cpu(), &[token], &mut || ControlFlow::Break(()));
    assert!(matches!(stopped, Err(Error::Cancelled)));
}

/// Returns the logit of `token` after `context`. `last` computes the last token, `model` computes
/// the tokens before.
fn logit_with_last_token_by(model: &Arc<Model>, last: Model, context: &[u32], token: u32) -> f32 {
    let (id, before) = context.split_last().unwrap();
    let mut forward = Forward::new(Arc::clone(model), cpu());
    let mut kv = forward.kv_cache(context.len(), KvType::F32).unwrap();
    forward.run(before, &mut kv, Outputs::None, &mut ()).unwrap();
    let mut rest = Forward::new(Arc::new(last), cpu());
    rest.run(&[*id], &mut kv, Outputs::Last, &mut ()).unwrap()[token as usize]
}

/// Switches off the five neurons that add most to a word of the built-in model. The logit falls by
/// the sum of the falls that are shown for each neuron.
#[test]
fn switching_off_a_words_neurons_lowers_its_logit_by_the_sum_shown() {
    let model = open("../assets/storyteller/storyteller-F16.gguf");
    let tokenizer = Tokenizer::from_checkpoint(&model.checkpoint).unwrap();
    let prompts =
        ["Once upon a time there was a little girl named", "The dog ran to the", "She was very happy and", "Tom said:"];
    for prompt in prompts {
        let context = tokenizer.encode(prompt, EncodeOptions::CHAT).unwrap();
        let token = likeliest(&logits(&model, &context, Sparsity::Dense));
        let of = parts(&model, &context, token, 1000);
        let top = of.neurons.iter().filter(|neuron| neuron.logit > 0.0).take(5);
        let off: Vec<NeuronIndex> = top.map(|neuron| neuron.place).collect();
        let shown = switching_off(&model, &cpu(), &context, token, &off, &mut || ControlFlow::Continue(())).unwrap();
        let sum = shown.falls.iter().sum::<f32>();
        let fell = of.logit - logit_with_last_token_by(&model, model.without_neurons(&off).unwrap(), &context, token);
        println!("{prompt}: {:?} fell by {fell}, shown {sum}: {:?}", tokenizer.decode(&[token], false), shown.falls);
        assert!(fell > 0.0 && (fell / sum - 1.0).abs() < 0.02, "{prompt}: it fell by {fell}, {sum} are shown");
        assert!((shown.whole - of.logit).abs() < 1e-3 && shown.falls.len() == 5, "{prompt}: {shown:?}");
    }
}

/// Recurrent states and experts also return to the tokens before the last.
#[test]
fn switching_off_computes_the_last_token_alone_in_every_family() {
    for name in MODELS {
        let model = open(&format!("fixtures/models/{name}"));
        let of = parts(&model, &CONTEXT, 3, 3);
        let off: Vec<NeuronIndex> = of.neurons.iter().map(|neuron| neuron.place).collect();
        let shown = switching_off(&model, &cpu(), &CONTEXT, 3, &off, &mut || ControlFlow::Continue(())).unwrap();
        let without = logit_with_last_token_by(&model, model.without_neurons(&off).unwrap(), &CONTEXT, 3);
        let without = model.config.final_softcap.map_or(without, |cap| cap * (without / cap).atanh());
        assert!((shown.without - without).abs() < 1e-3 * (1.0 + without.abs()), "{name}: {shown:?} {without}");
        assert!((shown.whole - of.logit).abs() < 1e-3 * (1.0 + of.logit.abs()), "{name}: {shown:?}");
    }
}
