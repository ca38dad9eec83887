//! MoE: the choice of experts per token, and the weighted sum of their outputs.

use bytemuck::{bytes_of, cast_slice, cast_vec};
use thermocline_shaders::{
    Tier, WeightType,
    limits::{EXPERT_TILE, NO_NEURON, ROUTE_EXPERTS, ROUTE_USED, expert_tiles},
    params,
};

use crate::gpu::{
    Call, Gpu, assert_close, bytes, noise,
    weights::{Weights, grids_of},
};

/// How a test routes: score, bias, groups (all, used, best), whether to renormalise, scale, and
/// whether each expert has a factor.
#[derive(Debug, Clone, Copy)]
struct Router {
    score: u32,
    bias: bool,
    groups: Option<(usize, usize, usize)>,
    renormalise: bool,
    scale: f32,
    scaled: bool,
}

/// Indices in descending order of the values. Of equal values, the first comes first.
fn descending(of: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..of.len()).collect();
    order.sort_by(|a, b| of[*b].partial_cmp(&of[*a]).unwrap());
    order
}

/// Expert ids and router weights of one token. `bias` and `factors` have one value per expert.
fn plain_route(logits: &[f32], [bias, factors]: [&[f32]; 2], used: usize, router: &Router) -> (Vec<u32>, Vec<f64>) {
    let logits: Vec<f64> = logits.iter().map(|v| f64::from(*v)).collect();
    let top = logits.iter().copied().fold(f64::MIN, f64::max);
    let all: f64 = logits.iter().map(|v| (v - top).exp()).sum();
    let score = |v: f64| match router.score {
        0 => (v - top).exp() / all,
        1 | 3 => v,
        _ => 1.0 / (1.0 + (-v).exp()),
    };
    let mut choice: Vec<f64> = logits.iter().map(|v| score(*v)).collect();
    if router.bias {
        choice.iter_mut().zip(bias).for_each(|(choice, bias)| *choice += f64::from(*bias));
    }
    if let Some((groups, groups_used, best)) = router.groups {
        let len = logits.len() / groups;
        let sums: Vec<f64> =
            choice.chunks(len).map(|group| descending(group)[..best].iter().map(|at| group[*at]).sum()).collect();
        for group in &descending(&sums)[groups_used..] {
            choice[group * len..][..len].fill(f64::MIN);
        }
    }
    let chosen = descending(&choice)[..used].to_vec();
    let mut weights: Vec<f64> = chosen.iter().map(|e| score(logits[*e])).collect();
    if router.score == 1 {
        weights.iter_mut().for_each(|v| *v = (*v - top).exp());
    }
    if router.score == 3 {
        for (at, (weight, e)) in weights.iter_mut().zip(&chosen).enumerate() {
            let best = logits[*e];
            let near = |v: f64| best - v <= 0.02 * v.abs().max(best);
            let others = logits.iter().enumerate().filter(|(e, v)| !chosen[..at].contains(e) && near(**v));
            *weight = 1.0 / others.map(|(_, v)| (v - best).exp()).sum::<f64>();
        }
    }
    let sum: f64 = if router.renormalise || router.score == 1 { weights.iter().sum() } else { 1.0 };
    weights.iter_mut().for_each(|v| *v *= f64::from(router.scale) / sum);
    if router.scaled {
        weights.iter_mut().zip(&chosen).for_each(|(v, e)| *v *= f64::from(factors[*e]));
    }
    (chosen.iter().map(|e| *e as u32).collect(), weights)
}

