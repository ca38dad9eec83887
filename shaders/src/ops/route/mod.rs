//! The choice of a token's experts: `ids[t] = the used experts with the largest score(logits[t]) (+
//! bias)`, largest first, for `logits: [tokens, experts]`, and their router weights `scale *
//! score(logits[t, id]) (/ sum of the chosen scores) (* scale_of[id])`. The score is a softmax over
//! all or over the chosen experts, a sigmoid, or SparseMixer. The choice may be restricted to the
//! best groups of experts. With `always > 0`, the router takes that many experts so. It takes the
//! others after it has added `lift + own * range` to the values of experts on the device. The range
//! `max - min` of a token's values then follows the router weights.

use std::cmp::Ordering;

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{CLOSE, CaseRequest, Extent, KernelCase, loud_noise, noise, sizes, wide},
    limits::{NO_NEURON, ROUTE_EXPERTS, ROUTE_USED},
    params::params,
};

params! {
    /// `route`
    Route {
        /// Experts to choose from, at most [`ROUTE_EXPERTS`](crate::limits::ROUTE_EXPERTS).
        experts: u32,
        /// Elements from one token's scores to the next's.
        pitch: u32,
        /// Experts per token, at most [`ROUTE_USED`](crate::limits::ROUTE_USED) and at most
        /// `experts`.
        used: u32,
        /// Rows of scores.
        tokens: u32,
        /// 1 if the router weights of the chosen experts are divided by their sum, else 0.
        renormalise: u32,
        /// Groups of experts, at most [`ROUTE_GROUPS`](crate::limits::ROUTE_GROUPS). 0: no groups.
        groups: u32,
        /// Groups whose experts may be chosen.
        groups_used: u32,
        /// A group is ranked by the sum of this many of its best experts.
        groups_best: u32,
        /// Factor on the router weights.
        scale: f32,
        /// Number of experts that the router takes without regard to their place. With 0, it
        /// prefers no experts.
        always: u32,
        /// The router adds this number to the values of experts on the device.
        lift: f32,
        /// The router also adds this fraction of the range of the token's values.
        own: f32,
    }
}

/// The kernel `route`.
pub(crate) const KERNEL: Kernel =
    Kernel::new::<Route>("route", &[Read, Read, Read, Write, Write, Write, Read], include_str!("route.wgsl"), cases);

/// Elements of a row of logits past the experts.
const MARGIN: usize = 7;

/// Options of a router.
#[derive(Debug, Clone, Copy)]
struct RouteSample {
    score: u32,
    bias: bool,
    /// Each expert has a factor.
    scaled: bool,
    renormalise: bool,
    /// All groups, the groups whose experts may be chosen, and the number of a group's best experts
    /// that rank it. 0: no groups.
    groups: [usize; 3],
    scale: f32,
    /// The parameters that prefer experts on the device.
    always: usize,
    lift: f32,
    own: f32,
}

/// Indices in descending order of the values. Of equal values, the first comes first. NaN is last.
fn descending(of: &[f64]) -> Vec<usize> {
    let key = |at: &usize| (!of[*at].is_nan(), of[*at].max(f64::NEG_INFINITY));
    let mut order: Vec<usize> = (0..of.len()).collect();
    order.sort_by(|a, b| key(b).partial_cmp(&key(a)).unwrap_or(Ordering::Equal));
    order
}

/// SparseMixer's router weight of the chosen expert of rank `rank`.
fn mixed(logits: &[f64], chosen: &[usize], rank: usize) -> f64 {
    let best = logits[chosen[rank]];
    let near = |logit: f64| best - logit <= 0.02 * logit.abs().max(best);
    let others = logits.iter().enumerate().filter(|(e, logit)| !chosen[..rank].contains(e) && near(**logit));
    1.0 / others.map(|(_, logit)| (logit - best).exp()).sum::<f64>()
}

/// The result of the router for one token.
struct RoutedToken {
    chosen: Vec<usize>,
    router_weights: Vec<f64>,
    /// The largest minus the smallest value by which the router chose.
    range: f64,
}

/// Every third expert is not on the device.
fn is_away(expert: usize) -> bool {
    expert % 3 == 2
}

