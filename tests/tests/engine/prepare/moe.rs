//! MoE models: firing frequencies and activation thresholds of the chosen experts' neurons, and neuron-major down projections.

use thermocline_engine::{
    eval::{self, Corpus, Method, Phase},
    model::Activation,
    sparsity::sidecar::{PreparedLayer, Sidecar},
};
use thermocline_tests::moe;

use super::*;

fn moe_model(activation: Activation) -> Arc<Model> {
    let options = LoadOptions { activation: Some(activation), ..LoadOptions::default() };
    Arc::new(Model::open(&here("fixtures/models/mixtral"), &options).unwrap())
}

/// Returns the model with the sidecar of `made`.
fn with(model: &Model, made: &Prepared) -> Arc<Model> {
    let options = LoadOptions { activation: Some(model.config.activation), ..LoadOptions::default() };
    let mut attached = Model::open(&model.checkpoint.path, &options).unwrap();
    let choice = SidecarChoice::File(made.sidecar.path.clone());
    assert!(matches!(attach(&mut attached, &choice, ReadMode::Map).unwrap(), SidecarAttachment::Attached(_)));
    Arc::new(attached)
}

/// In rectified MoE models, the counted firings among neurons of chosen experts equal those of
/// exact mode. Down projections of experts are neuron-major, and the logits stay the same.
#[test]
fn firing_neurons_of_chosen_experts_are_counted() {
    for activation in [Activation::Relu, Activation::DRelu] {
        let (folder, model) = (tempfile::tempdir().unwrap(), moe_model(activation));
        let experts = model.config.experts.unwrap();
        let options = options(folder.path(), &model);
        let made = prepared(&model, &options);
        let attached = with(&model, &made);
        let PrepareCorpus::Tokens(texts) = &options.corpus else { unreachable!() };
        let (mut sparse, mut dense) =
            (Forward::new(Arc::clone(&attached), cpu()), Forward::new(Arc::clone(&model), cpu()));
        sparse.set_sparsity(Sparsity::Exact);
        let mut kvs = [&mut sparse, &mut dense].map(|forward| forward.kv_cache(40, KvType::F32).unwrap());
        // Preparation also used an F16 cache.
        let (mut fired, mut rounded) = (Fired::default(), sparse.kv_cache(40, KvType::F16).unwrap());
        for text in texts {
            kvs.iter_mut().chain([&mut rounded]).for_each(|kv| kv.truncate(0));
            for token in text {
                sparse.run(&[*token], &mut rounded, Outputs::None, &mut fired).unwrap();
                let exact = sparse.run(&[*token], &mut kvs[0], Outputs::Last, &mut ()).unwrap();
                let reference = dense.run(&[*token], &mut kvs[1], Outputs::Last, &mut ()).unwrap();
                let most = reference.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                assert!(exact.iter().zip(reference).all(|(a, b)| (a - b).abs() <= 1e-4 * most), "{activation}");
            }
        }
        let tokens = made.sidecar.provenance.tokens_profiled;
        for ((layer, counts), report) in made.sidecar.layers.iter().zip(&fired.0).zip(&made.layers) {
            let (frequencies, neurons) = (layer.frequency.as_ref().unwrap(), layer.experts.as_ref().unwrap());
            assert_eq!((frequencies.len(), neurons.downs.len()), (experts.count, experts.count));
            assert!((frequencies.iter().sum::<f32>() - experts.used as f32).abs() < 1e-3, "{frequencies:?}");
            assert_eq!((neurons.width, neurons.frequency.len()), (experts.n_ff, experts.count * experts.n_ff));
            // Another order of sums sometimes changes a gate or the router.
            let (mut worst, mut differ) = (0.0f64, 0.0f64);
            for (neuron, frequency) in neurons.frequency.iter().enumerate() {
                let off = (f64::from(*frequency) * tokens as f64 - counts[neuron] as f64).abs();
                (worst, differ) = (worst.max(off), differ + off);
            }
            let all = counts.iter().sum::<u64>() as f64;
            assert!(worst < 6.0 && differ <= 0.004 * all, "{activation}: {differ} of {all}, {worst} of one neuron");
            assert!(
                layer.predictor.is_none()
                    && layer.activation_threshold.is_none()
                    && report.why.contains("no predictors")
            );
            // Half of the neurons of chosen experts fire, or a quarter if two rows decide. The
            // density among all experts is less than half of that.
            assert!((0.1..0.7).contains(&report.density) && report.down_type.is_some(), "{report:?}");
            let density = f64::from(layer.density().unwrap());
            assert!((density - report.density).abs() < 1e-3, "{density} {report:?}");
        }
    }
}

