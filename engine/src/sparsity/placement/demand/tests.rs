//! What a model asks for is what kernels read.

use std::path::Path;

use super::{
    super::{Machine, Placement, Plan},
    *,
};
use crate::{gpu::Caps, model::LoadOptions, sparsity::measure::caps_of};

#[test]
fn down_projections_without_a_row_per_neuron_are_read_whole() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/llama-relu");
    let model = Model::open(&path, &LoadOptions::default()).unwrap();
    let (turned_model, _) = model.neuron_major_outline().unwrap();
    let (machine, caps): (Machine, Caps) = (Machine::typical(), caps_of(Machine::typical_limits()));
    let priced = |turned, fires: f32, place: fn(&Demand) -> Placement| {
        let (sparsity, kv_type) = (Sparsity::Exact, KvType::F16);
        let model = if turned { &turned_model } else { &model };
        let bytes = DeviceBytes::of(&caps, model, 16, kv_type).unwrap();
        let options = DemandOptions { context: 64, sessions: 1, kv_type, sparsity, filled: None };
        let mut demand = Demand::of(model, &bytes, &options).unwrap();
        for layer in &mut demand.layers {
            layer.sort(&vec![fires; layer.neurons()], 1.0);
        }
        Plan::of(&demand, &machine, place(&demand)).layers[0].time.seconds
    };
    let Ffn::Dense(ffn) = &model.weights.layers[0].ffn else { panic!() };
    let (Down::Outputs(down), cpu) = (&ffn.down, |demand: &Demand| Placement::cpu(demand.layers.len())) else {
        panic!()
    };
    let down = all(&down.weight);
    let gpu = machine.gpu.as_ref().unwrap();
    let alone = down.cpu as f64 / machine.cpu.rate(down.ty).sequential;
    let there = down.device as f64 / gpu.rate(down.ty).sequential;
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-6;
    // However little fires, all of it is read, on whichever side.
    for (place, whole) in [(cpu as fn(&Demand) -> Placement, alone), (Placement::all, there)] {
        assert!(near(priced(false, 0.0, place) - priced(true, 0.0, place), whole));
        // And if everything does, it makes no difference.
        assert!(near(priced(false, 1.0, place), priced(true, 1.0, place)));
    }
}
