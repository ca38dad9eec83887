//! The hidden activations of the chosen experts: `hidden[s, j] = f(gate[j] . x) * (up[j] . x)` if
//! `|f(gate[j] . x)| > threshold`, else 0, for pair `s` with expert `ids[s]` and
//! `x = x[s / pairs_per_row]`. An expert's rows `[rows, cols]` are its gates, then its ups. If the
//! outputs of the gates are known, an expert has up rows only.

use crate::{
    Access::{Read, Write},
    Kernel, WeightType,
    case::{CaseRequest, KernelCase, NEAR, SampleWeights, noise, sizes, wide},
    limits::{NO_NEURON, SPARSE_NEURONS},
    ops::activation::activate,
    params::params,
};

params! {
    /// `expert_gate_up`
    ExpertGateUp {
        /// Neurons of an expert.
        neurons: u32,
        /// Rows of an expert in the weights.
        rows: u32,
        /// Rows from a neuron's gate row to its up row. 0 if the gates are known.
        up_at: u32,
        /// 32-column chunks of a row of weights.
        chunks: u32,
        /// Pairs of a token and one of its experts.
        pairs: u32,
        /// Consecutive pairs that read the same row of the input.
        pairs_per_row: u32,
        /// Elements from one input row to the next; a multiple of 32, zero past the columns.
        x_pitch: u32,
        /// Elements from one pair's gates to the next's, if the gates are known.
        gates_pitch: u32,
        /// Elements from one pair's hidden activations to the next's.
        hidden_pitch: u32,
        /// The first bound expert.
        first_expert: u32,
        /// Number of bound experts.
        experts: u32,
        /// The first expert with bound biases.
        first_bias: u32,
        /// Workgroups in one row of the grid.
        stride: u32,
        /// A neuron's up row is not read if the magnitude of its gate's activation is at most this
        /// value.
        threshold: f32,
    }
}

/// The kernel `expert_gate_up`.
pub(crate) const KERNEL: Kernel = Kernel::new::<ExpertGateUp>(
    "expert_gate_up",
    &[Read, Read, Read, Read, Read, Read, Write],
    include_str!("expert_gate_up.wgsl"),
    cases,
)
.of_weights(&WeightType::ALL);

/// The hidden activation of a neuron. Its up value is not computed if the neuron is silent.
fn oracle(kind: u32, threshold: f32, gate: f64, up: impl FnOnce() -> f64) -> f64 {
    let fires = activate(kind, gate, None).abs() > f64::from(threshold);
    if fires { activate(kind, gate, Some(up())) } else { 0.0 }
}

/// A form of the operation, and its workgroups.
#[derive(Debug, Clone, Copy)]
struct ExpertGateUpForm {
    kind: u32,
    known: bool,
    bias: bool,
    threshold: f32,
    /// Invocations of a workgroup, and those that share the rows of a neuron.
    grid: [u32; 2],
}

const NEURONS: usize = 37;
/// Number of experts. The first and the last are not bound.
const EXPERTS: usize = 5;
/// Experts of the pairs. The last pair is not part of the dispatch.
const IDS: [u32; 8] = [3, 0, NO_NEURON, 1, 4, 2, 1, 3];

/// Activations with and without known gates, biases and silent neurons.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let forms = [
        (2, false, true, 0.3, [64, 32]),
        (0, false, false, 0.0, [96, 8]),
        (5, false, true, 0.0, [32, 32]),
        (6, false, false, 0.1, [128, 64]),
        (0, true, true, 0.0, [32, 8]),
        (2, true, false, 0.2, [64, 64]),
    ];
    let forms =
        forms.map(|(kind, known, bias, threshold, grid)| ExpertGateUpForm { kind, known, bias, threshold, grid });
    let of_form = |form: &ExpertGateUpForm| {
        let rows = if form.known { NEURONS } else { 2 * NEURONS };
        let weights = SampleWeights::new(request.ty, (EXPERTS - 2) * rows, 256, 6);
        let pairs_per_row = request.pick_of_type(&[1, 4], 1).iter();
        pairs_per_row.map(|pairs| case(&weights, form, *pairs)).collect::<Vec<_>>()
    };
    request.pick_of_type(&forms, 1).iter().flat_map(of_form).collect()
}

fn case(weights: &SampleWeights, form: &ExpertGateUpForm, pairs_per_row: usize) -> KernelCase {
    let ExpertGateUpForm { kind, known, bias: has_bias, threshold, grid: [workgroup, lanes] } = *form;
    let (rows, cols, pairs) = (weights.values.len() / weights.cols / (EXPERTS - 2), weights.cols, IDS.len() - 1);
    let (gates_pitch, hidden_pitch) = (NEURONS + 4, NEURONS + 3);
    let (x, gates) = (noise(IDS.len() / pairs_per_row * cols, 7), noise(IDS.len() * gates_pitch, 9));
    // Biases of all experts but the first.
    let bias = noise((EXPERTS - 1) * rows, 8);
    let before = vec![7.0_f32; IDS.len() * hidden_pitch];
    let mut hidden = wide(&before);
    let bound = IDS[..pairs].iter().enumerate().filter(|(_, id)| (1..EXPERTS as u32 - 1).contains(id));
    for (pair, id) in bound {
        let (x, first) = (&x[pair / pairs_per_row * cols..], (*id as usize - 1) * rows);
        let product =
            |row: usize| weights.product(first + row, x) + if has_bias { f64::from(bias[first + row]) } else { 0.0 };
        for (neuron, hidden) in hidden[pair * hidden_pitch..][..NEURONS].iter_mut().enumerate() {
            let gate = if known { f64::from(gates[pair * gates_pitch + neuron]) } else { product(neuron) };
            *hidden = oracle(kind, threshold, gate, || product(rows - NEURONS + neuron));
        }
    }
    debug_assert!(hidden.contains(&0.0), "some neurons are silent");
    let [neurons, rows, up_at, chunks] = sizes([NEURONS, rows, rows - NEURONS, cols / 32]);
    let params = ExpertGateUp {
        neurons,
        rows,
        up_at,
        chunks,
        pairs: pairs as u32,
        pairs_per_row: pairs_per_row as u32,
        x_pitch: cols as u32,
        gates_pitch: gates_pitch as u32,
        hidden_pitch: hidden_pitch as u32,
        first_expert: 1,
        experts: EXPERTS as u32 - 2,
        first_bias: 1,
        stride: 3,
        threshold,
    };
    let groups = neurons.div_ceil(SPARSE_NEURONS * workgroup / lanes);
    KernelCase::new("expert_gate_up", workgroup, params, [3, groups.div_ceil(3), IDS.len() as u32])
        .named(format!("{pairs_per_row} pairs per row, {form:?}"))
        .set("LANES", lanes)
        .set("KIND", kind)
        .set("GATES_KNOWN", known)
        .set("HAS_BIAS", has_bias)
        .matrix(weights)
        .input(&x)
        .input(&bias)
        .input(&IDS)
        .input(&gates)
        .input(&before)
        .becomes(&hidden, NEAR)
}
