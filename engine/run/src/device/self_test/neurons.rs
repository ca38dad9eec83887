//! Kernels that read weights row by row: rows of the embedding, and the neurons of a sparse FFN.

use std::ops::Range;

use thermocline_shaders::{
    limits::{GEMM_NEURONS_COLUMNS, NO_NEURON, SLOT_GRID, SPARSE_DOWN_TOKENS, SPARSE_NEURONS},
    params,
};

use super::{
    case::{CLOSE, Case, NEAR, SampleWeights, noise},
    elements::OUTLIER,
};
use crate::device::elementwise::kind;
use thermocline_base::error::Result;
use thermocline_cpu::{Cpu, ops::Activation};
use thermocline_formats::quant::TensorType;

/// Cases of kernels that read no weights.
pub(super) fn cases() -> Vec<Case> {
    vec![quantise(), active_mask(), slot_list(), sum_splits()]
}

/// Cases of kernels that read weights of type `ty`.
pub(super) fn cases_of(cpu: &Cpu, ty: TensorType) -> Result<Vec<Case>> {
    let mut cases = vec![embedding(ty)?, sparse_gate_up(cpu, ty)?];
    cases.extend(down(ty)?);
    Ok(cases)
}

/// Activations in eight bits whose rounding is unambiguous, one of them an outlier of its chunk.
fn quantise() -> Case {
    let (tokens, chunks) = (2_usize, 9_usize);
    let (mut x, mut quantised) = (Vec::new(), Vec::new());
    for chunk in 0..tokens * chunks {
        // The scale is a power of two, and one of the codes is the largest. One chunk is all zeros.
        let scale = [1.0, 1024.0, 0.25, 0.0][chunk % 4];
        let codes: Vec<i8> = (0..32).map(|i| if i == chunk { 127 } else { ((i * 37 + chunk) % 253) as i8 }).collect();
        let codes = if scale == 0.0 { vec![0; 32] } else { codes.iter().map(|code| (*code).max(-127)).collect() };
        x.extend(codes.iter().map(|code| scale * f32::from(*code)));
        let words = codes.chunks_exact(4).map(|four| u32::from_le_bytes([0, 1, 2, 3].map(|at| four[at] as u8)));
        quantised.extend(words);
        quantised.push(scale.to_bits());
    }
    let [chunks, tokens] = [chunks, tokens].map(|n| n as u32);
    let params = params::Quantise { chunks, tokens, x_pitch: chunks * 32, stride: 64 };
    Case::new("quantise_q8", 64, params, [1, 1, 1])
        .floats(&x)
        .words(&vec![0; quantised.len()])
        .becomes_near_words(&quantised)
}

/// One row's mask.
fn mask_of(passes: impl Iterator<Item = bool>) -> Vec<u32> {
    let passes: Vec<bool> = passes.collect();
    let word = |bits: &[bool]| bits.iter().enumerate().map(|(i, bit)| u32::from(*bit) << i).sum();
    passes.chunks(32).map(word).collect()
}

/// Scores at, above and below a threshold, and NaN.
fn active_mask() -> Case {
    let (tokens, neurons) = (3, 1000);
    let pitch = 1024;
    let mut scores: Vec<f32> = noise(tokens * pitch, 1).iter().map(|value| (value * 8.0).round() / 4.0).collect();
    scores.iter_mut().step_by(17).for_each(|score| *score = f32::NAN);
    scores[5] = OUTLIER;
    let threshold = -0.5;
    let rows = scores.chunks_exact(pitch);
    let masks: Vec<u32> =
        rows.flat_map(|row| mask_of(row[..neurons].iter().map(|score| *score >= threshold))).collect();
    let params = params::ActiveMask { neurons: neurons as u32, pitch: pitch as u32, threshold };
    Case::new("active_mask", 64, params, [1, tokens as u32, 1])
        .floats(&scores)
        .changes_words(&vec![NO_NEURON; masks.len()], &masks)
}