/// MoE models whose neurons are never silent get an activation threshold per layer. Single tokens
/// skip about the requested fraction and read less. A stopped preparation resumes.
#[test]
fn silu_moe_models_get_activation_thresholds() {
    let (folder, model) = (tempfile::tempdir().unwrap(), moe_model(Activation::Silu));
    let options = options(folder.path(), &model);
    let made = prepared(&model, &options);
    let bytes = fs::read(&options.out).unwrap();
    let again = PrepareOptions { out: folder.path().join("again.gguf"), ..options.clone() };
    let (_, stops) = in_pieces(&model, &again, 5, &mut |_| ());
    assert!(stops > 0 && fs::read(&again.out).unwrap() == bytes, "stopped {stops} times");

    for (report, layer) in made.layers.iter().zip(&made.sidecar.layers) {
        let (threshold, judged) = (layer.activation_threshold.unwrap(), report.activation_threshold.unwrap());
        assert!(
            (threshold.density - 0.5).abs() < 0.1 && threshold.value > 0.0 && layer.predictor.is_none(),
            "{threshold:?}"
        );
        assert!(judged.output_error > 0.0 && judged.output_error < 0.5 && judged.mass > 0.5, "{judged:?}");
        assert!((0.5..1.0).contains(&report.density), "{report:?}");
    }
    let attached = with(&model, &made);
    let (experts, PrepareCorpus::Tokens(texts)) = (model.config.experts.unwrap(), &options.corpus) else {
        unreachable!()
    };
    let mut read = Vec::new();
    for mode in [Sparsity::Dense, Sparsity::Threshold] {
        let mut forward = Forward::new(Arc::clone(&attached), cpu());
        forward.set_sparsity(mode);
        let (mut kv, mut seen) = (forward.kv_cache(40, KvType::F32).unwrap(), Looked::default());
        for text in texts {
            kv.truncate(0);
            text.iter().for_each(|token| {
                forward.run(&[*token], &mut kv, Outputs::None, &mut seen).unwrap();
            });
        }
        let active = seen.fired as f64 / (seen.layers * experts.used * experts.n_ff) as f64;
        assert!((0.4..0.6).contains(&active), "{mode}: {active} of the neurons are above the activation threshold");
        read.push(seen.bytes);
    }
    assert!(read[1] * 10 < read[0] * 8, "{read:?}");
}

/// The router of Gemma 4 reads the residual stream through its own norm. Preparation sends the
/// recorded tokens to the same experts as the model. The thresholds skip the requested fraction of
/// the neurons, and their recall is measured.
#[test]
fn routers_that_read_the_residual_stream_get_activation_thresholds() {
    let (folder, model) = (tempfile::tempdir().unwrap(), fixture("models/gemma4-moe"));
    let Ffn::Experts(moe) = &model.weights.layers[0].ffn else { panic!() };
    assert!(moe.router_norm.is_some());
    let options = options(folder.path(), &model);
    let made = prepared(&model, &options);
    for layer in &made.sidecar.layers {
        let threshold = layer.activation_threshold.unwrap();
        assert!((threshold.density - 0.5).abs() < 0.1 && threshold.value > 0.0, "{threshold:?}");
    }
    let attached = with(&model, &made);
    let (experts, PrepareCorpus::Tokens(texts)) = (model.config.experts.unwrap(), &options.corpus) else {
        unreachable!()
    };
    let mut forward = Forward::new(Arc::clone(&attached), cpu());
    forward.set_sparsity(Sparsity::Threshold);
    let (mut kv, mut seen) = (forward.kv_cache(40, KvType::F32).unwrap(), Looked::default());
    for text in texts {
        kv.truncate(0);
        text.iter().for_each(|token| {
            forward.run(&[*token], &mut kv, Outputs::None, &mut seen).unwrap();
        });
    }
    let active = seen.fired as f64 / (seen.layers * experts.used * experts.n_ff) as f64;
    assert!((0.4..0.6).contains(&active), "{active} of the neurons are above the activation threshold");

    let ids = texts[..4].concat();
    let corpus = Corpus::from_tokens("noise", ids, None, 30, None).unwrap();
    let method = Method { sparsity: Sparsity::Threshold, phase: Phase::Decode, kv_type: KvType::F32 };
    let of = eval::recall(&mut forward, &cpu(), &corpus, method, "cpu", &mut ()).unwrap();
    assert_eq!(of.layers.len(), model.config.n_layer());
    for layer in &of.layers {
        assert!((0.3..0.7).contains(&layer.figures.density) && layer.output_error < 0.5, "{layer:?}");
    }
}