/// The chosen experts of a token. `bias` and `factors` have one value per expert.
fn oracle(logits: &[f64], used: usize, router: &RouteSample, [bias, factors]: [&[f32]; 2]) -> RoutedToken {
    let top = logits.iter().copied().fold(f64::MIN, f64::max);
    let all: f64 = logits.iter().map(|logit| (logit - top).exp()).sum();
    let score = |logit: f64| match router.score {
        0 => (logit - top).exp() / all,
        1 | 3 => logit,
        _ => 1.0 / (1.0 + (-logit).exp()),
    };
    let [groups, groups_used, best] = router.groups;
    let mut choice = logits.to_vec();
    // Otherwise the logits have the same order as the scores.
    if router.bias || groups > 0 {
        choice.iter_mut().for_each(|choice| *choice = score(*choice));
    }
    if router.bias {
        choice.iter_mut().zip(bias).for_each(|(choice, bias)| *choice += f64::from(*bias));
    }
    let range = choice.iter().copied().fold(f64::MIN, f64::max) - choice.iter().copied().fold(f64::MAX, f64::min);
    if let Some(len) = logits.len().checked_div(groups) {
        let sum = |group: &[f64]| descending(group)[..best].iter().map(|at| group[*at]).sum();
        let sums: Vec<f64> = choice.chunks_exact(len).map(sum).collect();
        descending(&sums)[groups_used..].iter().for_each(|group| choice[group * len..][..len].fill(f64::MIN));
    }
    if router.always > 0 {
        let first = descending(&choice)[..router.always.min(used)].to_vec();
        let lifted = choice.iter_mut().enumerate().filter(|(expert, value)| !is_away(*expert) && **value > f64::MIN);
        lifted.for_each(|(_, value)| *value += f64::from(router.lift) + f64::from(router.own) * range);
        first.iter().rev().zip(1..).for_each(|(expert, place)| choice[*expert] = 1e9 * f64::from(place));
    }
    let chosen = descending(&choice)[..used].to_vec();
    let weight = |(rank, expert): (usize, &usize)| match router.score {
        1 => (logits[*expert] - top).exp(),
        3 => mixed(logits, &chosen, rank),
        _ => score(logits[*expert]),
    };
    let mut weights: Vec<f64> = chosen.iter().enumerate().map(weight).collect();
    let sum: f64 = if router.renormalise || router.score == 1 { weights.iter().sum() } else { 1.0 };
    for (weight, expert) in weights.iter_mut().zip(&chosen) {
        let factor = if router.scaled { factors[*expert] } else { 1.0 };
        *weight *= f64::from(router.scale) / sum * f64::from(factor);
    }
    RoutedToken { chosen, router_weights: weights, range }
}

/// Every score, alone and with each option.
fn routers() -> Vec<RouteSample> {
    let plain = RouteSample {
        score: 0,
        bias: false,
        scaled: false,
        renormalise: true,
        groups: [0; 3],
        scale: 1.5,
        always: 0,
        lift: 0.0,
        own: 0.0,
    };
    let of_score = |score| {
        [(false, false), (false, true), (true, false)].into_iter().flat_map(move |(bias, scaled)| {
            [true, false].map(|renormalise| RouteSample { score, bias, scaled, renormalise, ..plain })
        })
    };
    let grouped = [(0, false), (1, true), (2, true)].into_iter().flat_map(|(score, bias)| {
        let router = RouteSample { score, bias, scale: 1.0, ..plain };
        [([4, 2, 2], true), ([8, 4, 1], false)].map(|(groups, renormalise)| RouteSample {
            groups,
            renormalise,
            ..router
        })
    });
    let exact: Vec<RouteSample> = (0..4).flat_map(of_score).chain(grouped).collect();
    // Values of scores are below 1, and logits are larger.
    let preferring =
        exact.iter().filter(|router| !router.scaled).zip([1, 2].into_iter().cycle()).map(|(router, always)| {
            let by_scores = router.bias || router.groups[0] > 0;
            let lift = if by_scores && router.score % 2 == 0 { 0.05 } else { 2.5 };
            let (lift, own) = if always == 1 { (lift, 0.0) } else { (0.0, 0.3) };
            RouteSample { always, lift, own, ..*router }
        });
    exact.iter().copied().chain(preferring).collect()
}

