//! Every architecture reproduces its reference: logits, hidden states, firing neurons, routing,
//! greedy continuation. Tested on every instruction set, with any chunk size and number of workers,
//! from the cache and from a prompt.

use std::{collections::HashSet, path::PathBuf, sync::Arc};

use thermocline_engine::{
    Error,
    cpu::{InputPrecision, Isa},
    format::{Metadata, ReadMode, Value},
    model::{
        Activation, Ffn, LoadOptions, Model, RecurrentConfig, RouterScore, mask,
        recurrent::{DeltaNetConfig, Mamba2Config},
    },
    runtime::{KvType, LayerFiring, MAX_SHORTLIST, Outputs, Probe, RecurrentState, Sparsity},
};
use thermocline_tests::golden::{
    CPU_ONLY, Expected, MODELS, QUANTISED, RECURRENT, Setup, by_token, forward, greedy, max_diff, prompt, rms_diff,
};

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/models").join(name)
}

fn load(name: &str) -> (Arc<Model>, Expected) {
    let model = Model::open(&folder(name), &LoadOptions::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
    (Arc::new(model), Expected::read(&folder(name).join("expected.safetensors")))
}

/// Models of every kind.
fn all() -> impl Iterator<Item = &'static str> {
    MODELS.into_iter().chain(RECURRENT).chain(CPU_ONLY).filter(|name| !QUANTISED.contains(name))
}

fn setups() -> Vec<Setup> {
    let mut setups: Vec<Setup> =
        Isa::available().into_iter().map(|isa| Setup { isa: Some(isa), ..Setup::default() }).collect();
    setups.extend([(1, 2), (5, 3), (9, 1), (24, 2), (512, 2)].map(|(chunk, threads)| Setup {
        chunk,
        threads,
        ..Setup::default()
    }));
    setups
}

#[test]
fn logits_and_hidden_states_match_the_reference() {
    for name in all() {
        let (model, expected) = load(name);
        let ids = expected.ids("input_ids");
        let (logits, hidden) = (expected.f32("logits"), expected.f32("hidden"));
        for setup in setups() {
            let run = prompt(&model, setup, &ids);
            let error = max_diff(&run.logits, &logits);
            assert!(error <= 1e-3, "{name} {setup:?}: logits differ by {error}");
            let error = max_diff(&run.hidden.concat(), &hidden);
            assert!(error <= 1e-3, "{name} {setup:?}: hidden states differ by {error}");
        }
    }
}

#[test]
fn logits_with_f16_and_q8_caches_stay_close() {
    for name in all() {
        let (model, expected) = load(name);
        let logits = expected.f32("logits");
        // ReLU magnifies the rounding of keys and values. Squared ReLU magnifies it more.
        let magnified = match (model.config.activation, model.config.experts) {
            (Activation::ReluSquared, _) => 3.0,
            (Activation::Relu, Some(_)) => 1.5,
            _ => 1.0,
        };
        // Scores that are not scaled down, or that a norm of queries scales up, also magnify it.
        let unscaled = model.config.layers.iter().zip(&model.weights.layers).any(|(of, weights)| {
            let (Some(of), Some(weights)) = (&of.attention, &weights.attention) else { return false };
            let norm = weights.q_norm.iter().flat_map(|norm| &norm.weight).fold(1.0, |most: f32, of| most.max(*of));
            of.scores.scale * norm >= 1.0
        });
        let magnified = if unscaled { 2.0 * magnified } else { magnified };
        // So do scores whose threshold depends on the largest score.
        let mixed = model.config.experts.is_some_and(|experts| experts.router.score == RouterScore::SparseMixer);
        let magnified = if mixed { 2.0 * magnified } else { magnified };
        // The rounding of a latent enters the keys and values of every head.
        let latent = model.config.attentions().any(|attention| attention.latent.is_some());
        let magnified = if latent { 2.0 * magnified } else { magnified };
        for (kv, tolerance) in [(KvType::F16, 0.02 * magnified), (KvType::Q8_0, 0.4 * magnified)] {
            let run = prompt(&model, Setup { kv, ..Setup::default() }, &expected.ids("input_ids"));
            if let Some(experts) = model.config.experts {
                // In such small models, 8-bit keys sometimes change a choice of experts. Later
                // results then differ.
                let chosen: Vec<u32> = run.router.concat().into_iter().map(|e| e as u32).collect();
                let same = by_token(&chosen, experts.used) == by_token(&expected.ids("router_top"), experts.used);
                assert!(same || kv == KvType::Q8_0, "{name} {kv}: other experts");
                if !same {
                    continue;
                }
            }
            let error = max_diff(&run.logits, &logits);
            assert!(error <= tolerance, "{name} {kv}: logits differ by {error}");
        }
    }
}

