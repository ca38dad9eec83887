//! The self-test on the tests' driver, which is correct, and with kernels that are broken on
//! purpose.

use std::collections::BTreeSet;

use super::*;
use crate::{AdapterChoice, GpuOptions, KernelMutation};

/// Mistakes that numeric tests detect, one per kernel: the kernel, a piece of its text, and the
/// replacement.
const MUTATIONS: &str = include_str!("../../../../../tests/mutations.tsv");

fn open(mutation: Option<KernelMutation>) -> Gpu {
    let adapter = AdapterChoice::Index(0);
    Gpu::open(&GpuOptions { adapter, mutation, ..GpuOptions::default() }).unwrap()
}

fn test(gpu: &Gpu, types: &[TensorType]) -> SelfTest {
    self_test(gpu, types, &mut || ControlFlow::Continue(())).unwrap()
}

fn mutations() -> Vec<KernelMutation> {
    let lines = MUTATIONS.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let mutation = |line: &str| {
        let [kernel, from, to]: [String; 3] =
            line.split('\t').map(str::to_owned).collect::<Vec<_>>().try_into().unwrap();
        KernelMutation { kernel, from, to }
    };
    lines.map(mutation).collect()
}

/// Asserts that the self-test reports this kernel as wrong, and no other.
fn is_found(mutation: &KernelMutation) {
    let found = test(&open(Some(mutation.clone())), &[TensorType::Q4_K]);
    let wrong: BTreeSet<&str> =
        found.rows.iter().filter(|row| !row.outcome.is_right()).map(|row| row.kernel.as_str()).collect();
    let may = BTreeSet::from([mutation.kernel.as_str(), "gemv_dot"]);
    assert!(wrong.contains(mutation.kernel.as_str()), "{mutation:?} is not found");
    // Packed products read the output of `quantise_q8`.
    let others = mutation.kernel == "quantise_q8" && wrong.is_subset(&may) || wrong.len() == 1;
    assert!(others, "{mutation:?}: {}", found.faults());
}

#[test]
fn every_kernel_is_tested_and_right_in_every_text() {
    let gpu = open(None);
    let used = gpu.arena().used();
    let found = test(&gpu, &[TensorType::Q4_K, TensorType::F16, TensorType::Q4_K]);
    assert!(found.is_right(), "{}", found.faults());
    assert!(found.failed_features().is_empty() && found.wrong_kernel().is_none());
    // The tests' driver has no cooperative matrices.
    let expected: BTreeSet<&str> =
        KERNELS.iter().filter(|kernel| !kernel.cooperative).map(|kernel| kernel.name).collect();
    let tested: BTreeSet<&str> = found.rows.iter().map(|row| row.kernel.as_str()).collect();
    assert_eq!(tested, expected);
    for kernel in KERNELS.iter().filter(|kernel| !kernel.cooperative) {
        let texts: BTreeSet<_> = [Tier::PORTABLE, gpu.caps().tier]
            .map(|tier| kernel.source(tier, kernel.weights.first().copied()).unwrap())
            .into();
        let packed = ["gemv_dot", "quantise_q8"].contains(&kernel.name);
        let of_types = kernel.weights.len().min(if packed { 1 } else { 2 }).max(1);
        let rows = if packed { 1 } else { of_types * texts.len() };
        assert_eq!(found.rows.iter().filter(|row| row.kernel == kernel.name).count(), rows, "{}", kernel.name);
    }
    assert_eq!(gpu.arena().used(), used, "all memory is given back");
    println!("{} rows in {:.0} ms", found.rows.len(), found.milliseconds);
    found
        .rows
        .iter()
        .for_each(|row| println!("{:<22} {:<12} {:>7.1} ms {}", row.name(), row.text(), row.milliseconds, row.outcome));
    let kept: SelfTest = serde_json::from_str(&serde_json::to_string(&found).unwrap()).unwrap();
    let said = |test: &SelfTest| {
        test.rows.iter().map(|row| format!("{} {} {}", row.name(), row.text(), row.outcome)).collect::<Vec<_>>()
    };
    assert_eq!(said(&kept), said(&found));
}

#[test]
#[ignore = "second tier: products of every type of weights"]
fn every_type_of_weights_is_right() {
    let types: Vec<TensorType> = TensorType::ALL.into_iter().filter(|ty| ty.is_weight()).collect();
    let found = test(&open(None), &types);
    assert!(found.is_right(), "{}", found.faults());
}

#[test]
fn broken_kernels_are_found() {
    let some = ["gemv", "attention_decode", "route", "sparse_down"];
    mutations().iter().filter(|mutation| some.contains(&mutation.kernel.as_str())).for_each(is_found);
}

#[test]
#[ignore = "second tier: every kernel broken, one by one"]
fn every_broken_kernel_is_found() {
    let all = mutations();
    let runs = KERNELS.iter().filter(|kernel| !kernel.cooperative).count();
    assert_eq!(all.len(), runs, "every kernel but the cooperative ones has a mutation");
    all.iter().for_each(is_found);
}

#[test]
fn a_text_that_is_wrong_takes_away_its_feature() {
    let mutation = |kernel: &str, from: &str, to: &str| {
        let [kernel, from, to] = [kernel, from, to].map(str::to_owned);
        test(&open(Some(KernelMutation { kernel, from, to })), &[TensorType::Q4_K])
    };
    let subgroups = mutation("norm", "subgroupAdd(value)", "subgroupMax(value)");
    assert_eq!((subgroups.failed_features(), subgroups.wrong_kernel()), (vec![GpuFeature::Subgroups], None));
    let packed = mutation("gemv_dot", "return input.scale * sum", "return input.scale + sum");
    assert_eq!((packed.failed_features(), packed.wrong_kernel()), (vec![GpuFeature::PackedDot], None));
    let refused = mutation("top_k", "fn top_k", "fn other");
    let kernel = refused.wrong_kernel().unwrap();
    assert!(
        kernel.kernel == "top_k"
            && matches!(&kernel.outcome, KernelOutcome::Failed { reason } if reason.contains("top_k"))
    );
    assert!(refused.failed_features().is_empty(), "{}", refused.faults());
}
