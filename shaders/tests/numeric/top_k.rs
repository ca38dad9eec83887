//! The shortlist of the largest logits, chosen in rounds.

use bytemuck::{bytes_of, cast_slice};
use thermocline_shaders::{
    Tier,
    limits::{TOP_K_MOST, TOP_K_RANGE},
    params,
};

use crate::gpu::{Call, Gpu, bytes, noise};

/// Values and ids of the `k` largest logits. Runs the rounds like the host.
fn top_k(gpu: &Gpu, tier: Tier, workgroup: f64, logits: &[f32], k: u32) -> (Vec<f32>, Vec<u32>) {
    let (mut values, mut ids) = (logits.to_vec(), vec![0_u32]);
    for round in 0.. {
        let ranges = (values.len() as u32).div_ceil(TOP_K_RANGE);
        let out = vec![0_u32; (ranges * k) as usize];
        let params = params::TopK { len: values.len() as u32, k };
        let call = Call {
            kernel: "top_k",
            tier,
            weights: None,
            overrides: &[("WORKGROUP_SIZE", workgroup), ("FIRST", f64::from(u8::from(round == 0)))],
            params: bytes_of(&params),
            buffers: &[bytes(&values), cast_slice(&ids), cast_slice(&out), cast_slice(&out)],
            workgroups: (ranges, 1, 1),
        };
        let [top_values, top_ids] = gpu.run_for(&call, [2, 3]);
        (values, ids) = (bytemuck::cast_vec(top_values), top_ids);
        if ranges == 1 {
            break;
        }
        assert!(round < 4, "rounds do not shrink the list");
    }
    (values, ids)
}

/// Largest first, the lower index first among equals, NaN last. Padded with -inf and the id for
/// none.
fn sorted(logits: &[f32], k: u32) -> (Vec<f32>, Vec<u32>) {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|a, b| {
        let [a, b] = [a, b].map(|i| logits[*i as usize]);
        b.partial_cmp(&a).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
    });
    order.resize(k as usize, u32::MAX);
    let value = |id: &u32| logits.get(*id as usize).copied().unwrap_or(f32::NEG_INFINITY);
    (order.iter().map(value).collect(), order)
}

fn check(gpu: &Gpu, tier: Tier, workgroup: f64, logits: &[f32], k: u32, what: &str) {
    let ((values, ids), (expected, expected_ids)) = (top_k(gpu, tier, workgroup, logits, k), sorted(logits, k));
    let what = format!("{what}: {k} of {} {tier} {workgroup}", logits.len());
    assert_eq!(ids, expected_ids, "{what}");
    for (got, expected) in values.iter().zip(&expected) {
        assert!(got == expected || (got.is_nan() && expected.is_nan()), "{what}: {got} for {expected}");
    }
}

#[test]
fn top_k_matches_a_sort_for_any_vocabulary_size() {
    let gpu = Gpu::get();
    for tier in gpu.tiers() {
        for len in [1, 5, 64, 1024, 1025, 5000, 262_144] {
            let logits = noise(len, len as u32);
            for (k, workgroup) in [(1, 32.0), (TOP_K_MOST, 256.0), (40, 96.0)] {
                check(gpu, tier, workgroup, &logits, k, "noise");
            }
        }
    }
}

#[test]
fn top_k_of_equals_takes_the_lowest_index() {
    let gpu = Gpu::get();
    for tier in gpu.tiers() {
        // Few different values, so that equal values are in different ranges and rounds.
        let coarse: Vec<f32> = noise(70_000, 3).iter().map(|v| (v * 3.0).round()).collect();
        check(gpu, tier, 128.0, &coarse, 64, "coarse");
        check(gpu, tier, 128.0, &[2.5; 9000], 64, "all equal");
        // Both zeros are equal.
        check(gpu, tier, 128.0, &[-1.0, -0.0, 0.0, -0.0], 3, "zeros");
    }
}

#[test]
fn top_k_orders_infinities_and_nan() {
    let gpu = Gpu::get();
    let odd = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY, -f32::NAN, f32::MIN, f32::MAX, 1e-45, -1e-45, 0.0];
    let mut many = vec![f32::NEG_INFINITY; 3000];
    many[1] = f32::NAN;
    many[2999] = -1e30;
    let mut masked = many.clone();
    masked[2999] = f32::NAN;
    for tier in gpu.tiers() {
        check(gpu, tier, 64.0, &odd, 9, "odd");
        check(gpu, tier, 64.0, &odd, 12, "odd, filled up");
        check(gpu, tier, 64.0, &many, 64, "many");
        check(gpu, tier, 64.0, &masked, 64, "masked");
        check(gpu, tier, 64.0, &[f32::NAN; 2000], 5, "no number at all");
        // The last range is padded with values that sort below NaN, also in the next round.
        check(gpu, tier, 64.0, &[f32::NAN; 1025], 64, "no number at all");
    }
}
