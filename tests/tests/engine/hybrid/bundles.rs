//! Models whose sidecar contains bundles: rows that do not follow one another.

use thermocline_engine::{
    format::Bytes,
    model::{Down, LayerWeights},
    sparsity::sidecar::{Identity, PreparedBundles, PreparedDown, PreparedLayer, Provenance, Sidecar},
};

use super::{placements::every_placement_of, *};

/// Returns the model at `path` with a sidecar that has bundles of all layers.
fn bundled(path: &str) -> Arc<Model> {
    let mut model = Model::open(&here(path), &LoadOptions::default()).unwrap();
    let layer = |weights: &LayerWeights| {
        let Ffn::Dense(ffn) = &weights.ffn else { panic!("{path}: not dense") };
        let Down::Neurons(down) = &ffn.down else { panic!("{path}: not neuron-major") };
        PreparedLayer {
            down: Some(PreparedDown { weight: down.weight.clone(), error: 0.0 }),
            bundles: PreparedBundles::of(ffn, &down.weight, weights.predictor.is_some()),
            ..PreparedLayer::default()
        }
    };
    let sidecar = Sidecar {
        path: "bundles".into(),
        identity: Identity::of_model(&model),
        provenance: Provenance {
            activation: model.config.activation,
            corpus: "none".to_owned(),
            tokens_profiled: 1,
            tokens_held_out: 0,
            target_recall: 0.95,
            target_mass_recall: 0.99,
        },
        layers: model.weights.layers.iter().map(layer).collect(),
        input_figures: Vec::new(),
    };
    let bytes = Bytes::new(sidecar.to_bytes().unwrap());
    Sidecar::from_bytes(Path::new("bundles"), bytes).unwrap().attach(&mut model).unwrap();
    for layer in &model.weights.layers {
        let Ffn::Dense(ffn) = &layer.ffn else { panic!("{path}: not dense") };
        assert!(!ffn.up.weight.is_contiguous() && !ffn.down.linear().weight.is_contiguous());
    }
    Arc::new(model)
}

#[test]
fn placements_of_a_model_with_bundles_do_not_change_logits() {
    let (with, without) = (bundled(POWERINFER), model(POWERINFER));
    let ids = ids(&with, 44);
    let [with_bundles, wanted] = [&with, &without].map(|model| {
        let mut scalar = golden::forward(model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
        logits(&mut scalar, &ids, 5)
    });
    assert!(with_bundles == wanted, "other bits on the CPU");
    every_placement_of("a model with bundles", &with, FULL, &[Sparsity::Dense, Sparsity::Exact]);
}