/// Totals of the reports on all layers of all tokens.
#[derive(Default)]
struct Looked {
    layers: usize,
    fired: usize,
    bytes: u64,
}

impl Probe for Looked {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        self.layers += 1;
        self.fired += firing.fired.iter().map(|word| word.count_ones() as usize).sum::<usize>();
        self.bytes += firing.cpu_bytes;
    }
}

/// The neurons of the shared expert are counted with every token. Its neuron-major down projection
/// is behind those of the other experts, and it uses their activation threshold. The file contains
/// all of this.
#[test]
fn shared_expert_gets_counts_down_rows_and_thresholds() {
    for activation in [Activation::DRelu, Activation::Silu] {
        let (folder, mut model) = (tempfile::tempdir().unwrap(), moe::wide());
        model.config.activation = activation;
        let model = Arc::new(model);
        let options = options(folder.path(), &model);
        let made = prepared(&model, &options);
        let read = Sidecar::open(&options.out, ReadMode::Map).unwrap();
        assert_eq!((&read.identity, &read.provenance), (&made.sidecar.identity, &made.sidecar.provenance));

        // The test counts again token by token, as preparation does.
        let mut attached = Model { config: model.config.clone(), weights: model.weights.clone(), ..moe::wide() };
        read.attach(&mut attached).unwrap();
        let mut forward = Forward::new(Arc::new(attached), cpu());
        let (mut fired, mut kv) = (Fired::default(), forward.kv_cache(40, KvType::F16).unwrap());
        let PrepareCorpus::Tokens(texts) = &options.corpus else { unreachable!() };
        for text in texts {
            kv.truncate(0);
            text.iter().for_each(|token| {
                forward.run(&[*token], &mut kv, Outputs::None, &mut fired).unwrap();
            });
        }
        let tokens = read.provenance.tokens_profiled as f64;
        assert_eq!(read.layers.len(), made.sidecar.layers.len());
        for (n, (layer, made)) in read.layers.iter().zip(&made.sidecar.layers).enumerate() {
            let of = |layer: &PreparedLayer| {
                let experts = layer.experts.clone().unwrap();
                let downs: Vec<Vec<u8>> = experts.downs.iter().map(|down| down.data().to_vec()).collect();
                (
                    layer.frequency.clone(),
                    layer.activation_threshold,
                    experts.frequency,
                    experts.shared,
                    downs,
                    experts.down_error,
                )
            };
            assert_eq!(of(layer), of(made), "{activation}, layer {n}");
            let Ffn::Experts(moe) = &model.weights.layers[n].ffn else { panic!("not an MoE layer") };
            let experts = layer.experts.as_ref().unwrap();
            let shared = moe.shared.as_ref().unwrap().ffn.up.weight.rows();
            assert_eq!((experts.shared.len(), experts.downs.len()), (shared, moe.experts.len() + 1));
            assert_eq!((experts.downs[0].rows(), experts.downs[moe.experts.len()].rows()), (experts.width, shared));
            assert_eq!(layer.activation_threshold.is_some(), activation == Activation::Silu);
            let mean = experts.shared.iter().sum::<f32>() / shared as f32;
            if activation == Activation::Silu {
                // SwiGLU neurons count as firing if they hold most of a token's output mass,
                // regardless of the activation threshold.
                assert!((0.3..1.0).contains(&mean), "{mean}");
                continue;
            }
            assert!((0.1..0.5).contains(&mean), "{mean}");
            let counts = &fired.0[n][moe.experts.len() * experts.width..];
            let mut differ = 0.0;
            for (frequency, count) in experts.shared.iter().zip(counts) {
                differ += (f64::from(*frequency) * tokens - *count as f64).abs();
            }
            let all = counts.iter().sum::<u64>() as f64;
            assert!(all > 0.0 && differ <= 0.01 * all, "{activation}, layer {n}: {differ} of {all}");
        }
    }
}