/// Slots, in three neuron blocks, whose neurons fire. The last slots are empty.
fn slot_list() -> Case {
    const BLOCKS: usize = 3;
    let (sizes, neurons, per_workgroup, stride) = ([64_usize, 128, 192], 1000, 3, 40);
    let slots: usize = sizes.iter().sum();
    let held = |slot: usize| (slot + 5 < slots).then_some((slot * 7 + 3) % neurons);
    let active: Vec<bool> = noise(neurons, 6).iter().map(|value| *value < -0.4).collect();
    let (mut table, mut start) = (Vec::new(), 0);
    let (mut lists, mut grids) = (vec![NO_NEURON; slots + 64 * BLOCKS], vec![NO_NEURON; SLOT_GRID as usize * BLOCKS]);
    for (at, size) in sizes.into_iter().enumerate() {
        table.extend([start as u32, size as u32]);
        let on = |slot: &u32| held(start + *slot as usize).is_some_and(|neuron| active[neuron]);
        let listed: Vec<u32> = (0..size as u32).filter(on).collect();
        let list = &mut lists[start + 64 * at..];
        list[0] = listed.len() as u32;
        list[1..=listed.len()].copy_from_slice(&listed);
        let workgroups = (listed.len() as u32).div_ceil(per_workgroup);
        let grid = [workgroups.min(stride), workgroups.div_ceil(stride).max(1), 1];
        grids[SLOT_GRID as usize * at..][..3].copy_from_slice(&grid);
        start += size;
    }
    table.extend((0..slots).map(|slot| held(slot).map_or(NO_NEURON, |neuron| neuron as u32)));
    Case::new("slot_list", 64, params::SlotList { per_workgroup, stride }, [BLOCKS as u32, 1, 1])
        .set("BLOCKS", BLOCKS as u32)
        .words(&mask_of(active.iter().copied()))
        .words(&table)
        .changes_words(&vec![NO_NEURON; lists.len()], &lists)
        .changes_words(&vec![NO_NEURON; grids.len()], &grids)
        .changes(&vec![7.0; slots], &vec![0.0; slots], 0.0)
}

/// Sums of partial sums and a bias.
fn sum_splits() -> Case {
    let (tokens, cols, pitch, splits) = (3, 96, 99, 5);
    let (partials, bias) = (noise(splits * tokens * cols, 1), noise(cols, 2));
    let before = vec![7.0; tokens * pitch];
    let mut sums = before.clone();
    for (token, col) in (0..tokens).flat_map(|token| (0..cols).map(move |col| (token, col))) {
        let parts = (0..splits).map(|split| partials[(split * tokens + token) * cols + col]);
        sums[token * pitch + col] = parts.sum::<f32>() + bias[col];
    }
    let params = params::SumSplits {
        cols: cols as u32,
        pitch: pitch as u32,
        tokens: tokens as u32,
        splits: splits as u32,
        partial_pitch: cols as u32,
        stride: 128,
    };
    Case::new("sum_splits", 64, params, [2, (tokens * cols).div_ceil(128) as u32, 1])
        .set("HAS_BIAS", 1)
        .floats(&partials)
        .floats(&bias)
        .changes(&before, &sums, CLOSE)
}

/// Rows by id, some of which are in other parts of the matrix.
fn embedding(ty: TensorType) -> Result<Case> {
    let (rows, first_row, cols, scale) = (23, 100, 256, 2.5);
    let weights = SampleWeights::new(ty, rows, cols, 3)?;
    let ids = [100, 122, 111, 99, 123, 0, 100];
    let before = vec![7.0; (ids.len() + 1) * cols];
    let mut out = before.clone();
    for (id, out) in ids.iter().zip(out.chunks_exact_mut(cols)) {
        if (first_row..first_row + rows as u32).contains(id) {
            let row = weights.row((id - first_row) as usize);
            out.iter_mut().zip(row).for_each(|(out, value)| *out = value * scale);
        }
    }
    let params = params::Embedding {
        first_row,
        rows: rows as u32,
        chunks: cols as u32 / 32,
        tokens: ids.len() as u32,
        pitch: cols as u32,
        stride: 192,
        scale,
    };
    let groups = [3, (ids.len() * cols / 8).div_ceil(192) as u32, 1];
    Ok(Case::new("embedding", 64, params, groups).matrix(&weights).words(&ids).changes(&before, &out, CLOSE))
}

