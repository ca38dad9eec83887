//! Hidden activations of listed neurons: `hidden[n] = f(gate . x) * (up . x)` with the rows of
//! neuron `n`, or `f(up . x)` without a gate, with optional biases. Rows of gates and ups may
//! alternate or be stacked. With `GATE_FIRST`, neurons with `|f(gate . x)| <= threshold` are 0.
//! With `SCALED`, the neuron's scale multiplies `|f(gate . x)|` first. The hidden activations of
//! other neurons do not change.

use crate::{
    Access::{Read, Write},
    Kernel, WeightType,
    case::{CaseRequest, KernelCase, NEAR, SampleWeights, has, noise, sizes},
    limits::SPARSE_NEURONS,
    ops::{
        activation::activate,
        slot_list::{self, SlotList},
    },
    params::params,
};

params! {
    /// `sparse_gate_up`
    SparseGateUp {
        /// 32-column chunks of a row of weights.
        chunks: u32,
        /// Rows from one neuron's first row to the next's.
        step: u32,
        /// Rows from a neuron's gate row to its up row. 0 without a gate.
        up_at: u32,
        /// Workgroups in one row of the grid, as in [`SlotList`](super::SlotList).
        stride: u32,
        /// Number of neurons, if there is no list of neurons.
        count: u32,
        /// With `GATE_FIRST`, a neuron's up row is not read if the magnitude of its gate's
        /// activation, with `SCALED` times the neuron's scale, is at most this value.
        threshold: f32,
    }
}

/// The kernel `sparse_gate_up`.
pub(crate) const KERNEL: Kernel = Kernel::new::<SparseGateUp>(
    "sparse_gate_up",
    &[Read, Read, Read, Read, Read, Read, Write],
    include_str!("sparse_gate_up.wgsl"),
    cases,
)
.of_weights(&WeightType::ALL);

/// Layout of a neuron's rows, and how the work is divided.
#[derive(Debug)]
struct SparseGateUpForm {
    kind: u32,
    /// Names of overrides. With `ALTERNATE`, gate and up rows of a neuron alternate. Otherwise all
    /// up rows follow all gate rows.
    options: &'static str,
    /// A neuron's up row is not read if its gate's activation is at most this value.
    threshold: Option<f32>,
    workgroup: u32,
    lanes: u32,
}

const FORMS: [SparseGateUpForm; 10] = [
    form([2, 64, 32], "GATED HAS_BIAS ALTERNATE SCALED", Some(0.3)),
    form([2, 64, 32], "GATED HAS_BIAS ALTERNATE", Some(0.3)),
    form([0, 96, 8], "GATED", None),
    form([2, 32, 32], "GATED HAS_BIAS ALTERNATE", None),
    form([5, 128, 64], "GATED", None),
    form([0, 64, 32], "HAS_BIAS", None),
    form([1, 32, 32], "", None),
    form([0, 96, 8], "GATED HAS_BIAS ALTERNATE", Some(0.0)),
    form([5, 128, 64], "GATED", Some(0.0)),
    form([1, 32, 32], "GATED ALTERNATE", Some(0.0)),
];

/// A form of kind, workgroup and lanes.
const fn form(sizes: [u32; 3], options: &'static str, threshold: Option<f32>) -> SparseGateUpForm {
    let [kind, workgroup, lanes] = sizes;
    SparseGateUpForm { kind, options, threshold, workgroup, lanes }
}

const NEURONS: usize = 150;
/// Contents of the output before the dispatch.
const BEFORE: f32 = 7.0;

/// Weights with the sums of all rows.
struct Layer {
    weights: SampleWeights,
    x: Vec<f32>,
    bias: Vec<f32>,
    scales: Vec<f32>,
    sums: Vec<f64>,
}

/// True for a neuron that is computed.
type IsActive = fn(usize) -> bool;

/// Lists of some neurons, of all, of one and of none, and neurons without a list.
const LISTS: [(bool, IsActive); 5] =
    [(true, |it| it * 11 % 7 < 2), (true, |_| true), (true, |it| it == 149), (true, |_| false), (false, |it| it < 77)];

