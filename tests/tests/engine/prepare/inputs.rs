//! Input sparsity: thresholds from `prepare`, and passes that skip small inputs.

use thermocline_engine::{
    cpu::{InputPrecision, Isa},
    model::InputSite,
};

use super::*;

/// Returns a model with thresholds from `prepare`.
fn calibrated(model: &Arc<Model>) -> (Model, Prepared) {
    let folder = tempfile::tempdir().unwrap();
    let options = PrepareOptions { predictors: PredictorChoice::None, down: false, ..options(folder.path(), model) };
    let made = prepared(model, &options);
    let mut attached = Model::open(&model.checkpoint.path, &LoadOptions::default()).unwrap();
    attach(&mut attached, &SidecarChoice::File(options.out.clone()), ReadMode::Read).unwrap();
    (attached, made)
}

/// Returns the logits behind each token of `tokens`, computed one by one.
fn token_by_token(model: &Arc<Model>, mode: Sparsity, options: &CpuOptions, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut forward = Forward::new(Arc::clone(model), Cpu::new(options).unwrap());
    forward.set_sparsity(mode);
    let mut kv = forward.kv_cache(tokens.len(), KvType::F32).unwrap();
    tokens.iter().map(|id| forward.run(&[*id], &mut kv, Outputs::Last, &mut ()).unwrap().to_vec()).collect()
}

fn divergence(a: &[Vec<f32>], b: &[Vec<f32>]) -> f64 {
    let probabilities = |row: &[f32]| {
        let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
        row.iter().map(|x| f64::from(*x).exp() / sum).collect::<Vec<_>>()
    };
    let each = a.iter().zip(b).map(|(a, b)| {
        let pairs = probabilities(a).into_iter().zip(probabilities(b));
        pairs.map(|(p, q)| p * (p / q).ln()).sum::<f64>()
    });
    each.sum::<f64>() / a.len() as f64
}

/// Models with float and quantised weights, with experts, and with other kinds of layers in
/// between.
const MODELS: [&str; 5] = [
    "models/llama-silu-gqa",
    "gguf/llama-silu-gqa-256-Q4_0.gguf",
    "models/llama-relu-256",
    "models/mixtral",
    "models/qwen3_5",
];

#[test]
fn higher_levels_of_input_sparsity_cost_more_and_every_level_is_reached() {
    for name in MODELS {
        let model = fixture(name);
        let (attached, made) = calibrated(&model);
        assert_eq!(attached.weights.input_figures, made.sidecar.input_figures, "{name}");
        let figures = &made.sidecar.input_figures;
        assert_eq!(figures.iter().map(|of| of.level).collect::<Vec<_>>(), [0.25, 0.4, 0.5], "{name}");
        assert!(figures.windows(2).all(|pair| pair[0].kl <= pair[1].kl), "{name}: {figures:?}");
        assert!(figures.iter().all(|of| of.kl >= 0.0 && of.tokens > 100 && of.same_top <= 1.0), "{name}: {figures:?}");
        for (layer, weights) in attached.weights.layers.iter().enumerate() {
            let sites = InputSite::ALL.map(|site| site.inputs(weights) > 0 && weights.recurrent.is_none());
            let found = weights.input_curves.as_ref();
            let found = InputSite::ALL.map(|site| found.is_some_and(|of| of.sites[site as usize].is_some()));
            assert_eq!(found, sites, "{name} layer {layer}");
        }
        assert!(made.sidecar.layers.iter().any(|layer| layer.inputs.is_some()), "{name}");
    }
}