/// Few and many experts, in workgroups that are smaller and larger. One token has equal logits, and
/// one has logits whose exponentials overflow.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    const MOST: usize = ROUTE_EXPERTS as usize;
    const MOST_USED: usize = ROUTE_USED as usize;
    let shapes = [(60, 4, 256), (1, 1, 32), (3, 3, 96), (8, 2, 32), (60, 4, 32), (128, 8, 96), (128, 8, 256)];
    let shapes = [&shapes[..], &[(256, 16, 32), (MOST, MOST_USED, 96), (MOST, MOST_USED, 256)]].concat();
    let (routers, mut cases) = (routers(), Vec::new());
    for (experts, used, workgroup) in request.pick(&shapes, 1).iter().copied() {
        let fits = |router: &&RouteSample| router.groups[0] == 0 || (experts > 8 && experts % router.groups[0] == 0);
        let routers = request.pick(&routers, 2).iter().filter(fits);
        cases.extend(routers.map(|router| {
            let pitch = experts + MARGIN;
            let mut logits = loud_noise(5 * pitch, experts as u64, 6.0);
            if !router.bias && router.groups[0] == 0 {
                logits[..pitch].iter_mut().for_each(|logit| *logit = logit.round());
            }
            if router.score != 2 {
                logits[pitch..2 * pitch].iter_mut().for_each(|logit| *logit += 1000.0);
            }
            case(&logits, [experts, used], workgroup, router)
        }));
    }
    if request.extent == Extent::All {
        let rows = [[f32::NAN, 1.0, f32::NEG_INFINITY, f32::NAN], [f32::NAN; 4]];
        let logits = rows.map(|row| [&row[..], &[2.0; MARGIN]].concat()).concat();
        cases.push(case(&logits, [4, 3], 128, &routers[0]));
    }
    cases
}

fn case(logits: &[f32], [experts, used]: [usize; 2], workgroup: u32, router: &RouteSample) -> KernelCase {
    let (bias, factors) = (noise(experts, 77), noise(experts, 78));
    let place_of: Vec<u32> = (0..experts).map(|e| if is_away(e) { NO_NEURON } else { e as u32 / 3 }).collect();
    let rows = logits.chunks_exact(experts + MARGIN).map(|row| wide(&row[..experts]));
    let rows = rows.map(|logits| oracle(&logits, used, router, [&bias, &factors]));
    let rows: Vec<RoutedToken> = rows.collect();
    let chosen = rows.iter().flat_map(|row| row.chosen.iter().copied()).collect::<Vec<_>>();
    let mut weights = rows.iter().flat_map(|row| row.router_weights.iter().copied()).collect::<Vec<_>>();
    if router.always > 0 {
        weights.extend(rows.iter().map(|row| row.range));
    }
    let places: Vec<u32> = chosen.iter().map(|expert| place_of[*expert]).collect();
    let ids: Vec<u32> = chosen.iter().map(|expert| *expert as u32).collect();
    let [pitch, tokens, used32, experts32] = sizes([experts + MARGIN, ids.len() / used, used, experts]);
    let [groups, groups_used, groups_best] = sizes(router.groups);
    let params = Route {
        experts: experts32,
        pitch,
        used: used32,
        tokens,
        renormalise: u32::from(router.renormalise),
        groups,
        groups_used,
        groups_best,
        scale: router.scale,
        always: router.always as u32,
        lift: router.lift,
        own: router.own,
    };
    let before = vec![NO_NEURON; ids.len()];
    let weights_before = vec![NO_NEURON; weights.len()];
    let case = KernelCase::new("route", workgroup, params, [tokens + 1, 1, 1])
        .named(format!("{used} of {experts} experts, {workgroup} invocations, {router:?}"))
        .set("SCORE", router.score)
        .set("BIAS", router.bias)
        .set("SCALED", router.scaled)
        .input(logits)
        .input(&bias)
        .input(&place_of)
        .input(&before)
        .becomes_words(&ids)
        .input(&before)
        .becomes_words(&places)
        .input(&weights_before);
    // Weights from NaN depend on the driver.
    let case = if weights.iter().any(|weight| weight.is_nan()) { case } else { case.becomes(&weights, CLOSE) };
    case.input(&factors)
}
