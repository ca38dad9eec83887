//! Kernels of elementwise and row operations: norms, activations, sums, scaled and gated rows, the
//! shortlist, the test of reductions.

use thermocline_shaders::params;

use super::case::{CLOSE, Case, NEAR, noise, unpadded};
use crate::device::elementwise::kind;
use thermocline_cpu::{
    Cpu,
    ops::{Activation, softplus, top_k},
};

/// Rows, elements per row, and elements between the starts of rows. None is a multiple of a
/// workgroup.
const ROWS: usize = 3;
const COLS: usize = 129;
const PITCH: usize = 160;
/// Invocations per workgroup, and workgroups that cover all elements in two rows of a grid.
const WORKGROUP: u32 = 64;
const FLAT: [u32; 3] = [4, 2, 1];
const STRIDE: u32 = FLAT[0] * WORKGROUP;

/// An activation far larger than its neighbours and than the largest half.
pub(super) const OUTLIER: f32 = 1e5;

pub(super) fn cases(cpu: &Cpu) -> Vec<Case> {
    let mut cases = norms(cpu);
    cases.extend(activations(cpu));
    cases.extend([add(cpu), scale(cpu), gated_input(cpu), soft_cap(cpu), gate_excess(cpu), shortlist()]);
    cases.extend(gates_of_heads(cpu));
    cases.extend([reads(), reductions(), half_scales()]);
    cases
}

fn sizes() -> [u32; 3] {
    [COLS, PITCH, ROWS].map(|n| n as u32)
}

fn elements() -> params::Elements {
    let [cols, pitch, rows] = sizes();
    params::Elements { cols, pitch, rows, stride: STRIDE }
}

/// Scales of rows for products of halves: a row with an outlier, a row of zeros, and a row of small
/// numbers. Elements after the columns are ignored.
fn half_scales() -> Case {
    let (chunks, pitch) = (4, PITCH);
    let mut x = noise(ROWS * pitch, 9);
    for (row, largest) in x.chunks_exact_mut(pitch).zip([OUTLIER, 0.0, 3e-4]) {
        row.iter_mut().for_each(|value| *value *= largest / 2.0);
        row[77] = -largest;
        row[chunks * 32..].fill(f32::MAX);
    }
    // The largest powers of two up to each row's largest value: 2^16, none, 2^-12.
    let factors = [(-2_i32, 2_i32), (114, -114), (26, -26)];
    let bits = |power: i32| 2_f32.powi(power).to_bits();
    let expected: Vec<u32> = factors.iter().flat_map(|(to, from)| [bits(*to), bits(*from)]).collect();
    let params = params::HalfScale { chunks: chunks as u32, x_pitch: pitch as u32 };
    Case::new("half_scale", WORKGROUP, params, [ROWS as u32, 1, 1]).floats(&x).changes_words(&[0; 2 * ROWS], &expected)
}

/// RMS norm of a sum with an outlier, and layer norm of values far from zero.
fn norms(cpu: &Cpu) -> Vec<Case> {
    let [cols, pitch, rows] = sizes();
    let eps = 1e-5;
    let params = params::Norm { cols, pitch, rows, stride: 2, eps };
    let (delta, weight, bias) = (noise(ROWS * PITCH, 2), noise(PITCH, 3), noise(PITCH, 4));
    let mut x = noise(ROWS * PITCH, 1);
    x[7] = OUTLIER;
    let mut sums = unpadded(&x, PITCH, COLS);
    cpu.add(&mut sums, &unpadded(&delta, PITCH, COLS));
    let mut normed = sums.clone();
    cpu.rms_norm(&mut normed, None, &weight[..COLS], eps);
    let out = vec![0.0; ROWS * PITCH];
    let rms = Case::new("norm", WORKGROUP, params, [2, 2, 1])
        .set("ADD_DELTA", 1)
        .rows(&x, PITCH, &sums, COLS, CLOSE)
        .floats(&delta)
        .floats(&weight)
        .floats(&bias)
        .rows(&out, PITCH, &normed, COLS, NEAR);
    let x: Vec<f32> = noise(ROWS * PITCH, 5).iter().map(|value| value + 30.0).collect();
    let mut normed = unpadded(&x, PITCH, COLS);
    cpu.layer_norm(&mut normed, None, &weight[..COLS], Some(&bias[..COLS]), eps);
    let layer = Case::new("norm", WORKGROUP, params, [2, 2, 1])
        .set("LAYER", 1)
        .set("HAS_BIAS", 1)
        .floats(&x)
        .floats(&delta)
        .floats(&weight)
        .floats(&bias)
        .rows(&out, PITCH, &normed, COLS, 1e-3);
    vec![rms, layer]
}