#[test]
fn firing_neurons_match_the_reference() {
    let mut seen = 0;
    for name in all().chain(QUANTISED) {
        let activations = if QUANTISED.contains(&name) { InputPrecision::Float } else { Setup::default().activations };
        let (model, expected) = load(name);
        let Some(wanted) = expected.u8("ffn_active") else { continue };
        seen += 1;
        let near: HashSet<usize> =
            expected.i32("ffn_near_zero").unwrap_or_default().into_iter().map(|i| i as usize).collect();
        for isa in Isa::available() {
            let run =
                prompt(&model, Setup { isa: Some(isa), activations, ..Setup::default() }, &expected.ids("input_ids"));
            let active = run.active.concat();
            assert_eq!(active.len(), wanted.len(), "{name}");
            for i in (0..wanted.len()).filter(|i| !near.contains(i)) {
                assert_eq!(active[i], wanted[i] != 0, "{name} {isa}: neuron at {i}");
            }
        }
    }
    assert_eq!(seen, 13);
}

/// Queries of a latent grow with their position in every file with the key, whatever its
/// architecture is called (files of Mistral Large are `deepseek2`). Without the key they do not.
#[test]
fn queries_of_latents_grow_under_either_name() {
    let (_, expected) = load("mistral4");
    let key = "deepseek2.attention.temperature_scale";
    let error = |named: bool| {
        let mut checkpoint = Model::open_checkpoint(&folder("mistral4"), ReadMode::Map).unwrap();
        let mut renamed = Metadata::new(folder("mistral4"));
        for (name, value) in checkpoint.metadata.iter() {
            let name = name.replacen("mistral4.", "deepseek2.", 1);
            if named || name != key {
                renamed.set(name, value.clone());
            }
        }
        renamed.set("general.architecture", Value::String("deepseek2".to_owned()));
        checkpoint.metadata = renamed;
        let model = Arc::new(Model::from_checkpoint(checkpoint, &LoadOptions::default()).unwrap());
        max_diff(&prompt(&model, Setup::default(), &expected.ids("input_ids")).logits, &expected.f32("logits"))
    };
    let [with, without] = [true, false].map(error);
    assert!(with <= 1e-3 && without > 0.1, "logits differ by {with}, without the key by {without}");
}

/// Firing masks of each layer, `[tokens, words]`, token after token.
#[derive(Default)]
struct FiredExperts(Vec<Vec<u32>>);

impl Probe for FiredExperts {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        if self.0.len() <= firing.layer {
            self.0.resize(firing.layer + 1, Vec::new());
        }
        self.0[firing.layer].extend_from_slice(firing.fired);
    }
}

/// Chunks are dense. Single tokens skip silent neurons and give the same logits.
#[test]
fn firing_neurons_of_experts_match_the_reference() {
    let mut seen = 0;
    for name in all() {
        let (model, expected) = load(name);
        let (Some(wanted), Some(experts)) = (expected.u8("expert_active"), model.config.experts) else { continue };
        seen += 1;
        let near: HashSet<usize> =
            expected.i32("expert_near_zero").unwrap_or_default().into_iter().map(|i| i as usize).collect();
        let (ids, top) = (expected.ids("input_ids"), expected.ids("router_top"));
        let layers: Vec<usize> = (0..model.config.n_layer())
            .filter(|layer| matches!(model.weights.layers[*layer].ffn, Ffn::Experts(_)))
            .collect();
        assert_eq!(wanted.len(), layers.len() * ids.len() * experts.used * experts.n_ff, "{name}");
        for (isa, sparsity, chunk) in Isa::available().into_iter().flat_map(|isa| {
            [(Sparsity::Dense, 24), (Sparsity::Dense, 1), (Sparsity::Exact, 1), (Sparsity::Exact, 5)]
                .map(|(sparsity, chunk)| (isa, sparsity, chunk))
        }) {
            let mut forward = forward(&model, Setup { isa: Some(isa), chunk, ..Setup::default() });
            forward.set_sparsity(sparsity);
            let (mut fired, mut kv) = (FiredExperts::default(), forward.kv_cache(ids.len(), KvType::F32).unwrap());
            let logits = forward.run(&ids, &mut kv, Outputs::All, &mut fired).unwrap();
            let error = max_diff(logits, &expected.f32("logits"));
            assert!(error <= 1e-3, "{name} {isa} {sparsity}: logits differ by {error}");
            for (i, active) in wanted.iter().enumerate().filter(|(i, _)| !near.contains(i)) {
                let (slot, neuron) = (i / experts.n_ff, i % experts.n_ff);
                let (layer, token) = (layers[slot / experts.used / ids.len()], slot / experts.used % ids.len());
                let words = fired.0[layer].len() / ids.len();
                let at = top[slot] as usize * experts.n_ff + neuron;
                let fires = mask::contains(&fired.0[layer][token * words..][..words], at);
                assert_eq!(fires, *active != 0, "{name} {isa} {sparsity}: layer {layer}, token {token}, neuron {at}");
            }
        }
    }
    assert_eq!(seen, 2);
}

