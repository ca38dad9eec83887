//! Property of the sidecar reader, on raw bytes and on a valid sidecar with damage at places that
//! the fuzzer chooses. The reader accepts or refuses a file. A model accepts or refuses each
//! sidecar that was read, and the writer reproduces it unchanged.

use std::{path::Path, sync::LazyLock};

use thermocline_engine::{
    format::Bytes,
    model::{Down, Ffn, LayerWeights, LoadOptions, Model, PredictorInput, PredictorQuality},
    sparsity::sidecar::{
        Identity, PreparedBundles, PreparedDown, PreparedLayer, PreparedPredictor, PreparedThreshold, Provenance,
        Sidecar,
    },
};

const MODEL: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/powerinfer/llama-relu-q4_0.powerinfer.gguf");

fn model() -> Model {
    Model::open(Path::new(MODEL), &LoadOptions::default()).expect("a fixture")
}

/// A valid sidecar of the model, with all parts except predictors and experts of its own.
static GOOD: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let model = model();
    let predictor = PreparedPredictor {
        kind: None,
        input: PredictorInput::Residual,
        threshold: 0.5,
        quality: PredictorQuality { recall: 0.9, mass_recall: 0.9, precision: 0.5, density: 0.2 },
    };
    let layer = |weights: &LayerWeights| {
        let Ffn::Dense(ffn) = &weights.ffn else { unreachable!("the layers of the fixture are dense") };
        let Down::Neurons(down) = &ffn.down else { unreachable!("the fixture has rows of neurons") };
        PreparedLayer {
            frequency: Some(vec![0.5; model.config.n_ff]),
            predictor: Some(predictor.clone()),
            activation_threshold: Some(PreparedThreshold { value: 0.1, density: 0.5 }),
            gate_scales: Some(vec![0.5; model.config.n_ff]),
            inputs: None,
            down: Some(PreparedDown { weight: down.weight.clone(), error: 0.0 }),
            bundles: Some(PreparedBundles::of(ffn, &down.weight, true).expect("layers with gates")),
            experts: None,
        }
    };
    let sidecar = Sidecar {
        path: "fuzz".into(),
        identity: Identity::of_model(&model),
        provenance: Provenance {
            activation: model.config.activation,
            corpus: "fuzz".to_owned(),
            tokens_profiled: 2,
            tokens_held_out: 1,
            target_recall: 0.95,
            target_mass_recall: 0.99,
        },
        layers: model.weights.layers.iter().map(layer).collect(),
        input_figures: Vec::new(),
    };
    sidecar.to_bytes().expect("a file")
});

/// Checks the property on one input.
pub fn check(input: &[u8]) {
    let bytes = match input.split_first() {
        Some((b'D', damage)) => {
            let mut bytes = GOOD.clone();
            for at in damage.as_chunks::<4>().0 {
                let place = usize::from(u16::from_le_bytes([at[0], at[1]])) % bytes.len();
                bytes[place] = at[2];
            }
            bytes
        }
        _ => input.to_vec(),
    };
    let Ok(sidecar) = Sidecar::from_bytes(Path::new("fuzz"), Bytes::new(bytes)) else { return };
    let written = sidecar.to_bytes().expect("what was read can be written");
    let again = Sidecar::from_bytes(Path::new("fuzz"), Bytes::new(written.clone())).expect("what was written is read");
    assert!(again.to_bytes().expect("a file") == written);
    let mut model = model();
    if sidecar.foreign(&model).is_none() && sidecar.attach(&mut model).is_ok() {
        assert_eq!(model.weights.layers.len(), sidecar.layers.len());
    }
}