/// Every activation with gates, up to where its exponentials saturate. Gates at or below a
/// threshold give zero.
fn activations(cpu: &Cpu) -> Vec<Case> {
    let [cols, pitch, rows] = sizes();
    let case = |form: Activation| {
        let threshold = 0.25;
        let params = params::Activation { cols, pitch, rows, stride: STRIDE, threshold };
        let mut input: Vec<f32> = noise(ROWS * 2 * PITCH, 5).iter().map(|value| value * 60.0).collect();
        input[3] = if form == Activation::ReluSquared { 100.0 } else { OUTLIER };
        let part = |at: usize| -> Vec<f32> {
            input.chunks_exact(2 * PITCH).flat_map(|row| &row[at * COLS..][..COLS]).copied().collect()
        };
        let (gates, ups) = (part(0), part(1));
        let (mut alone, mut hidden) = (gates.clone(), gates);
        cpu.activate(form, &mut alone, None);
        cpu.activate(form, &mut hidden, Some(&ups));
        hidden.iter_mut().zip(&alone).filter(|(_, gate)| gate.abs() <= threshold).for_each(|(value, _)| *value = 0.0);
        Case::new("activation", WORKGROUP, params, FLAT).set("KIND", kind(form)).set("GATED", 1).floats(&input).rows(
            &[0.0; ROWS * PITCH],
            PITCH,
            &hidden,
            COLS,
            NEAR,
        )
    };
    Activation::ALL.into_iter().map(case).collect()
}

fn add(cpu: &Cpu) -> Case {
    let (x, delta) = (noise(ROWS * PITCH, 7), noise(ROWS * PITCH, 8));
    let mut sums = unpadded(&x, PITCH, COLS);
    cpu.add(&mut sums, &unpadded(&delta, PITCH, COLS));
    Case::new("add", WORKGROUP, elements(), FLAT).rows(&x, PITCH, &sums, COLS, CLOSE).floats(&delta)
}

fn scale(cpu: &Cpu) -> Case {
    let [cols, pitch, rows] = sizes();
    let params = params::Scale { cols, pitch, rows, stride: STRIDE, factor: 1.5 };
    let (x, delta) = (noise(ROWS * PITCH, 9), noise(ROWS * PITCH, 10));
    let mut scaled = unpadded(&x, PITCH, COLS);
    cpu.add_scaled(&mut scaled, &unpadded(&delta, PITCH, COLS), 0.5);
    cpu.scale(&mut scaled, 1.5);
    Case::new("scale", WORKGROUP, params, FLAT)
        .set("ADD_DELTA", 1)
        .set("DELTA_SCALE", 0.5)
        .rows(&x, PITCH, &scaled, COLS, CLOSE)
        .floats(&delta)
}

fn gated_input(cpu: &Cpu) -> Case {
    let [cols, pitch, rows] = sizes();
    let first = 7;
    let params = params::GatedInput { cols, pitch, rows, stride: STRIDE, first };
    let (gates, input) = (noise(ROWS * PITCH, 11), noise(first as usize + ROWS * COLS, 12));
    let mut wanted = unpadded(&gates, PITCH, COLS);
    cpu.activate(Activation::GeluTanh, &mut wanted, Some(&input[first as usize..]));
    Case::new("gated_input", WORKGROUP, params, FLAT)
        .set("KIND", kind(Activation::GeluTanh))
        .floats(&gates)
        .floats(&input)
        .rows(&[0.0; ROWS * PITCH], PITCH, &wanted, COLS, NEAR)
}

fn soft_cap(cpu: &Cpu) -> Case {
    let [cols, pitch, rows] = sizes();
    let params = params::SoftCap { cols, pitch, rows, stride: STRIDE, cap: 30.0 };
    let mut y: Vec<f32> = noise(ROWS * PITCH, 31).iter().map(|value| value * 100.0).collect();
    y[1] = OUTLIER;
    let mut capped = unpadded(&y, PITCH, COLS);
    cpu.soft_cap(&mut capped, 30.0);
    Case::new("soft_cap", WORKGROUP, params, FLAT).rows(&y, PITCH, &capped, COLS, NEAR)
}

fn gate_excess(cpu: &Cpu) -> Case {
    let [cols, pitch, rows] = sizes();
    let params = params::GateExcess { cols, pitch, rows, stride: 2, deviations: 0.8 };
    let gates: Vec<f32> = noise(ROWS * PITCH, 5).iter().map(|value| value * 4.0 + 1.0).collect();
    let mut wanted = unpadded(&gates, PITCH, COLS);
    cpu.gate_excess(&mut wanted, COLS, 0.8);
    Case::new("gate_excess", WORKGROUP, params, [2, 2, 1]).rows(&gates, PITCH, &wanted, COLS, NEAR)
}