#[test]
fn routing_matches_the_reference() {
    let mut seen = 0;
    for name in all().chain(QUANTISED) {
        let (model, expected) = load(name);
        let Some(experts) = model.config.experts else { continue };
        seen += 1;
        let wanted = by_token(&expected.ids("router_top"), experts.used);
        for setup in setups() {
            let setup = Setup { activations: InputPrecision::Float, ..setup };
            let run = prompt(&model, setup, &expected.ids("input_ids"));
            let chosen: Vec<u32> = run.router.concat().into_iter().map(|e| e as u32).collect();
            assert_eq!(by_token(&chosen, experts.used), wanted, "{name} {setup:?}");
        }
    }
    assert_eq!(seen, 30);
}

/// Recurrent states behind a prompt equal the reference, for every division of the prompt.
#[test]
fn recurrent_states_match_the_reference() {
    for name in RECURRENT {
        let (model, expected) = load(name);
        let ids = expected.ids("input_ids");
        for setup in setups() {
            let mut forward = forward(&model, setup);
            let mut kv = forward.kv_cache(ids.len(), setup.kv).unwrap();
            forward.run(&ids, &mut kv, Outputs::None, &mut ()).unwrap();
            for (n, layer) in model.config.layers.iter().enumerate() {
                let Some(of) = &layer.recurrent else { continue };
                let state = kv.state(n).unwrap();
                let (conv, scan) = reference_order(of, state);
                let [taps, all_taps] = [state.conv.len(), expected.f32(&format!("conv.{n}")).len()];
                let wanted = expected.f32(&format!("conv.{n}"));
                // The reference keeps one more input than the next token needs.
                let channels = all_taps - taps;
                let wanted: Vec<f32> =
                    wanted.chunks(all_taps / channels).flat_map(|taps| taps[1..].iter().copied()).collect();
                let error = max_diff(&conv, &wanted);
                assert!(error <= 1e-3, "{name} {setup:?}: inputs of layer {n} differ by {error}");
                if !scan.is_empty() {
                    let error = max_diff(&scan, &expected.f32(&format!("state.{n}")));
                    assert!(error <= 1e-3, "{name} {setup:?}: state of layer {n} differs by {error}");
                }
            }
        }
    }
}

/// Returns a state in the reference's order. Inputs of the convolution are `[channels, taps - 1]`,
/// and a Mamba-2 state is `[heads, head_dim, state]`. Value heads of delta nets are in the order of
/// their key heads.
fn reference_order(of: &RecurrentConfig, state: &RecurrentState) -> (Vec<f32>, Vec<f32>) {
    let by_channel = |channels: usize| -> Vec<f32> {
        let taps = state.conv.len() / channels.max(1);
        (0..state.conv.len()).map(|i| state.conv[i % taps * channels + i / taps]).collect()
    };
    match of {
        RecurrentConfig::Mamba2(Mamba2Config { shape, .. }) => {
            let (dim, size) = (shape.head_dim, shape.state);
            let heads = state.scan.chunks(dim * size);
            let scan = heads.flat_map(|head| (0..dim * size).map(|i| head[i % size * dim + i / size]));
            (by_channel(shape.channels()), scan.collect())
        }
        RecurrentConfig::DeltaNet(DeltaNetConfig { shape, .. }) => {
            let group = shape.v_heads / shape.k_heads;
            let ours = |head: usize| if shape.interleaved { head % group * shape.k_heads + head / group } else { head };
            let conv = by_channel(shape.qkv());
            let taps = conv.len() / shape.qkv();
            let (keys, values) = conv.split_at((shape.qkv() - shape.values()) * taps);
            let of_heads = |values: &[f32], len: usize| -> Vec<f32> {
                (0..shape.v_heads).flat_map(|head| values[ours(head) * len..][..len].to_vec()).collect()
            };
            let conv = [keys, &of_heads(values, shape.v_dim * taps)].concat();
            (conv, of_heads(&state.scan, shape.k_dim * shape.v_dim))
        }
        _ => (by_channel(of.state().conv[1]), state.scan.clone()),
    }
}

