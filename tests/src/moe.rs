//! An MoE model with more and narrower experts than the fixture, with biases and a shared expert.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use thermocline_engine::{
    format::{Bytes, Matrix},
    model::{Down, ExpertWeights, Experts, Ffn, FfnWeights, Linear, LoadOptions, Model, Router, SharedExpert},
    quant::TensorType,
};

use crate::dice::Dice;

/// Returns a model like the fixture with more and narrower experts, biases, and a shared expert
/// that every token uses.
pub fn wide() -> Model {
    const COUNT: usize = 12;
    const WIDTH: usize = 72;
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models/mixtral");
    let mut model = Model::open(&fixture, &LoadOptions::default()).unwrap();
    let (d, dice) = (model.config.d_model, &mut Dice(3));
    let mut noise = |scale: f32| (dice.below(20_001) as f32 / 10_000.0 - 1.0) * scale;
    let mut linear = |rows: usize, cols: usize, scale: f32| {
        let bytes = (0..rows * cols).flat_map(|_| noise(scale).to_le_bytes()).collect::<Vec<u8>>();
        let weight = Matrix::new(TensorType::F32, rows, cols, Bytes::new(bytes)).unwrap();
        Linear { weight, bias: Some((0..rows).map(|_| noise(0.1)).collect()) }
    };
    let mut expert = |width: usize| FfnWeights {
        gate: Some(linear(width, d, 0.2)),
        up: linear(width, d, 0.2),
        down: Down::Outputs(linear(d, width, 0.2)),
        bundled_gate: None,
        limit: None,
        gate_scales: None,
    };
    for layer in &mut model.weights.layers {
        let shared = expert(2 * WIDTH);
        let gate = FfnWeights { gate: None, ..expert(1) }.up;
        let router = FfnWeights { gate: None, ..expert(COUNT) }.up;
        let experts = (0..COUNT).map(|_| expert(WIDTH)).collect();
        layer.ffn = Ffn::Experts(ExpertWeights {
            router_norm: None,
            scale: None,
            router,
            selection_bias: None,
            latent: None,
            experts,
            shared: Some(Box::new(SharedExpert { gate: Some(gate), ffn: shared })),
            file_down: Vec::new(),
        });
    }
    model.config.experts = Some(Experts { count: COUNT, used: 3, router: Router::softmax(false), n_ff: WIDTH });
    model
}
