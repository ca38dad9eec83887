//! Selection of neurons to compute: masks and lists.

use bytemuck::{bytes_of, cast_slice};
use thermocline_shaders::{
    Tier,
    limits::{NO_NEURON, SLOT_GRID},
    params,
};

use crate::gpu::{Call, Gpu, bytes, noise};

const WORKGROUPS: [u32; 3] = [32, 96, 256];

/// Neurons of small and large layers, in whole words and not.
const LAYERS: [usize; 5] = [1, 31, 64, 1000, 33_000];

/// Computes the masks of rows of scores.
fn masks(gpu: &Gpu, tier: Tier, workgroup: u32, test: u32, params: params::ActiveMask, scores: &[f32]) -> Vec<u32> {
    let words = params.neurons.div_ceil(32);
    let tokens = scores.len() as u32 / params.pitch;
    let mask = vec![u32::MAX; (tokens * words) as usize];
    let call = Call {
        kernel: "active_mask",
        tier,
        weights: None,
        overrides: &[("WORKGROUP_SIZE", f64::from(workgroup)), ("TEST", f64::from(test))],
        params: bytes_of(&params),
        buffers: &[bytes(scores), cast_slice(&mask)],
        workgroups: (words.div_ceil(workgroup), tokens, 1),
    };
    let [mask] = gpu.run_for(&call, [1]);
    mask
}

/// The mask of one row.
fn mask_of(passes: &[bool]) -> Vec<u32> {
    let word = |bits: &[bool]| bits.iter().enumerate().map(|(i, bit)| u32::from(*bit) << i).sum();
    passes.chunks(32).map(word).collect()
}

#[test]
fn active_mask_holds_the_scores_that_pass() {
    let gpu = Gpu::get();
    let tests: [(u32, f32); 4] = [(0, 0.0), (0, -0.4), (1, 0.0), (1, 0.5)];
    for neurons in LAYERS {
        let (tokens, pitch) = (3, neurons.div_ceil(32) * 32);
        // Zeros of both signs, and NaN.
        let mut scores: Vec<f32> = noise(tokens * pitch, 1).iter().map(|v| (v * 8.0).round() / 4.0).collect();
        scores.iter_mut().step_by(11).for_each(|v| *v = -0.0);
        scores.iter_mut().step_by(17).for_each(|v| *v = f32::NAN);
        for tier in gpu.tiers() {
            for (test, threshold) in tests {
                let passes = |score: f32| match test {
                    0 => score >= threshold,
                    _ => score.abs() > threshold,
                };
                for workgroup in WORKGROUPS {
                    let params = params::ActiveMask { neurons: neurons as u32, pitch: pitch as u32, threshold };
                    let mask = masks(gpu, tier, workgroup, test, params, &scores);
                    let rows = scores.chunks_exact(pitch);
                    let rows: Vec<Vec<bool>> =
                        rows.map(|row| row[..neurons].iter().map(|score| passes(*score)).collect()).collect();
                    let what = format!("{neurons} {tier} {workgroup}, test {test} at {threshold}");
                    assert_eq!(mask, rows.iter().flat_map(|row| mask_of(row)).collect::<Vec<_>>(), "{what}");
                }
            }
        }
    }
}

#[test]
fn slots_are_listed_by_neuron_block() {
    let gpu = Gpu::get();
    let (neurons, most, per_workgroup, stride) = (1000_usize, 3_usize, 3_u32, 40_u32);
    // Blocks of slots. The last slots have no neuron.
    for (sizes, empty) in [(vec![64_usize], 0_usize), (vec![512, 192], 5), (vec![64, 128, 768], 64)] {
        let slots: usize = sizes.iter().sum();
        let held = |slot: usize| (slot < slots - empty).then_some((slot * 7 + 3) % neurons);
        let starts: Vec<usize> = sizes.iter().scan(0, |end, size| Some(std::mem::replace(end, *end + size))).collect();
        let mut table: Vec<u32> = starts.iter().zip(&sizes).flat_map(|(at, size)| [*at as u32, *size as u32]).collect();
        table.resize(2 * most, 0);
        table.extend((0..slots).map(|slot| held(slot).map_or(NO_NEURON, |neuron| neuron as u32)));
        for (tier, density) in gpu.tiers().into_iter().flat_map(|tier| [0.0, 0.1, 1.0].map(|d| (tier, d))) {
            let active: Vec<bool> = noise(neurons, 6).iter().map(|v| (v + 1.0) / 2.0 < density).collect();
            for workgroup in WORKGROUPS {
                let params = params::SlotList { per_workgroup, stride };
                let (mask, lists) = (mask_of(&active), vec![u32::MAX; slots + 64 * most]);
                let (grids, hidden) = (vec![u32::MAX; SLOT_GRID as usize * most], vec![f32::NAN; slots + 1]);
                let call = Call {
                    kernel: "slot_list",
                    tier,
                    weights: None,
                    overrides: &[("WORKGROUP_SIZE", f64::from(workgroup)), ("BLOCKS", most as f64)],
                    params: bytes_of(&params),
                    buffers: &[
                        cast_slice(&mask),
                        cast_slice(&table),
                        cast_slice(&lists),
                        cast_slice(&grids),
                        bytes(&hidden),
                    ],
                    workgroups: (sizes.len() as u32, 1, 1),
                };
                let [lists, grids, hidden] = gpu.run_for(&call, [2, 3, 4]);
                let what = format!("{sizes:?} {tier} {workgroup} {density}");
                assert!(hidden[..slots].iter().all(|bits| *bits == 0) && hidden[slots] != 0, "{what}");
                for (at, (start, size)) in starts.iter().zip(&sizes).enumerate() {
                    let on = |slot: &u32| held(start + *slot as usize).is_some_and(|neuron| active[neuron]);
                    let expected: Vec<u32> = (0..*size as u32).filter(on).collect();
                    let list = &lists[start + 64 * at..][..size + 64];
                    assert_eq!(list[0] as usize, expected.len(), "{what}");
                    assert_eq!(list[1..=expected.len()], expected, "{what}");
                    assert!(list[1 + expected.len()..].iter().all(|slot| *slot == u32::MAX), "{what}");
                    let wanted = (expected.len() as u32).div_ceil(per_workgroup);
                    let grid = &grids[SLOT_GRID as usize * at..][..3];
                    assert_eq!(grid, [wanted.min(stride), wanted.div_ceil(stride).max(1), 1], "{what}");
                }
            }
        }
    }
}
