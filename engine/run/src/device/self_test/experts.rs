//! Kernels of MoE layers: the router's choice, pairs in the order of their experts, products with
//! experts, the sum of the experts' outputs.

use thermocline_shaders::{
    limits::{EXPERT_TILE, NO_NEURON, SPARSE_NEURONS, expert_tiles},
    params,
};

use super::case::{CLOSE, Case, NEAR, SampleWeights, noise};
use crate::device::elementwise::kind;
use thermocline_base::error::Result;
use thermocline_cpu::{
    Cpu,
    ops::{Activation, softmax_in_place, top_k},
};
use thermocline_formats::quant::TensorType;

/// Cases of kernels that do not read experts' weights.
pub(super) fn cases() -> Vec<Case> {
    vec![route(true), route(false), group(), combine()]
}

/// Cases of kernels that read experts' weights of type `ty`.
pub(super) fn cases_of(cpu: &Cpu, ty: TensorType) -> Result<Vec<Case>> {
    let [each, tiled] = products(ty)?;
    Ok(vec![each, tiled, gate_up(cpu, ty)?])
}

/// The router's probabilities of the four most likely of 60 experts, renormalised or not. Every
/// third expert is not resident.
fn route(renormalise: bool) -> Case {
    let (experts, used, tokens) = (60, 4, 5);
    let pitch = experts + 7;
    let mut scores: Vec<f32> = noise(tokens * pitch, 60).iter().map(|value| value * 6.0).collect();
    scores[pitch..2 * pitch].iter_mut().for_each(|score| *score += 1000.0);
    let place = |expert: u32| if expert % 3 == 2 { NO_NEURON } else { expert / 3 };
    let (mut ids, mut weights) = (Vec::new(), Vec::new());
    for row in scores.chunks_exact(pitch) {
        let mut chosen = vec![0; used];
        top_k(&row[..experts], &mut chosen);
        // Renormalised probabilities refer to the chosen experts only.
        let mut all = row[..experts].to_vec();
        let mut weight: Vec<f32> = chosen.iter().map(|expert| row[*expert]).collect();
        softmax_in_place(&mut all);
        softmax_in_place(&mut weight);
        if !renormalise {
            weight = chosen.iter().map(|expert| all[*expert]).collect();
        }
        ids.extend(chosen.iter().map(|expert| *expert as u32));
        weights.extend(weight.iter().map(|weight| weight * 1.5));
    }
    let places: Vec<u32> = ids.iter().map(|id| place(*id)).collect();
    let place_of: Vec<u32> = (0..experts as u32).map(place).collect();
    let params = params::Route {
        experts: experts as u32,
        pitch: pitch as u32,
        used: used as u32,
        tokens: tokens as u32,
        renormalise: u32::from(renormalise),
        scale: 1.5,
        ..Default::default()
    };
    let nothing = vec![0; tokens * used];
    Case::new("route", 128, params, [tokens as u32 + 1, 1, 1])
        .floats(&scores)
        .floats(&vec![0.0; experts])
        .words(&place_of)
        .changes_words(&nothing, &ids)
        .changes_words(&nothing, &places)
        .words(&nothing)
        .becomes(&weights, CLOSE)
        .floats(&vec![0.0; experts])
}

/// The slots of the pairs' experts: some experts have many pairs, some have none, and some are not
/// resident.
fn chosen(pairs: usize, experts: usize) -> Vec<u32> {
    let skewed = noise(pairs, pairs as u64).into_iter().map(|value| (value * value * experts as f32) as u32);
    let of = skewed.enumerate().map(|(pair, it)| if pair % 7 == 3 { NO_NEURON } else { it.min(experts as u32 - 1) });
    of.collect()
}

