//! Every kernel computes what its scalar oracle expects, in every tier of the test machine's
//! driver.
#![allow(clippy::unwrap_used)]

mod plain_matrices;

use std::collections::BTreeSet;

use thermocline_gpu::{AdapterChoice, CaseBench, Gpu, GpuOptions, KernelMutation, Tier, WeightType};
use thermocline_shaders::{CaseRequest, Extent, KERNELS, Kernel};

/// Most bytes of all inputs of a case together, and of all its results.
const MOST_BYTES: u64 = 32 << 20;

/// The change in the environment variable `MUTATION`: the kernel, a piece of its text and its
/// replacement, separated by tabs. `tests/mutate_shaders.sh` checks that every kernel's test
/// detects such a change.
fn mutation() -> Option<KernelMutation> {
    let mutation = std::env::var("MUTATION").ok()?;
    let parts: Vec<String> = mutation.split('\t').map(str::to_owned).collect();
    let [kernel, from, to] = parts.try_into().expect("MUTATION is KERNEL, FROM and TO with tabs between");
    let places = KERNELS.iter().filter(|it| it.name == kernel).map(|it| {
        let text = it.source(Tier::PORTABLE, it.weights.first().copied()).unwrap();
        text.matches(&from).count()
    });
    println!("mutated {kernel}: {} places", places.sum::<usize>());
    Some(KernelMutation { kernel, from, to })
}

/// A device that computes `kernel` as its text says, without the hardware's matrix products.
fn open(kernel: &Kernel, tier: Tier, weights: Option<WeightType>) -> Gpu {
    let mutation = if kernel.cooperative {
        let from = kernel.source(tier, weights).unwrap();
        let to = plain_matrices::in_plain_text(&from);
        Some(KernelMutation { kernel: kernel.name.to_owned(), from, to })
    } else {
        mutation()
    };
    let adapter = AdapterChoice::Index(0);
    Gpu::open(&GpuOptions { adapter, mutation, ..GpuOptions::default() }).unwrap()
}

/// Runs all cases of a kernel in every tier in which its text differs.
fn matches_its_oracle(name: &str) {
    let kernel = Kernel::named(name).unwrap();
    let device = open(kernel, *kernel.tiers().last().unwrap(), kernel.weights.first().copied());
    let types: Vec<Option<WeightType>> = match kernel.weights {
        [] => vec![None],
        types => types.iter().copied().map(Some).collect(),
    };
    let mut ran = 0;
    let has = device.caps().tier;
    let fits = |tier: &Tier| (has.subgroups || !tier.subgroups) && (has.f16 || !tier.f16);
    for tier in kernel.tiers().iter().copied().filter(fits) {
        let mut shared: Option<CaseBench> = None;
        for weights in &types {
            let text = kernel.source(tier, *weights).unwrap();
            let plainer = kernel.tiers().iter().take_while(|it| **it != tier);
            if plainer.map(|it| kernel.source(*it, *weights).unwrap()).any(|it| it == text) {
                continue;
            }
            let bench = match &mut shared {
                Some(bench) if !kernel.cooperative => bench,
                bench => {
                    let gpu = open(kernel, tier, *weights).on_trial(tier).unwrap();
                    bench.insert(CaseBench::new(gpu, MOST_BYTES).unwrap())
                }
            };
            let request = CaseRequest { extent: Extent::All, tier, ty: weights.unwrap_or(WeightType::F32) };
            for case in (kernel.cases)(&request).iter().filter(|case| case.kernel == name) {
                let what = format!("{name} {} ({tier}): {}", weights.map_or("", WeightType::name), case.name);
                let difference = bench.run(case).unwrap_or_else(|error| panic!("{what}: {error}"));
                let difference = difference.unwrap_or_else(|| panic!("{what}: no result is expected"));
                assert!(difference.error.is_right(), "{what}: {difference:?}");
                ran += 1;
            }
        }
    }
    assert!(ran > 0, "{name} has no cases");
    println!("{name}: {ran} cases");
}

/// A test per kernel.
macro_rules! kernel_tests {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                matches_its_oracle(stringify!($name));
            }
        )*

        #[test]
        fn every_kernel_has_a_test() {
            let tests = BTreeSet::from([$(stringify!($name)),*]);
            assert_eq!(tests, KERNELS.iter().map(|kernel| kernel.name).collect());
        }
    };
}

kernel_tests! {
    activation active_mask add altup_add altup_correct altup_predict attention_decode attention_merge
    attention_prompt combine delta_inputs delta_net embedding expert_gate_up expert_gemm expert_gemv
    gate_excess gate_heads gated_input gated_norm gemm gemm_coop gemm_coop_8 gemm_neurons gemv gemv_dot
    group_slots half_scale latent_append limit_values mamba2_scan norm quantise_q8 read_bandwidth
    rope_append route scale short_conv slot_list soft_cap sparse_down sparse_gate_up subgroup_trial sum_splits top_k
}