/// Routes random logits of every size, some of them equal or large, and compares the result.
fn routes(router: &Router) {
    let gpu = Gpu::get();
    let most = (ROUTE_EXPERTS as usize, ROUTE_USED as usize);
    for (experts, used) in [(1, 1), (3, 3), (8, 2), (60, 4), (128, 8), (256, 16), most] {
        let grouped = router.groups.filter(|(groups, ..)| experts > 8 && experts % groups == 0);
        if router.groups.is_some() && grouped.is_none() {
            continue;
        }
        let (tokens, pitch) = (5, experts + 7);
        // Coarse scores for one token, so that several are equal, and large scores for another.
        let mut scores: Vec<f32> = noise(tokens * pitch, experts as u32).iter().map(|v| v * 6.0).collect();
        if !router.bias && router.groups.is_none() {
            scores[..pitch].iter_mut().for_each(|v| *v = v.round());
        }
        if router.score != 2 {
            scores[pitch..2 * pitch].iter_mut().for_each(|v| *v += 1000.0);
        }
        let (bias, factors) = (noise(experts, 77), noise(experts, 78));
        for tier in gpu.tiers() {
            for workgroup in [32.0, 96.0, 256.0] {
                let [experts32, pitch32, used32, tokens32] = [experts, pitch, used, tokens].map(|v| v as u32);
                let (groups, groups_used, groups_best) = grouped.unwrap_or((0, 0, 0));
                let params = params::Route {
                    experts: experts32,
                    pitch: pitch32,
                    used: used32,
                    tokens: tokens32,
                    renormalise: u32::from(router.renormalise),
                    groups: groups as u32,
                    groups_used: groups_used as u32,
                    groups_best: groups_best as u32,
                    scale: router.scale,
                };
                let out = vec![0_u32; tokens * used];
                // Every third expert is not on the device.
                let place = |e: u32| if e % 3 == 2 { NO_NEURON } else { e / 3 };
                let place_of: Vec<u32> = (0..experts32).map(place).collect();
                let switch = |on: bool| f64::from(u8::from(on));
                let call = Call {
                    kernel: "route",
                    tier,
                    weights: None,
                    overrides: &[
                        ("WORKGROUP_SIZE", workgroup),
                        ("SCORE", f64::from(router.score)),
                        ("BIAS", switch(router.bias)),
                        ("SCALED", switch(router.scaled)),
                    ],
                    params: bytes_of(&params),
                    buffers: &[
                        bytes(&scores),
                        bytes(&bias),
                        cast_slice(&place_of),
                        cast_slice(&out),
                        cast_slice(&out),
                        cast_slice(&out),
                        bytes(&factors),
                    ],
                    workgroups: (tokens32 + 1, 1, 1),
                };
                let [ids, places, router_weights] = gpu.run_for(&call, [3, 4, 5]);
                let rows =
                    scores.chunks_exact(pitch).map(|row| plain_route(&row[..experts], [&bias, &factors], used, router));
                let (expected_ids, expected): (Vec<_>, Vec<_>) = rows.unzip();
                let what = format!("{used} of {experts} {tier} {workgroup} {router:?}");
                assert_eq!(ids, expected_ids.concat(), "{what}");
                assert_eq!(places, ids.iter().map(|e| place(*e)).collect::<Vec<_>>(), "{what}");
                assert_close(&cast_vec::<u32, f32>(router_weights), &expected.concat(), 2e-5, &what);
            }
        }
    }
}

#[test]
fn route_chooses_the_likeliest() {
    let router = Router { score: 0, bias: false, groups: None, renormalise: false, scale: 1.0, scaled: false };
    for renormalise in [false, true] {
        routes(&Router { renormalise, ..router });
    }
    routes(&Router { score: 1, ..router });
    routes(&Router { score: 2, renormalise: true, scale: 2.5, ..router });
    routes(&Router { score: 3, ..router });
}

#[test]
fn route_multiplies_weights_by_the_factors_of_experts() {
    for score in 0..4 {
        routes(&Router { score, bias: false, groups: None, renormalise: true, scale: 1.5, scaled: true });
    }
}

#[test]
fn route_chooses_by_bias_and_weighs_without_it() {
    for score in 0..4 {
        for renormalise in [false, true] {
            routes(&Router { score, bias: true, groups: None, renormalise, scale: 1.5, scaled: false });
        }
    }
}

#[test]
fn route_chooses_within_the_best_groups() {
    for (score, bias) in [(0, false), (1, true), (2, true)] {
        routes(&Router { score, bias, groups: Some((4, 2, 2)), renormalise: true, scale: 1.0, scaled: false });
        routes(&Router { score, bias, groups: Some((8, 4, 1)), renormalise: false, scale: 1.0, scaled: false });
    }
}

#[test]
fn route_chooses_valid_experts_for_non_finite_scores() {
    let gpu = Gpu::get();
    let scores = [f32::NAN, 1.0, f32::NEG_INFINITY, f32::NAN, f32::NAN, f32::NAN, f32::NAN, f32::NAN];
    for tier in gpu.tiers() {
        let params = params::Route {
            experts: 4,
            pitch: 4,
            used: 3,
            tokens: 2,
            renormalise: 1,
            scale: 1.0,
            ..Default::default()
        };
        let call = Call {
            kernel: "route",
            tier,
            weights: None,
            overrides: &[],
            params: bytes_of(&params),
            buffers: &[bytes(&scores), &[0; 4], &[0; 16], &[0xff; 24], &[0xff; 24], &[0xff; 24], &[0; 4]],
            workgroups: (2, 1, 1),
        };
        let [ids] = gpu.run_for(&call, [3]);
        assert_eq!(ids, [1, 2, 0, 0, 1, 2], "{tier}");
    }
}