/// The order of pairs whose experts are below `experts`, and their tiles.
fn grouped(places: &[u32], experts: usize) -> (Vec<u32>, Vec<u32>) {
    let mut order: Vec<u32> = (0..places.len() as u32).filter(|pair| places[*pair as usize] < experts as u32).collect();
    order.sort_by_key(|pair| places[*pair as usize]);
    let (mut tiles, mut first) = (Vec::new(), 0);
    for expert in 0..experts as u32 {
        let end = first + places.iter().filter(|place| **place == expert).count() as u32;
        (first..end).step_by(EXPERT_TILE as usize).for_each(|at| tiles.extend([expert, at, end]));
        first = end;
    }
    tiles.resize(3 * expert_tiles(places.len(), experts), NO_NEURON);
    (order, tiles)
}

fn group() -> Case {
    let (pairs, experts) = (1200, 8);
    let places = chosen(pairs, experts);
    let (order, tiles) = grouped(&places, experts);
    let room = expert_tiles(pairs, experts);
    let params = params::GroupSlots { experts: experts as u32, pairs: pairs as u32, tiles: room as u32 };
    let case = Case::new("group_slots", 256, params, [1, 1, 1]).words(&places);
    // Unused tiles have an expert that does not exist, followed by arbitrary words.
    let there = tiles.iter().position(|word| *word == NO_NEURON).unwrap_or(tiles.len());
    case.changes_words(&vec![9; pairs], &order).changes_words(&vec![NO_NEURON; 3 * room], &tiles[..there])
}

/// Sums of the outputs of resident experts, and of a shared expert's output with its gate.
fn combine() -> Case {
    let (tokens, used, cols, pitch, gate_pitch, resident) = (3, 4, 45, 64, 32, 5);
    let pairs = tokens * used;
    let mut y = noise(pairs * pitch, 1);
    let (router, shared, gate) = (noise(pairs, 2), noise(tokens * pitch, 3), noise(tokens * gate_pitch, 4));
    let places: Vec<u32> = (0..pairs).map(|pair| [4, 0, 5, NO_NEURON][pair % 4]).collect();
    let here = |pair: usize| places[pair] < resident;
    let elsewhere = y.chunks_exact_mut(pitch).enumerate().filter(|(pair, _)| !here(*pair));
    elsewhere.for_each(|(_, row)| row.fill(f32::NAN));
    let before = vec![9.0; tokens * pitch];
    let mut sums = before.clone();
    for (token, col) in (0..tokens).flat_map(|token| (0..cols).map(move |col| (token, col))) {
        let said = (token * used..(token + 1) * used).filter(|pair| here(*pair));
        let said: f32 = said.map(|pair| router[pair] * y[pair * pitch + col]).sum();
        let open = 1.0 / (1.0 + (-gate[token * gate_pitch]).exp());
        sums[token * pitch + col] += said + open * shared[token * pitch + col];
    }
    let params = params::Combine {
        cols: cols as u32,
        pitch: pitch as u32,
        tokens: tokens as u32,
        used: used as u32,
        gate_pitch: gate_pitch as u32,
        resident,
        add: 1,
        stride: 128,
    };
    Case::new("combine", 64, params, [2, 2, 1])
        .set("SHARED", 1)
        .floats(&y)
        .floats(&router)
        .words(&places)
        .floats(&shared)
        .floats(&gate)
        .changes(&before, &sums, CLOSE)
}

