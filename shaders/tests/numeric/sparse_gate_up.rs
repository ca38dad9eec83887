//! Hidden activations of a list of neurons, with the grid that the list requires.

use bytemuck::{bytes_of, cast_slice};
use thermocline_shaders::{WeightType, limits::SPARSE_NEURONS, params};

use crate::gpu::{
    Call, Gpu, activation, assert_close, bytes, noise,
    weights::{Weights, grids_of},
};

const NEURONS: usize = 150;

/// Layout of a neuron's rows.
#[derive(Debug, Clone, Copy)]
struct Form {
    kind: u32,
    gated: bool,
    bias: bool,
    step: usize,
    up_at: usize,
    /// A neuron's up row is not read if its gate's activation is at most this value.
    threshold: Option<f32>,
}

const FORMS: [Form; 8] = [
    Form { kind: 0, gated: true, bias: false, step: 1, up_at: NEURONS, threshold: None },
    Form { kind: 2, gated: true, bias: true, step: 2, up_at: 1, threshold: None },
    Form { kind: 5, gated: true, bias: false, step: 1, up_at: NEURONS, threshold: None },
    Form { kind: 0, gated: false, bias: true, step: 1, up_at: 0, threshold: None },
    Form { kind: 1, gated: false, bias: false, step: 1, up_at: 0, threshold: None },
    Form { kind: 0, gated: true, bias: true, step: 2, up_at: 1, threshold: Some(0.0) },
    Form { kind: 5, gated: true, bias: false, step: 1, up_at: NEURONS, threshold: Some(0.0) },
    Form { kind: 2, gated: true, bias: false, step: 2, up_at: 1, threshold: Some(0.3) },
];

const SIZES: [(u32, u32); 3] = [(96, 8), (32, 32), (128, 64)];

#[test]
fn sparse_gate_up_matches_its_equation() {
    let gpu = Gpu::get();
    let every: Vec<u32> = (0..NEURONS as u32).collect();
    let some: Vec<u32> = (0..NEURONS as u32).filter(|i| i * 11 % 7 < 2).collect();
    for (ty, blocks) in WeightType::ALL.into_iter().flat_map(|ty| [(ty, 1), (ty, 5)]) {
        let cols = blocks * ty.block();
        let weights = Weights::random(ty, 2 * NEURONS, cols, 6);
        let (x, bias) = (noise(cols, 7), noise(2 * NEURONS, 8));
        let (forms, sizes) = (grids_of(ty, &FORMS), grids_of(ty, &SIZES));
        let row = |row: usize| {
            let products = weights.values[row * cols..][..cols].iter().zip(&x);
            products.map(|(w, x)| w * f64::from(*x)).sum::<f64>()
        };
        for (form, list) in forms.iter().flat_map(|form| [&every[..], &some, &[149], &[]].map(|list| (form, list))) {
            let out = |row_of: usize| row(row_of) + if form.bias { f64::from(bias[row_of]) } else { 0.0 };
            let hidden = |neuron: &u32| {
                let first = *neuron as usize * form.step;
                let up = out(first + form.up_at);
                if let Some(threshold) = form.threshold
                    && activation(form.kind, out(first), None).abs() <= f64::from(threshold)
                {
                    return 0.0;
                }
                if form.gated { activation(form.kind, out(first), Some(up)) } else { activation(form.kind, up, None) }
            };
            // One more element, which must not be changed, like the elements of neurons that are
            // not listed.
            let mut expected = vec![7.0; NEURONS + 1];
            list.iter().for_each(|neuron| expected[*neuron as usize] = hidden(neuron));
            let listed: Vec<u32> = [list.len() as u32].iter().chain(list).copied().chain([u32::MAX]).collect();
            for (tier, (workgroup, lanes)) in
                gpu.tiers().into_iter().flat_map(|tier| sizes.iter().map(move |size| (tier, *size)))
            {
                let per_workgroup = SPARSE_NEURONS * workgroup / lanes;
                let wanted = (list.len() as u32).div_ceil(per_workgroup);
                let stride = 7;
                let grid = [wanted.min(stride), wanted.div_ceil(stride).max(1), 1];
                let [step, up_at] = [form.step, form.up_at].map(|v| v as u32);
                let params = params::SparseGateUp {
                    chunks: cols as u32 / 32,
                    step,
                    up_at,
                    stride,
                    count: 0,
                    threshold: form.threshold.unwrap_or(0.0),
                };
                let switch = |on| f64::from(u8::from(on));
                let hidden = vec![7.0_f32; expected.len()];
                let call = Call {
                    kernel: "sparse_gate_up",
                    tier,
                    weights: Some(ty),
                    overrides: &[
                        ("WORKGROUP_SIZE", f64::from(workgroup)),
                        ("LANES", f64::from(lanes)),
                        ("KIND", f64::from(form.kind)),
                        ("GATED", switch(form.gated)),
                        ("HAS_BIAS", switch(form.bias)),
                        ("GATE_FIRST", switch(form.threshold.is_some())),
                    ],
                    params: bytes_of(&params),
                    buffers: &[
                        cast_slice(&weights.main),
                        cast_slice(&weights.aux),
                        bytes(&x),
                        cast_slice(&listed),
                        bytes(&bias),
                        bytes(&hidden),
                    ],
                    workgroups: (0, 0, 0),
                };
                let [hidden] = gpu.run_over(&call, &grid, [5]);
                let what = format!("{ty} {} of {cols} columns {tier} {workgroup}/{lanes} {form:?}", list.len());
                assert_close(&bytemuck::cast_vec::<u32, f32>(hidden), &expected, 2e-4, &what);
            }
        }
    }
}