#[test]
fn combine_matches_the_weighted_sum_of_experts() {
    let gpu = Gpu::get();
    for (cols, pitch, used) in [(1, 32, 1), (45, 64, 2), (128, 128, 8)] {
        let (tokens, gate_pitch) = (3, 32);
        let (mut y, router_weights) = (noise(tokens * used * pitch, 1), noise(tokens * used, 2));
        // Rows that were not written must not be added.
        let places: Vec<u32> = (0..tokens * used).map(|s| [4, 0, 5, NO_NEURON][s % 4]).collect();
        let resident = 5;
        let here = |s: usize| places[s] < resident;
        y.iter_mut().enumerate().filter(|(at, _)| !here(at / pitch)).for_each(|(_, y)| *y = f32::NAN);
        let (shared, gate) = (noise(tokens * pitch, 3), noise(tokens * gate_pitch, 4));
        let forms = [(0.0, 1.0, 0), (1.0, 1.0, 1), (1.0, 0.0, 0)];
        let all = gpu.tiers().into_iter().flat_map(|tier| forms.map(|(shared, gated, add)| (tier, shared, gated, add)));
        for (tier, with_shared, gated, add) in all {
            let [cols32, pitch32, tokens32, used32] = [cols, pitch, tokens, used].map(|v| v as u32);
            let params = params::Combine {
                cols: cols32,
                pitch: pitch32,
                tokens: tokens32,
                used: used32,
                gate_pitch: gate_pitch as u32,
                resident,
                add,
                stride: 96,
            };
            let out = vec![9.0_f32; tokens * pitch];
            let call = Call {
                kernel: "combine",
                tier,
                weights: None,
                overrides: &[("WORKGROUP_SIZE", 32.0), ("SHARED", with_shared), ("GATED", gated)],
                params: bytes_of(&params),
                buffers: &[
                    bytes(&y),
                    bytes(&router_weights),
                    cast_slice(&places),
                    bytes(&shared),
                    bytes(&gate),
                    bytes(&out),
                ],
                workgroups: (3, (tokens32 * cols32).div_ceil(96), 1),
            };
            // Elements past the columns stay unchanged.
            let mut expected = vec![9.0; out.len()];
            for (t, c) in (0..tokens).flat_map(|t| (0..cols).map(move |c| (t, c))) {
                let said = |s: usize| f64::from(router_weights[s]) * f64::from(y[s * pitch + c]);
                let open = with_shared / (1.0 + gated * (-f64::from(gate[t * gate_pitch])).exp());
                let said: f64 = (t * used..(t + 1) * used).filter(|s| here(*s)).map(said).sum();
                let before = if add == 1 { 9.0 } else { 0.0 };
                expected[t * pitch + c] = before + said + open * f64::from(shared[t * pitch + c]);
            }
            assert_close(&gpu.run(&call, 5), &expected, 1e-5, &format!("{cols} {used} {tier} shared {with_shared}"));
        }
    }
}

/// Expert of each pair. Some experts have many pairs, some have none, and some are not on the
/// device.
fn chosen(pairs: usize, experts: usize) -> Vec<u32> {
    let skewed = |v: &f32| ((v * v) * experts as f32) as u32;
    let experts = noise(pairs, pairs as u32).iter().map(skewed).map(|e| e.min(experts as u32 - 1)).collect::<Vec<_>>();
    (0..).zip(experts).map(|(pair, e)| if pair % 7 == 3 { NO_NEURON } else { e }).collect()
}

/// Computes the order and the tiles of pairs.
fn grouped(tier: Tier, ids: &[u32], experts: usize, workgroup: f64) -> (Vec<u32>, Vec<u32>) {
    let tiles = expert_tiles(ids.len(), experts);
    let [pairs, experts, tiles32] = [ids.len(), experts, tiles].map(|n| n as u32);
    let params = params::GroupSlots { experts, pairs, tiles: tiles32 };
    let out = [vec![9_u32; ids.len()], vec![9_u32; 3 * tiles]];
    let call = Call {
        kernel: "group_slots",
        tier,
        weights: None,
        overrides: &[("WORKGROUP_SIZE", workgroup)],
        params: bytes_of(&params),
        buffers: &[cast_slice(ids), cast_slice(&out[0]), cast_slice(&out[1])],
        workgroups: (1, 1, 1),
    };
    let [order, tiles] = Gpu::get().run_for(&call, [1, 2]);
    (order, tiles)
}

