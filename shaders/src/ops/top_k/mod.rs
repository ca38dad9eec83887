//! Shortlist of the largest values, in rounds: each workgroup chooses the `k` largest of 1024
//! values with their ids, sorted. Larger values come first, then lower ids among equals, then NaN,
//! then padding. The first round takes indices as ids. Each other round takes the results of the
//! round before, until one workgroup is left.

use std::ops::Range;

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{CaseRequest, Extent, KernelCase, loud_noise, noise},
    limits::{TOP_K_MOST, TOP_K_RANGE},
    params::params,
};

params! {
    /// `top_k`
    TopK {
        /// Values to choose from.
        len: u32,
        /// Values chosen per workgroup's range, at most [`TOP_K_MOST`](crate::limits::TOP_K_MOST).
        k: u32,
    }
}

/// The kernel `top_k`.
pub(crate) const KERNEL: Kernel =
    Kernel::new::<TopK>("top_k", &[Read, Read, Write, Write], include_str!("top_k.wgsl"), cases);

/// The id of padding.
const NO_ID: u32 = u32::MAX;

/// Values and their ids.
#[derive(Clone)]
struct List {
    values: Vec<f32>,
    ids: Vec<u32>,
}

/// The `k` largest elements of a range of a list. Both zeros are equal and become zero.
fn oracle(list: &List, range: Range<usize>, k: usize) -> List {
    let mut order: Vec<usize> = range.filter(|at| list.ids[*at] != NO_ID).collect();
    order.sort_by(|a, b| {
        let [x, y] = [a, b].map(|at| list.values[*at]);
        let by_value = y.partial_cmp(&x).unwrap_or_else(|| x.is_nan().cmp(&y.is_nan()));
        by_value.then(list.ids[*a].cmp(&list.ids[*b]))
    });
    let nan = f32::from_bits(0x7fc0_0000);
    let mut values: Vec<f32> = order.iter().map(|at| list.values[*at] + 0.0).collect();
    values.iter_mut().filter(|value| value.is_nan()).for_each(|value| *value = nan);
    let mut ids: Vec<u32> = order.iter().map(|at| list.ids[*at]).collect();
    values.resize(k, f32::NEG_INFINITY);
    ids.resize(k, NO_ID);
    List { values, ids }
}

/// Values that are often equal, any numbers of values, infinities and NaN.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let coarse = |len, steps| loud_noise(len, 3, steps).into_iter().map(f32::round).collect();
    let mut cases = rounds("coarse", 64, 40, coarse(1000, 300.0));
    if request.extent == Extent::Hard {
        return cases;
    }
    let most = TOP_K_MOST as usize;
    for len in [1, 5, 64, 1024, 1025, 5000, 262_144] {
        for (k, workgroup) in [(1, 32), (most, 256), (40, 96)] {
            cases.extend(rounds("noise", workgroup, k, noise(len, len as u64)));
        }
    }
    let odd = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY, -f32::NAN, f32::MIN, f32::MAX, 1e-45, -1e-45, 0.0];
    let mut many = vec![f32::NEG_INFINITY; 3000];
    many[1] = f32::NAN;
    let [mut low, mut masked] = [many.clone(), many];
    (low[2999], masked[2999]) = (-1e30, f32::NAN);
    // Few different values: equal ones are in different ranges and rounds.
    cases.extend(rounds("coarse", 128, most, coarse(70_000, 3.0)));
    cases.extend(rounds("all equal", 128, most, vec![2.5; 9000]));
    cases.extend(rounds("zeros", 128, 3, vec![-1.0, -0.0, 0.0, -0.0]));
    cases.extend([9, 12].into_iter().flat_map(|k| rounds("odd", 64, k, odd.to_vec())));
    cases.extend(rounds("low", 64, most, low));
    cases.extend(rounds("masked", 64, most, masked));
    cases.extend(rounds("NaN", 64, 5, vec![f32::NAN; 2000]));
    // The padding of the last range sorts below NaN, also in the next round.
    cases.extend(rounds("NaN", 64, most, vec![f32::NAN; 1025]));
    cases
}

/// The rounds that reduce `values` to the `k` largest. The last round must equal a sort of all.
fn rounds(what: &str, workgroup: u32, k: usize, values: Vec<f32>) -> Vec<KernelCase> {
    let (len, range) = (values.len(), TOP_K_RANGE as usize);
    let all = List { ids: (0..len as u32).collect(), values };
    let (mut cases, mut list) = (Vec::new(), all.clone());
    loop {
        let len_now = list.values.len();
        let ranges = len_now.div_ceil(range);
        let starts = (0..ranges).map(|at| at * range);
        let tops: Vec<List> = match ranges {
            1 => vec![oracle(&all, 0..len, k)],
            _ => starts.map(|start| oracle(&list, start..len_now.min(start + range), k)).collect(),
        };
        let first = cases.is_empty();
        let (values, ids): (Vec<_>, Vec<_>) = tops.into_iter().map(|list| (list.values, list.ids)).unzip();
        let tops = List { values: values.concat(), ids: ids.concat() };
        let bits: Vec<u32> = tops.values.iter().map(|value| value.to_bits()).collect();
        let before = vec![7_u32; ranges * k];
        let case =
            KernelCase::new("top_k", workgroup, TopK { len: len_now as u32, k: k as u32 }, [ranges as u32, 1, 1])
                .named(format!("{what}: {k} of {len}, round {}, {workgroup} invocations", cases.len()))
                .set("FIRST", first)
                .input(&list.values)
                .input(if first { &[0; 4] } else { &list.ids[..] })
                .input(&before)
                .becomes_words(&bits)
                .input(&before)
                .becomes_words(&tops.ids);
        cases.push(case);
        if ranges == 1 {
            return cases;
        }
        list = tops;
    }
}
