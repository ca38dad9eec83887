//! Sums of words, for a measurement of the read bandwidth: invocation `i` of `n` computes
//! `sums[i]`, the wrapping sum of all words in the 16-byte elements `i`, `i + n`, `i + 2n` and so
//! on.

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{CaseRequest, KernelCase},
    params::params,
};

params! {
    /// `read_bandwidth`
    Stream {
        /// 16-byte elements to read.
        len: u32,
        /// Invocations in one row of the grid.
        stride: u32,
        /// Invocations of the grid.
        invocations: u32,
    }
}

/// The kernel `read_bandwidth`.
pub(crate) const KERNEL: Kernel =
    Kernel::new::<Stream>("read_bandwidth", &[Read, Write], include_str!("read_bandwidth.wgsl"), cases);

/// The sums of all invocations.
fn oracle(data: &[u32], invocations: usize) -> Vec<u32> {
    let mut sums = vec![0_u32; invocations];
    for (at, element) in data.chunks_exact(4).enumerate() {
        let sum = &mut sums[at % invocations];
        *sum = element.iter().fold(*sum, |sum, word| sum.wrapping_add(*word));
    }
    sums
}

/// Elements for the loop of four reads, and a rest. Some invocations have no element.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let shapes = [(773, [2, 1]), (1, [1, 1]), (63, [2, 1]), (4096, [3, 2]), (100_003, [5, 1])];
    request.pick(&shapes, 1).iter().map(|(len, groups)| case(*len, *groups)).collect()
}

fn case(len: u32, [x, y]: [u32; 2]) -> KernelCase {
    let data: Vec<u32> = (0..4 * len).map(|i| (i + 1).wrapping_mul(2_654_435_761)).collect();
    let (stride, invocations) = (x * 64, x * y * 64);
    let sums = oracle(&data, invocations as usize);
    KernelCase::new("read_bandwidth", 64, Stream { len, stride, invocations }, [x, y, 1])
        .named(format!("{len} elements, {x} x {y} workgroups"))
        .input(&data)
        .input(&vec![u32::MAX; sums.len()])
        .becomes_words(&sums)
}