/// The cases of all lists, in short and long rows.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let mut cases = Vec::new();
    for cols in request.pick(&[512_usize, 1, 160], 1) {
        let weights = SampleWeights::new(request.ty, 2 * NEURONS, cols.next_multiple_of(request.ty.block()), 6);
        let (x, bias) = (noise(weights.cols, 7), noise(2 * NEURONS, 8));
        let sums = (0..2 * NEURONS).map(|row| weights.product(row, &x)).collect();
        let scales = noise(NEURONS, 9).iter().map(|scale| 1.0 + scale).collect();
        let layer = Layer { weights, x, bias, scales, sums };
        for form in request.pick_of_type(&FORMS, 1) {
            let lists = request.pick(&LISTS, 1).iter();
            cases.extend(lists.map(|(listed, active)| layer.case(form, *listed, *active)));
        }
    }
    cases
}

impl Layer {
    fn oracle(&self, form: &SparseGateUpForm, neuron: usize) -> f64 {
        let out =
            |row: usize| self.sums[row] + if has(form.options, "HAS_BIAS") { f64::from(self.bias[row]) } else { 0.0 };
        let [step, up_at] = form.rows();
        let (gate, up) = (out(neuron * step), out(neuron * step + up_at));
        let alone = activate(form.kind, gate, None);
        let scale = if has(form.options, "SCALED") { f64::from(self.scales[neuron]) } else { 1.0 };
        match form.threshold {
            Some(threshold) if alone.abs() * scale <= f64::from(threshold) => 0.0,
            _ if has(form.options, "GATED") => activate(form.kind, gate, Some(up)),
            _ => alone,
        }
    }

    /// The case of the `active` neurons, which are the first ones if they are not `listed`.
    fn case(&self, form: &SparseGateUpForm, listed: bool, active: IsActive) -> KernelCase {
        let SparseGateUpForm { kind, options, threshold, workgroup, lanes } = *form;
        let active: Vec<bool> = (0..NEURONS).map(active).collect();
        // The last element belongs to no neuron.
        let mut hidden = vec![f64::from(BEFORE); NEURONS + 1];
        for (neuron, hidden) in hidden.iter_mut().take(NEURONS).enumerate().filter(|(neuron, _)| active[*neuron]) {
            *hidden = self.oracle(form, neuron);
        }
        let mut list = slot_list::oracle(&active);
        let (neurons, stride) = (list[0], 7);
        let groups = slot_list::grid(neurons, &SlotList { per_workgroup: SPARSE_NEURONS * workgroup / lanes, stride });
        // Words after the list are ignored. Without a list, all are.
        if listed {
            list.push(u32::MAX)
        } else {
            list.fill(u32::MAX)
        }
        let count = if listed { 0 } else { neurons };
        let [step, up_at, chunks] = sizes([form.rows()[0], form.rows()[1], self.weights.cols / 32]);
        let params = SparseGateUp { chunks, step, up_at, stride, count, threshold: threshold.unwrap_or(0.0) };
        KernelCase::new("sparse_gate_up", workgroup, params, groups)
            .named(format!("{chunks} chunks, {neurons} neurons, listed {listed}, {form:?}"))
            .indirect()
            .set("LANES", lanes)
            .set("KIND", kind)
            .switches(&["GATED", "HAS_BIAS", "SCALED"], options)
            .set("LISTED", listed)
            .set("GATE_FIRST", threshold.is_some())
            .matrix(&self.weights)
            .input(&self.x)
            .input(&list)
            .input(&self.bias)
            .input(&self.scales)
            .input(&[BEFORE; NEURONS + 1])
            .becomes(&hidden, NEAR)
    }
}

impl SparseGateUpForm {
    /// Rows from a neuron's first row to the next neuron's, and from its gate to its up.
    fn rows(&self) -> [usize; 2] {
        match (has(self.options, "GATED"), has(self.options, "ALTERNATE")) {
            (false, _) => [1, 0],
            (true, true) => [2, 1],
            (true, false) => [1, NEURONS],
        }
    }
}
