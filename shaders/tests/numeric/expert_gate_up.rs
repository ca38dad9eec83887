//! Hidden activations of the chosen experts, without the up rows of silent neurons.

use bytemuck::{bytes_of, cast_slice};
use thermocline_shaders::{
    WeightType,
    limits::{NO_NEURON, SPARSE_NEURONS},
    params,
};

use crate::gpu::{Call, Gpu, activation, assert_close, bytes, noise, weights::Weights};

/// Number of experts with places. The first and the last are not bound.
const EXPERTS: usize = 5;
const NEURONS: usize = 37;
/// Elements from one pair to the next.
const GATES_PITCH: usize = NEURONS + 4;
const HIDDEN_PITCH: usize = NEURONS + 3;

/// Experts of the pairs.
const IDS: [u32; 8] = [3, 0, NO_NEURON, 1, 4, 2, 1, 3];

/// Form of a call: activation, whether gates are known, bias, threshold.
type Form = (u32, bool, bool, f32);

const FORMS: [Form; 6] = [
    (0, false, false, 0.0),
    (2, false, true, 0.3),
    (5, false, true, 0.0),
    (6, false, false, 0.1),
    (0, true, true, 0.0),
    (2, true, false, 0.2),
];

fn switch(on: bool) -> f64 {
    f64::from(u8::from(on))
}

/// Hidden activations of a pair. `product` gives the product with a row of the pair's expert. If
/// gates are known, all rows are up rows.
fn hidden(kind: u32, threshold: f32, known: Option<&[f32]>, product: impl Fn(usize) -> f64) -> Vec<f64> {
    let hidden = |neuron: usize| {
        let (gate, up) = match known {
            Some(gates) => (f64::from(gates[neuron]), product(neuron)),
            None => (product(neuron), product(NEURONS + neuron)),
        };
        let fires = activation(kind, gate, None).abs() > f64::from(threshold);
        if fires { activation(kind, gate, Some(up)) } else { 0.0 }
    };
    (0..NEURONS).map(hidden).collect()
}

#[test]
fn expert_gate_up_matches_its_equation() {
    let gpu = Gpu::get();
    for ty in WeightType::ALL {
        let every_way = matches!(ty, WeightType::F32 | WeightType::Q4_0);
        let forms = if every_way { &FORMS[..] } else { &FORMS[1..2] };
        let cols = ty.block().max(64);
        for (kind, known, with_bias, threshold) in forms.iter().copied() {
            let rows = NEURONS * if known { 1 } else { 2 };
            let weights = Weights::random(ty, (EXPERTS - 2) * rows, cols, 6);
            // Biases of all experts but the first.
            let bias = noise((EXPERTS - 1) * rows, 8);
            let gates = noise(IDS.len() * GATES_PITCH, 9);
            for pairs_per_row in [1, 4] {
                let x = noise(IDS.len() / pairs_per_row * cols, 7);
                let mut expected = vec![7.0; IDS.len() * HIDDEN_PITCH];
                for (pair, id) in IDS.iter().enumerate().filter(|(_, id)| (1..EXPERTS as u32 - 1).contains(id)) {
                    let x = &x[pair / pairs_per_row * cols..][..cols];
                    let product = |row: usize| {
                        let row = (*id as usize - 1) * rows + row;
                        let sum = weights.values[row * cols..][..cols].iter().zip(x).map(|(w, x)| w * f64::from(*x));
                        sum.sum::<f64>() + if with_bias { f64::from(bias[row]) } else { 0.0 }
                    };
                    let known = known.then(|| &gates[pair * GATES_PITCH..][..NEURONS]);
                    let hidden = hidden(kind, threshold, known, product);
                    expected[pair * HIDDEN_PITCH..][..NEURONS].copy_from_slice(&hidden);
                }
                assert!(expected.contains(&0.0), "{ty}: some neurons are silent");
                let hidden = vec![7.0_f32; expected.len()];
                let sizes = if every_way { &[(96, 8), (32, 32), (128, 64)][..] } else { &[(128, 32)] };
                for (tier, (workgroup, lanes)) in
                    gpu.tiers().into_iter().flat_map(|tier| sizes.iter().map(move |size| (tier, *size)))
                {
                    let groups = NEURONS.div_ceil((SPARSE_NEURONS * workgroup / lanes) as usize) as u32;
                    // The last pair is not part of the dispatch.
                    let pairs = IDS.len() as u32 - 1;
                    let mut expected = expected.clone();
                    expected[pairs as usize * HIDDEN_PITCH..].fill(7.0);
                    let [neurons, rows32, chunks, x_pitch] = [NEURONS, rows, cols / 32, cols].map(|n| n as u32);
                    let params = params::ExpertGateUp {
                        neurons,
                        rows: rows32,
                        up_at: rows32 - neurons,
                        chunks,
                        pairs,
                        pairs_per_row: pairs_per_row as u32,
                        x_pitch,
                        gates_pitch: GATES_PITCH as u32,
                        hidden_pitch: HIDDEN_PITCH as u32,
                        first_expert: 1,
                        experts: EXPERTS as u32 - 2,
                        first_bias: 1,
                        stride: 3,
                        threshold,
                    };
                    let call = Call {
                        kernel: "expert_gate_up",
                        tier,
                        weights: Some(ty),
                        overrides: &[
                            ("WORKGROUP_SIZE", f64::from(workgroup)),
                            ("LANES", f64::from(lanes)),
                            ("KIND", f64::from(kind)),
                            ("GATES_KNOWN", switch(known)),
                            ("HAS_BIAS", switch(with_bias)),
                        ],
                        params: bytes_of(&params),
                        buffers: &[
                            cast_slice(&weights.main),
                            cast_slice(&weights.aux),
                            bytes(&x),
                            bytes(&bias),
                            cast_slice(&IDS),
                            bytes(&gates),
                            bytes(&hidden),
                        ],
                        workgroups: (3, groups.div_ceil(3), IDS.len() as u32),
                    };
                    let what = format!("{ty} {tier} {workgroup}/{lanes}, activation {kind}, {pairs_per_row} per row");
                    assert_close(&gpu.run(&call, 6), &expected, 2e-4, &what);
                }
            }
        }
    }
}