/// Products of pairs: one by one, and in tiles of one expert.
fn products(ty: TensorType) -> Result<[Case; 2]> {
    let (experts, rows, cols, tokens, used, offset) = (5, 70, 256, 45, 2, 3);
    let (pairs, pitch) = (tokens * used, rows + offset);
    // All experts except the first and the last.
    let weights = SampleWeights::new(ty, (experts - 2) * rows, cols, 9)?;
    let places = chosen(pairs, experts);
    let (x, bias) = (noise(tokens * cols, 10), noise((experts - 1) * rows, 11));
    let before = vec![0.25; pairs * pitch];
    let mut y = before.clone();
    for (pair, place) in places.iter().enumerate().filter(|(_, place)| (1..experts as u32 - 1).contains(place)) {
        let (x, first) = (&x[pair / used * cols..][..cols], (*place as usize - 1) * rows);
        let out = &mut y[pair * pitch + offset..][..rows];
        out.iter_mut().enumerate().for_each(|(row, out)| *out = weights.product(first + row, x) + bias[first + row]);
    }
    let params = params::ExpertMatmul {
        rows: rows as u32,
        chunks: cols as u32 / 32,
        pairs: pairs as u32,
        pairs_per_row: used as u32,
        x_pitch: cols as u32,
        y_pitch: pitch as u32,
        y_offset: offset as u32,
        first_expert: 1,
        experts: experts as u32 - 2,
        first_bias: 1,
        stride: 2,
    };
    let each = Case::new("expert_gemv", 64, params, [2, (rows as u32).div_ceil(8), pairs as u32])
        .set("HAS_BIAS", 1)
        .set("ROWS", 4)
        .matrix(&weights)
        .floats(&x)
        .floats(&bias)
        .words(&places)
        .changes(&before, &y, NEAR);
    let (order, tiles) = grouped(&places, experts);
    // A workgroup of 64 invocations computes 32 rows.
    let groups = [tiles.len() as u32 / 3, 2, (rows as u32).div_ceil(64)];
    let tiled = Case::new("expert_gemm", 64, params, groups)
        .set("HAS_BIAS", 1)
        .matrix(&weights)
        .floats(&x)
        .floats(&bias)
        .words(&order)
        .words(&tiles)
        .changes(&before, &y, NEAR);
    Ok([each, tiled])
}

/// Hidden activations of pairs. A neuron with a small gate is silent.
fn gate_up(cpu: &Cpu, ty: TensorType) -> Result<Case> {
    let (experts, neurons, cols, threshold, lanes, workgroup) = (5, 37, 256, 0.3, 32, 64);
    let places = [3, 0, NO_NEURON, 1, 4, 2, 1, 3];
    let (rows, hidden_pitch) = (2 * neurons, neurons + 3);
    let weights = SampleWeights::new(ty, (experts - 2) * rows, cols, 6)?;
    let (x, bias) = (noise(places.len() * cols, 7), noise((experts - 1) * rows, 8));
    let before = vec![7.0; places.len() * hidden_pitch];
    let mut hidden = before.clone();
    for (pair, place) in places.iter().enumerate().filter(|(_, place)| (1..experts as u32 - 1).contains(place)) {
        let (x, first) = (&x[pair * cols..][..cols], (*place as usize - 1) * rows);
        let row = |row: usize| weights.product(first + row, x) + bias[first + row];
        let mut gates: Vec<f32> = (0..neurons).map(row).collect();
        let ups: Vec<f32> = (neurons..rows).map(row).collect();
        let mut alone = gates.clone();
        cpu.activate(Activation::Silu, &mut alone, None);
        cpu.activate(Activation::Silu, &mut gates, Some(&ups));
        let out = hidden[pair * hidden_pitch..][..neurons].iter_mut().zip(gates).zip(alone);
        out.for_each(|((out, value), gate)| *out = if gate.abs() > threshold { value } else { 0.0 });
    }
    let params = params::ExpertGateUp {
        neurons: neurons as u32,
        rows: rows as u32,
        up_at: neurons as u32,
        chunks: cols as u32 / 32,
        pairs: places.len() as u32,
        pairs_per_row: 1,
        x_pitch: cols as u32,
        gates_pitch: 0,
        hidden_pitch: hidden_pitch as u32,
        first_expert: 1,
        experts: experts as u32 - 2,
        first_bias: 1,
        stride: 3,
        threshold,
    };
    let groups = (neurons as u32).div_ceil(SPARSE_NEURONS * workgroup / lanes);
    Ok(Case::new("expert_gate_up", workgroup, params, [3, groups.div_ceil(3), places.len() as u32])
        .set("LANES", lanes)
        .set("KIND", kind(Activation::Silu))
        .set("HAS_BIAS", 1)
        .matrix(&weights)
        .floats(&x)
        .floats(&bias)
        .words(&places)
        .floats(&[0.0; 4])
        .changes(&before, &hidden, NEAR))
}
