//! A reduction over a workgroup of `n` invocations, to test subgroups:
//! `answer[1 + i] = sum of j + value over all j < n` for every invocation `i`. `answer[0]` is the
//! number of subgroups.

use crate::{
    Access::Write,
    Kernel,
    case::{CaseRequest, CaseValues, ExpectedResult, Extent, KernelCase},
    params::params,
};

params! {
    /// `subgroup_trial`
    SubgroupTrial {
        /// Value added to each invocation's index.
        value: u32,
    }
}

/// The kernel `subgroup_trial`.
pub(crate) const KERNEL: Kernel =
    Kernel::new::<SubgroupTrial>("subgroup_trial", &[Write], include_str!("subgroup_trial.wgsl"), cases);

/// The sum that every invocation receives.
fn oracle(workgroup: u32, value: u32) -> u32 {
    (0..workgroup).map(|index| index + value).sum()
}

/// Workgroups of several sizes.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    request.pick(&[64, 32, 96, 128], 1).iter().map(|workgroup| case(*workgroup, request)).collect()
}

fn case(workgroup: u32, request: &CaseRequest) -> KernelCase {
    let value = 5;
    let sums = vec![oracle(workgroup, value); workgroup as usize];
    let mut case = KernelCase::new("subgroup_trial", workgroup, SubgroupTrial { value }, [1, 1, 1])
        .named(format!("{workgroup} invocations"))
        .input(&vec![u32::MAX; 1 + sums.len()])
        .becomes_words_at(1, &sums);
    // Without subgroups, the answer is one. The test machine's subgroups are smaller than every
    // workgroup, so that it answers between two and the number of invocations.
    let (number, tolerance) = if request.tier.subgroups { (workgroup / 2 + 1, workgroup / 2 - 1) } else { (1, 0) };
    if request.extent == Extent::All || !request.tier.subgroups {
        let (values, tolerance) = (CaseValues::Words(vec![number]), f64::from(tolerance));
        case.expected.push(ExpectedResult { binding: 0, offset: 0, values, tolerance });
    }
    case
}