/// Gates that follow the queries of their heads, through a sigmoid; and separate gates, through a
/// softplus.
fn gates_of_heads(cpu: &Cpu) -> Vec<Case> {
    let (heads, dim, pitch) = (3, 43, 160_usize);
    let gate_pitch = 2 * heads * dim + 20;
    let (x, mut gates) = (noise(ROWS * pitch, 1), noise(ROWS * gate_pitch, 2));
    gates.iter_mut().for_each(|value| *value *= 8.0);
    let [cols, pitch32, rows, gate_width, gate_pitch32] = [heads * dim, pitch, ROWS, dim, gate_pitch].map(|n| n as u32);
    let params = params::GateHeads {
        cols,
        pitch: pitch32,
        rows,
        stride: STRIDE,
        gate_width,
        gate_pitch: gate_pitch32,
        gate_first: 0,
    };
    let gate = |row: usize, i: usize| gates[row * gate_pitch + (2 * (i / dim) + 1) * dim + i % dim];
    let behind: Vec<f32> = (0..ROWS).flat_map(|row| (0..heads * dim).map(move |i| gate(row, i))).collect();
    let mut wanted = unpadded(&x, pitch, heads * dim);
    cpu.gate(&mut wanted, &behind);
    let sigmoid =
        Case::new("gate_heads", WORKGROUP, params, FLAT).rows(&x, pitch, &wanted, heads * dim, CLOSE).floats(&gates);
    let first = 7;
    let params = params::GateHeads { gate_first: first as u32, ..params };
    let mut wanted = unpadded(&x, pitch, heads * dim);
    for (row, wanted) in wanted.chunks_exact_mut(heads * dim).enumerate() {
        let gate = |i: usize| softplus(gates[row * gate_pitch + first + i / dim]);
        wanted.iter_mut().enumerate().for_each(|(i, value)| *value *= gate(i));
    }
    let softplus = Case::new("gate_heads", WORKGROUP, params, FLAT)
        .set("OWN_GATES", 1)
        .set("SOFTPLUS", 1)
        .rows(&x, pitch, &wanted, heads * dim, NEAR)
        .floats(&gates);
    vec![sigmoid, softplus]
}

/// The largest values of one range, some of them equal.
fn shortlist() -> Case {
    let k = 40;
    let logits: Vec<f32> = noise(1000, 3).iter().map(|value| (value * 300.0).round()).collect();
    let mut ids = vec![0; k];
    top_k(&logits, &mut ids);
    let values: Vec<f32> = ids.iter().map(|id| logits[*id]).collect();
    let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
    let params = params::TopK { len: logits.len() as u32, k: k as u32 };
    Case::new("top_k", WORKGROUP, params, [1, 1, 1])
        .set("FIRST", 1)
        .floats(&logits)
        .words(&[0; 4])
        .changes(&vec![0.0; k], &values, 0.0)
        .changes_words(&vec![0; k], &ids)
}

/// Sums of words, each of which is read once.
fn reads() -> Case {
    let invocations = 2 * WORKGROUP;
    // Some words for the loop of four reads, and some for the rest.
    let len = 6 * invocations + 5;
    let data: Vec<u32> = (0..4 * len).map(|i| i.wrapping_mul(2_654_435_761)).collect();
    let mut sums = vec![0_u32; invocations as usize];
    for (at, element) in data.chunks_exact(4).enumerate() {
        let sum = &mut sums[at % invocations as usize];
        element.iter().for_each(|word| *sum = sum.wrapping_add(*word));
    }
    Case::new("read_bandwidth", WORKGROUP, params::Stream { len, stride: invocations, invocations }, [2, 1, 1])
        .words(&data)
        .changes_words(&vec![0; invocations as usize], &sums)
}

/// Sums over a workgroup, as every invocation receives them.
fn reductions() -> Case {
    let sum: u32 = (0..WORKGROUP).map(|index| index + 5).sum();
    // The first word is the number of subgroups, which depends on the driver.
    let answer = vec![0_u32; 1 + WORKGROUP as usize];
    Case::new("subgroup_trial", WORKGROUP, params::SubgroupTrial { value: 5 }, [1, 1, 1])
        .words(&answer)
        .becomes_words_behind(1, &vec![sum; WORKGROUP as usize])
}