/// Weights that are published in blocks. Float activations reproduce the reference. With 8-bit
/// activations, a choice of experts sometimes changes.
#[test]
fn quantised_weights_as_published_match_the_reference() {
    for name in QUANTISED {
        let (model, expected) = load(name);
        let (ids, logits) = (expected.ids("input_ids"), expected.f32("logits"));
        let greedy_ids = expected.ids("greedy_ids");
        for setup in setups() {
            let float = Setup { activations: InputPrecision::Float, ..setup };
            let run = prompt(&model, float, &ids);
            let error = max_diff(&run.logits, &logits);
            assert!(error <= 1e-3, "{name} {setup:?}: logits differ by {error}");
            let error = max_diff(&run.hidden.concat(), &expected.f32("hidden"));
            assert!(error <= 1e-3, "{name} {setup:?}: hidden states differ by {error}");
            assert_eq!(greedy(&model, float, &ids, greedy_ids.len()), greedy_ids, "{name} {setup:?}");
            let error = rms_diff(&prompt(&model, setup, &ids).logits, &logits);
            assert!(error <= 0.5, "{name} {setup:?}: RMS difference {error}");
        }
    }
}

#[test]
fn greedy_continuation_matches_the_reference() {
    for name in all() {
        let (model, expected) = load(name);
        let (ids, wanted) = (expected.ids("input_ids"), expected.ids("greedy_ids"));
        for setup in setups() {
            assert_eq!(greedy(&model, setup, &ids, wanted.len()), wanted, "{name} {setup:?}");
        }
        let setup = Setup { kv: KvType::F16, ..Setup::default() };
        assert_eq!(greedy(&model, setup, &ids, wanted.len()), wanted, "{name} {setup:?}");
    }
}

/// Firing masks, layer by layer.
#[derive(Default)]
struct Fired(Vec<Vec<Vec<u32>>>);

impl Probe for Fired {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        self.0.resize(self.0.len().max(firing.layer + 1), Vec::new());
        self.0[firing.layer].push(firing.fired.to_vec());
    }
}

/// Only gates far above the mean of a token's gates fire. `exact` gives the logits of `dense` and
/// records the firings.
#[test]
fn gates_above_the_mean_alone_are_computed_in_exact_mode() {
    let (model, expected) = load("gemma3n");
    let (ids, logits) = (expected.ids("input_ids"), expected.f32("logits"));
    let wanted = expected.u8("ffn_active").expect("the fixture's firing neurons");
    let near: HashSet<usize> =
        expected.i32("ffn_near_zero").unwrap_or_default().into_iter().map(|i| i as usize).collect();
    let n_ff = model.config.n_ff;
    for isa in Isa::available() {
        let mut forward = forward(&model, Setup { isa: Some(isa), chunk: 1, ..Setup::default() });
        forward.set_sparsity(Sparsity::Exact);
        let (mut kv, mut fired) = (forward.kv_cache(ids.len(), KvType::F32).unwrap(), Fired::default());
        let error = max_diff(forward.run(&ids, &mut kv, Outputs::All, &mut fired).unwrap(), &logits);
        assert!(error <= 1e-3, "{isa}: logits differ by {error}");
        let mut silent = 0;
        for i in (0..wanted.len()).filter(|i| !near.contains(i)) {
            let (layer, token) = (i / n_ff / ids.len(), i / n_ff % ids.len());
            if model.weights.layers[layer].gate_deviations.is_none() {
                continue;
            }
            let fires = mask::contains(&fired.0[layer][token], i % n_ff);
            assert_eq!(fires, wanted[i] != 0, "{isa}: neuron {} of layer {layer}, token {token}", i % n_ff);
            silent += usize::from(!fires);
        }
        assert!(silent > 2 * ids.len() * n_ff * 8 / 10, "{isa}: {silent} are silent");
    }
}

#[test]
fn shortlist_holds_the_largest_logits() {
    let (model, expected) = load("gemma2");
    let ids = expected.ids("input_ids");
    let mut forward = forward(&model, Setup { chunk: 5, ..Setup::default() });
    let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
    let logits = forward.run(&ids, &mut kv, Outputs::Last, &mut ()).unwrap().to_vec();
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
    for k in [1, 40, MAX_SHORTLIST] {
        kv.truncate(0);
        let top = forward.top(&ids, &mut kv, k, &mut ()).unwrap();
        assert_eq!(top.ids, &order[..k]);
        assert!(top.ids.iter().zip(top.logits).all(|(id, logit)| logits[*id as usize] == *logit));
        assert_eq!(kv.len(), ids.len());
    }
    for k in [0, MAX_SHORTLIST + 1] {
        assert!(matches!(forward.top(&ids, &mut kv, k, &mut ()), Err(Error::Invalid { .. })));
    }
}