/// Hidden activations of listed neurons, whose gate and up rows alternate. A neuron with a small
/// gate is silent.
fn sparse_gate_up(cpu: &Cpu, ty: TensorType) -> Result<Case> {
    let (neurons, cols, threshold, lanes, workgroup, stride) = (150, 512, 0.3, 32, 64, 7);
    let weights = SampleWeights::new(ty, 2 * neurons, cols, 6)?;
    let (x, bias) = (noise(cols, 7), noise(2 * neurons, 8));
    let listed: Vec<u32> = (0..neurons as u32).filter(|neuron| neuron * 11 % 7 < 2).collect();
    let row = |row: usize| weights.product(row, &x) + bias[row];
    let mut gates: Vec<f32> = listed.iter().map(|neuron| row(2 * *neuron as usize)).collect();
    let ups: Vec<f32> = listed.iter().map(|neuron| row(2 * *neuron as usize + 1)).collect();
    let mut alone = gates.clone();
    cpu.activate(Activation::Silu, &mut alone, None);
    cpu.activate(Activation::Silu, &mut gates, Some(&ups));
    let before = vec![7.0; neurons + 1];
    let mut hidden = before.clone();
    for ((neuron, value), gate) in listed.iter().zip(gates).zip(alone) {
        hidden[*neuron as usize] = if gate.abs() > threshold { value } else { 0.0 };
    }
    let list: Vec<u32> = [listed.len() as u32].into_iter().chain(listed.iter().copied()).collect();
    let wanted = (listed.len() as u32).div_ceil(SPARSE_NEURONS * workgroup / lanes);
    let groups = [wanted.min(stride), wanted.div_ceil(stride).max(1), 1];
    let params = params::SparseGateUp { chunks: cols as u32 / 32, step: 2, up_at: 1, stride, count: 0, threshold };
    Ok(Case::new("sparse_gate_up", workgroup, params, groups)
        .set("LANES", lanes)
        .set("KIND", kind(Activation::Silu))
        .set("HAS_BIAS", 1)
        .set("GATE_FIRST", 1)
        .matrix(&weights)
        .floats(&x)
        .words(&list)
        .floats(&bias)
        .changes(&before, &hidden, NEAR))
}

/// Down projections with a row per neuron: for one token and for a few, which skip silent neurons,
/// and for many in tiles.
fn down(ty: TensorType) -> Result<[Case; 3]> {
    let (neurons, cols) = (75, 256);
    let pitch = 96;
    let weights = SampleWeights::new(ty, neurons, cols, 1)?;
    // Partial sums of ranges of neurons, token by token.
    let sums = |hidden: &[f32], ranges: &[Range<usize>]| -> Vec<f32> {
        let of_token = |hidden: &[f32], range: &Range<usize>| {
            let mut sums = vec![0.0_f64; cols];
            for neuron in range.clone() {
                let (value, row) = (f64::from(hidden[neuron]), weights.row(neuron));
                sums.iter_mut().zip(row).for_each(|(sum, weight)| *sum += value * f64::from(*weight));
            }
            sums.into_iter().map(|sum| sum as f32).collect::<Vec<_>>()
        };
        let of_range = |range| hidden.chunks_exact(pitch).flat_map(move |hidden| of_token(hidden, range));
        ranges.iter().flat_map(of_range).collect()
    };
    let case = |kernel: &'static str, tokens: usize, groups: [u32; 3], ranges: &[Range<usize>]| {
        let hidden: Vec<f32> = noise(tokens * pitch, 2).iter().map(|value| value.max(-0.5) + 0.5).collect();
        let params = params::SparseDown {
            chunks: cols as u32 / 32,
            neurons: neurons as u32,
            tokens: tokens as u32,
            hidden_pitch: pitch as u32,
            splits: ranges.len() as u32,
            ..Default::default()
        };
        let sums = sums(&hidden, ranges);
        let room = vec![0.0; sums.len() + SPARSE_DOWN_TOKENS as usize * cols];
        Case::new(kernel, 64, params, groups).matrix(&weights).floats(&hidden).changes(&room, &sums, NEAR)
    };
    let strip = 16;
    let sparse = |tokens: usize, at_once: u32| {
        let groups = [(cols as u32 / 8).div_ceil(strip), 1, (tokens as u32).div_ceil(at_once)];
        let case = case("sparse_down", tokens, groups, std::slice::from_ref(&(0..neurons)));
        case.set("STRIP", strip).set("TOKENS", at_once).set("SKIP", 1)
    };
    // Whole tiles of 32 neurons.
    let (many, ranges) = (40, [0..64, 64..neurons]);
    let groups = [(many as u32).div_ceil(64 / 2), (cols as u32).div_ceil(GEMM_NEURONS_COLUMNS), ranges.len() as u32];
    Ok([sparse(1, 1), sparse(3, 2), case("gemm_neurons", many, groups, &ranges)])
}