/// Passes at a level agree for every instruction set and number of threads, with or without
/// input-major copies of matrices. Lower levels are nearer to dense passes.
#[test]
fn passes_that_skip_inputs_agree_on_every_cpu() {
    for name in MODELS {
        let model = fixture(name);
        let tokens = &texts(&model, 1, 24)[0];
        let mut before = 0.0;
        for level in [0.05, 0.4, 0.7] {
            let (mut attached, _) = calibrated(&model);
            let copies = attached.skip_inputs(level).unwrap();
            assert_eq!(copies.bytes > 0, name.contains("Q4_0"), "{name}");
            let attached = Arc::new(attached);
            let float = CpuOptions { activations: InputPrecision::Float, ..CpuOptions::default() };
            let dense = token_by_token(&attached, Sparsity::Dense, &float, tokens);
            let wanted = token_by_token(&attached, Sparsity::Threshold, &float, tokens);
            let kl = divergence(&dense, &wanted);
            // Skipping few inputs may have no measurable effect.
            assert!(kl > before || level < 0.1 && kl == 0.0, "{name} at {level}: {kl}");
            before = kl;
            for isa in Isa::available() {
                for (threads, activations) in
                    [(1, InputPrecision::Float), (3, InputPrecision::Float), (3, InputPrecision::Int8)]
                {
                    let options = CpuOptions { threads: Some(threads), isa: Some(isa), activations };
                    let got = token_by_token(&attached, Sparsity::Threshold, &options, tokens);
                    // One CPU may skip an input at its threshold while another does not. Rounding
                    // moves many inputs across their thresholds.
                    let (rounding, part) = match activations {
                        InputPrecision::Int8 => {
                            (divergence(&dense, &token_by_token(&attached, Sparsity::Dense, &options, tokens)), 0.25)
                        }
                        InputPrecision::Float => (0.0, 0.1),
                    };
                    let off = divergence(&wanted, &got);
                    assert!(
                        off < 1e-3 + part * kl + 2.0 * rounding,
                        "{name} at {level}, {isa}, {threads} threads, {activations:?}: {off}, {kl} from dense"
                    );
                }
            }
        }
    }
}

/// If predictors or gates select the FFN's neurons, only inputs of attention are skipped. Dense
/// passes skip nothing.
#[test]
fn level_applies_to_attention_in_modes_that_skip_neurons() {
    let model = fixture("models/llama-relu-256");
    let tokens = &texts(&model, 1, 24)[0];
    let (mut attached, _) = calibrated(&model);
    let options = CpuOptions::default();
    let plain = token_by_token(&Arc::new(calibrated(&model).0), Sparsity::Dense, &options, tokens);
    attached.skip_inputs(0.5).unwrap();
    let mut only_attention = calibrated(&model).0;
    only_attention.skip_inputs(0.5).unwrap();
    for layer in &mut only_attention.weights.layers {
        let sites = &mut layer.skipped_inputs.as_mut().unwrap().sites;
        (sites[InputSite::Ffn as usize], sites[InputSite::Hidden as usize]) = (None, None);
    }
    let (attached, only_attention) = (Arc::new(attached), Arc::new(only_attention));
    assert_eq!(token_by_token(&attached, Sparsity::Dense, &options, tokens), plain);
    let exact = token_by_token(&attached, Sparsity::Exact, &options, tokens);
    let wanted = token_by_token(&only_attention, Sparsity::Threshold, &options, tokens);
    assert!(divergence(&wanted, &exact) < 1e-3, "{}", divergence(&wanted, &exact));
    assert!(divergence(&plain, &exact) > 10.0 * divergence(&wanted, &exact));
}

#[test]
fn levels_out_of_range_and_models_without_thresholds_are_refused() {
    let model = fixture("models/llama-silu-gqa");
    let mut plain = Model::open(&model.checkpoint.path, &LoadOptions::default()).unwrap();
    let refused = |model: &mut Model, level: f32, what: &str| {
        let error = model.skip_inputs(level).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(what), "{error}");
    };
    refused(&mut plain, 0.4, "thermocline prepare");
    let (mut attached, _) = calibrated(&model);
    for level in [0.0, -1.0, 0.9, f32::NAN, f32::INFINITY] {
        refused(&mut attached, level, "at most 0.75");
    }
    assert_eq!(attached.weights.input_level, None);
}