#[test]
fn pairs_are_grouped_by_their_experts() {
    for (pairs, experts) in [(1, 1), (64, 1), (65, 1), (40, 8), (300, 8), (1200, 3), (2100, 512)] {
        let ids = chosen(pairs, experts);
        let mut order: Vec<u32> = (0..pairs as u32).filter(|pair| ids[*pair as usize] != NO_NEURON).collect();
        order.sort_by_key(|pair| ids[*pair as usize]);
        let (mut tiles, mut first) = (Vec::new(), 0);
        for expert in 0..experts as u32 {
            let end = first + ids.iter().filter(|id| **id == expert).count() as u32;
            (first..end).step_by(EXPERT_TILE as usize).for_each(|at| tiles.push([expert, at, end]));
            first = end;
        }
        for (tier, workgroup) in Gpu::get().tiers().into_iter().flat_map(|tier| [(tier, 96.0), (tier, 256.0)]) {
            let (got_order, got_tiles) = grouped(tier, &ids, experts, workgroup);
            let what = format!("{pairs} pairs of {experts} {tier} {workgroup}");
            assert_eq!(got_order[..order.len()], order, "{what}");
            assert!(got_order[order.len()..].iter().all(|pair| *pair == 9), "{what}");
            let (used, rest) = got_tiles.split_at(tiles.len() * 3);
            assert_eq!(used, tiles.as_flattened(), "{what}");
            assert!(rest.chunks_exact(3).all(|tile| tile[0] == u32::MAX), "{what}");
        }
    }
}

/// `weights . x + bias`
fn product(weights: &[f64], x: &[f32], bias: f32) -> f64 {
    weights.iter().zip(x).map(|(w, x)| w * f64::from(*x)).sum::<f64>() + f64::from(bias)
}

/// Checks both expert products, `[pairs, rows]` after `OFFSET` columns, with all experts but the
/// first and the last bound.
#[test]
fn products_with_experts_match_their_equation() {
    const OFFSET: usize = 3;
    let gpu = Gpu::get();
    for ty in WeightType::ALL {
        let (experts, rows, cols) = (5, 70, 2 * ty.block());
        let weights = Weights::random(ty, (experts - 2) * rows, cols, 9);
        for (tokens, used) in [(1, 2), (90, 2)] {
            let pairs = tokens * used;
            let ids = chosen(pairs, experts);
            // Biases of all experts but the first.
            let bias = noise((experts - 1) * rows, 11);
            for pairs_per_row in [1, used] {
                let x = noise(pairs / pairs_per_row * cols, 10);
                let pitch = rows + OFFSET;
                let mut expected = vec![0.25; pairs * pitch];
                for (pair, id) in ids.iter().enumerate().filter(|(_, id)| (1..experts as u32 - 1).contains(id)) {
                    let x = &x[pair / pairs_per_row * cols..][..cols];
                    let first = (*id as usize - 1) * rows;
                    let products = weights.values[first * cols..].chunks_exact(cols).zip(&bias[first..]);
                    let out = &mut expected[pair * pitch + OFFSET..][..rows];
                    out.iter_mut().zip(products).for_each(|(out, (weights, bias))| *out = product(weights, x, *bias));
                }
                let params = params::ExpertMatmul {
                    rows: rows as u32,
                    chunks: cols as u32 / 32,
                    pairs: pairs as u32,
                    pairs_per_row: pairs_per_row as u32,
                    x_pitch: cols as u32,
                    y_pitch: pitch as u32,
                    y_offset: OFFSET as u32,
                    first_expert: 1,
                    experts: experts as u32 - 2,
                    first_bias: 1,
                    stride: 2,
                };
                let out = vec![0.25_f32; pairs * pitch];
                for tier in gpu.tiers() {
                    let call = Call {
                        kernel: "expert_gemv",
                        tier,
                        weights: Some(ty),
                        overrides: &[("HAS_BIAS", 1.0)],
                        params: bytes_of(&params),
                        buffers: &[
                            cast_slice(&weights.main),
                            cast_slice(&weights.aux),
                            bytes(&x),
                            bytes(&bias),
                            cast_slice(&ids),
                            bytes(&out),
                        ],
                        workgroups: (2, rows.div_ceil(8) as u32, pairs as u32),
                    };
                    let what = format!("{ty} {tier} {pairs} pairs, {pairs_per_row} pairs_per_row");
                    assert_close(&gpu.run(&call, 5), &expected, 2e-5, &what);

                    let (order, tiles) = grouped(tier, &ids, experts, 64.0);
                    let buffers = [
                        cast_slice(&weights.main),
                        cast_slice(&weights.aux),
                        bytes(&x),
                        bytes(&bias),
                        cast_slice(&order),
                        cast_slice(&tiles),
                        bytes(&out),
                    ];
                    for workgroup in grids_of(ty, &[128.0, 32.0]).iter().copied() {
                        let overrides = [("HAS_BIAS", 1.0), ("WORKGROUP_SIZE", workgroup)];
                        let groups = (rows as f64 / workgroup) as u32 + 1;
                        let workgroups = (tiles.len() as u32 / 3, 2, groups);
                        let call = Call {
                            kernel: "expert_gemm",
                            overrides: &overrides,
                            buffers: &buffers,
                            workgroups,
                            ..call
                        };
                        assert_close(&gpu.run(&call, 6), &expected, 2e-5, &format!("{what} {workgroup}"));
                    }
                }
            }
        }
    }
}
