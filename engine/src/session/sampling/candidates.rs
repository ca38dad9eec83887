//! Candidate tokens, the filters that reduce them, and the exponential for their probabilities.

use std::cmp::Ordering;

/// A token that may be chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct TokenLogit {
    /// Finite logit of the token.
    pub logit: f32,
    /// Id of the token.
    pub id: u32,
}

impl TokenLogit {
    /// Replaces `+inf` by the largest finite logit, and -0 by 0 so that the two tie.
    fn new(id: usize, logit: f32) -> Self {
        TokenLogit { logit: logit.min(f32::MAX) + 0.0, id: id as u32 }
    }

    /// Orders by falling likelihood and then by id, so that the order is total and the same
    /// everywhere.
    fn order(&self, other: &Self) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.id.cmp(&other.id))
    }
}

/// Candidates in a defined order: by id at first, by likelihood after a filter has ranked them.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    items: Vec<TokenLogit>,
    /// True if `items` are ordered by likelihood.
    ranked: bool,
    /// Distance of each candidate from the expected logit, for typical sampling.
    distances: Vec<(f64, TokenLogit)>,
}

impl Candidates {
    /// Collects all tokens that are not banned (`-inf` or not a number), by id.
    pub fn collect(&mut self, logits: &[f32]) {
        self.ranked = false;
        self.items.clear();
        let allowed = logits.iter().enumerate().filter(|&(_, &logit)| logit > f32::NEG_INFINITY);
        self.items.extend(allowed.map(|(id, &logit)| TokenLogit::new(id, logit)));
    }

    /// Collects the `k` most likely tokens that are not banned, ranked. It takes one pass with a
    /// rising floor, so that nearly every token of a large vocabulary costs one comparison.
    pub fn collect_top_k(&mut self, logits: &[f32], k: usize) {
        let k = k.min(logits.len());
        let limit = (2 * k).max(k + 256);
        self.ranked = true;
        self.items.clear();
        if k == 0 {
            return;
        }
        let mut floor = f32::NEG_INFINITY;
        for (id, &logit) in logits.iter().enumerate() {
            // A later token that equals the floor loses the tie by its id.
            if logit > floor {
                self.items.push(TokenLogit::new(id, logit));
                if self.items.len() == limit {
                    floor = self.keep_top_k(k);
                }
            }
        }
        if self.items.len() > k {
            self.keep_top_k(k);
        }
        self.items.sort_unstable_by(TokenLogit::order);
    }

    /// The candidates.
    #[cfg(test)]
    pub fn items(&self) -> &[TokenLogit] {
        &self.items
    }

    /// True if there are no candidates.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Keeps the most likely candidates with total probability `p`, at least one.
    pub fn top_p(&mut self, p: f32) {
        if p >= 1.0 || self.items.len() < 2 {
            return;
        }
        let max = self.max();
        let wanted = f64::from(p) * self.total(max, 1.0);
        let mut mass = 0.0;
        let mut sorted = if self.ranked { self.items.len() } else { 0 };
        let mut kept = 0;
        while kept < self.items.len() {
            if kept == sorted {
                sorted = sort_more(&mut self.items, sorted, TokenLogit::order);
            }
            mass += f64::from(exp(self.items[kept].logit - max));
            kept += 1;
            if mass >= wanted {
                break;
            }
        }
        self.items.truncate(kept);
        self.ranked = true;
    }

    /// Keeps candidates that are at least `p` times as likely as the most likely one.
    pub fn min_p(&mut self, p: f32) {
        if p > 0.0 && !self.items.is_empty() {
            let max = self.max();
            self.items.retain(|candidate| exp(candidate.logit - max) >= p);
        }
    }

    /// Keeps the candidates whose surprise `-ln p` is closest to the entropy, with total
    /// probability `p`, at least one (Meister et al. 2022, "Locally typical sampling").
    ///
    /// With `ln p_i = l_i - ln Z`, surprise minus entropy is `E[l] - l_i`, so that neither
    /// logarithm is computed.
    pub fn typical(&mut self, p: f32) {
        if p >= 1.0 || self.items.len() < 2 {
            return;
        }
        let max = self.max();
        let total = self.total(max, 1.0);
        let relative = |candidate: &TokenLogit| f64::from(candidate.logit) - f64::from(max);
        let weight = |candidate: &TokenLogit| f64::from(exp(candidate.logit - max));
        let expected = self.items.iter().map(|candidate| weight(candidate) * relative(candidate)).sum::<f64>() / total;
        self.distances.clear();
        self.distances.extend(self.items.iter().map(|candidate| ((expected - relative(candidate)).abs(), *candidate)));
        let wanted = f64::from(p) * total;
        let mut mass = 0.0;
        let mut sorted = 0;
        self.items.clear();
        for kept in 0..self.distances.len() {
            if kept == sorted {
                sorted =
                    sort_more(&mut self.distances, sorted, |(a, x), (b, y)| a.total_cmp(b).then_with(|| x.order(y)));
            }
            let (_, candidate) = self.distances[kept];
            self.items.push(candidate);
            mass += weight(&candidate);
            if mass >= wanted {
                break;
            }
        }
        self.items.sort_unstable_by(TokenLogit::order);
        self.ranked = true;
    }

    /// The candidate at quantile `uniform` (in `0..1`) of the distribution
    /// `softmax(logit / temperature)`.
    pub fn draw(&self, temperature: f32, uniform: f64) -> Option<u32> {
        let max = self.max();
        let mut left = uniform * self.total(max, temperature);
        let mut last = None;
        for candidate in &self.items {
            let weight = f64::from(exp((candidate.logit - max) / temperature));
            if weight > 0.0 {
                last = Some(candidate.id);
                left -= weight;
                if left < 0.0 {
                    break;
                }
            }
        }
        last
    }

    /// Keeps the `k` most likely candidates, at least 1, in any order. Returns their smallest
    /// logit.
    fn keep_top_k(&mut self, k: usize) -> f32 {
        let (_, kth, _) = self.items.select_nth_unstable_by(k - 1, TokenLogit::order);
        let least = kth.logit;
        self.items.truncate(k);
        least
    }

    /// The largest logit.
    fn max(&self) -> f32 {
        match self.items.first() {
            Some(first) if self.ranked => first.logit,
            _ => self.items.iter().fold(f32::MIN, |max, candidate| max.max(candidate.logit)),
        }
    }

    /// Sum of `exp((logit - max) / temperature)`. Lanes let it vectorise, and the order of
    /// additions is fixed.
    fn total(&self, max: f32, temperature: f32) -> f64 {
        let mut lanes = [0.0f64; 8];
        for chunk in self.items.chunks(lanes.len()) {
            for (lane, candidate) in lanes.iter_mut().zip(chunk) {
                *lane += f64::from(exp((candidate.logit - max) / temperature));
            }
        }
        lanes.iter().sum()
    }
}

/// Sorts some more items. The first `sorted` items must already be in their final order. Returns
/// the new number of sorted items. The work is nearly linear, even if few items are needed.
fn sort_more<T>(items: &mut [T], sorted: usize, order: impl Fn(&T, &T) -> Ordering) -> usize {
    let rest = &mut items[sorted..];
    let more = (3 * sorted).max(128).min(rest.len());
    if more < rest.len() {
        rest.select_nth_unstable_by(more - 1, &order);
    }
    rest[..more].sort_unstable_by(order);
    sorted + more
}

/// `e^x` for `x <= 0`, within 2 units in the last place; 0 below -87. It uses only IEEE additions
/// and multiplications, so every platform gives the same bits, and loops over it vectorise.
///
/// `e^x = 2^k e^r` with `k = round(x / ln 2)`, `|r| <= ln 2 / 2` and a polynomial for `e^r`.
fn exp(x: f32) -> f32 {
    // Adding this constant rounds to an integer, which is left in the low bits of the significand.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts. The first part has so few bits that `k * LN2_HIGH` is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x > -87.0 { x } else { -87.0 };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let k = shifted - ROUND;
    let r = clamped - k * LN2_HIGH - k * LN2_LOW;
    let mut p = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + coefficient;
    }
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
    let scaled = p * f32::from_bits(exponent << 23);
    if x > -87.0 { scaled } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Probabilities in double precision, most likely first.
    fn softmax(logits: &[f32]) -> Vec<(u32, f64)> {
        let max = logits.iter().copied().fold(f64::MIN, |max, logit| max.max(f64::from(logit)));
        let total: f64 = logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
        let mut all: Vec<(u32, f64)> = (0u32..)
            .zip(logits)
            .filter(|(_, logit)| **logit > f32::NEG_INFINITY)
            .map(|(id, &logit)| (id, (f64::from(logit) - max).exp() / total))
            .collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        all
    }

    fn prefix(ranked: &[(u32, f64)], p: f64) -> usize {
        let mut mass = 0.0;
        for (kept, (_, probability)) in ranked.iter().enumerate() {
            mass += probability;
            if mass >= p {
                return kept + 1;
            }
        }
        ranked.len()
    }

    fn ids(candidates: &Candidates) -> Vec<u32> {
        candidates.items().iter().map(|candidate| candidate.id).collect()
    }

    fn sorted(mut ids: Vec<u32>) -> Vec<u32> {
        ids.sort_unstable();
        ids
    }

    fn logits() -> impl Strategy<Value = Vec<f32>> {
        let logit = prop_oneof![8 => -12.0f32..12.0, 1 => Just(f32::NEG_INFINITY), 1 => Just(1.5f32)];
        prop::collection::vec(logit, 1..2000).prop_map(|mut logits| {
            logits[0] = 0.25;
            logits
        })
    }

    proptest! {
        #[test]
        fn top_k_is_a_truncated_full_sort(logits in logits(), k in 1usize..600) {
            let mut candidates = Candidates::default();
            candidates.collect_top_k(&logits, k);
            let mut want: Vec<(u32, f32)> =
                (0u32..).zip(logits.iter().copied()).filter(|(_, logit)| *logit > f32::NEG_INFINITY).collect();
            want.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            want.truncate(k);
            prop_assert_eq!(ids(&candidates), want.into_iter().map(|(id, _)| id).collect::<Vec<_>>());
        }

        #[test]
        fn top_p_keeps_the_smallest_sufficient_set(logits in logits(), p in 0.0f32..1.0, ranked: bool) {
            let mut candidates = Candidates::default();
            if ranked {
                candidates.collect_top_k(&logits, logits.len());
            } else {
                candidates.collect(&logits);
            }
            candidates.top_p(p);
            let want = softmax(&logits);
            let (low, high) = (prefix(&want, f64::from(p) - 1e-6), prefix(&want, f64::from(p) + 1e-6));
            let got = ids(&candidates);
            prop_assert!((low..=high).contains(&got.len()), "{} not in {low}..={high}", got.len());
            // The orders by probability and by logit differ if two logits give the same double.
            let want: Vec<f32> = want[..got.len()].iter().map(|(id, _)| logits[*id as usize]).collect();
            let got: Vec<f32> = got.iter().map(|id| logits[*id as usize]).collect();
            prop_assert_eq!(got, want);
        }

        #[test]
        fn min_p_compares_with_the_likeliest(logits in logits(), p in 0.0f32..1.0) {
            let mut candidates = Candidates::default();
            candidates.collect(&logits);
            candidates.min_p(p);
            let got = ids(&candidates);
            let all = softmax(&logits);
            let least = f64::from(p) * all[0].1;
            for (id, probability) in all {
                if (probability - least).abs() > 1e-6 * least {
                    prop_assert_eq!(got.contains(&id), probability > least);
                }
            }
        }

        #[test]
        fn typical_keeps_the_tokens_closest_to_the_entropy(logits in logits(), p in 0.0f32..1.0) {
            let mut candidates = Candidates::default();
            candidates.collect(&logits);
            candidates.typical(p);
            let mut all = softmax(&logits);
            let entropy: f64 = all.iter().filter(|(_, p)| *p > 0.0).map(|(_, p)| -p * p.ln()).sum();
            let distance = |p: f64| (-p.ln() - entropy).abs();
            all.sort_by(|a, b| distance(a.1).total_cmp(&distance(b.1)));
            let (low, high) = (prefix(&all, f64::from(p) - 1e-6), prefix(&all, f64::from(p) + 1e-6));
            let got = ids(&candidates);
            prop_assert!((low..=high).contains(&got.len()), "{} not in {low}..={high}", got.len());
            let furthest = distance(all[got.len() - 1].1);
            for (id, probability) in &all {
                if (distance(*probability) - furthest).abs() > 1e-5 {
                    prop_assert_eq!(got.contains(id), distance(*probability) < furthest);
                }
            }
        }

        #[test]
        fn draw_inverts_the_cumulative_distribution(
            logits in prop::collection::vec(-6.0f32..6.0, 1..50), temperature in 0.2f32..3.0, uniform in 0.0f64..1.0,
        ) {
            let mut candidates = Candidates::default();
            candidates.collect(&logits);
            let scaled: Vec<f32> = logits.iter().map(|logit| logit / temperature).collect();
            let mut by_id = softmax(&scaled);
            by_id.sort_by_key(|(id, _)| *id);
            let drawn = candidates.draw(temperature, uniform).unwrap();
            let below: f64 = by_id.iter().filter(|(id, _)| *id < drawn).map(|(_, p)| p).sum();
            let own = by_id[drawn as usize].1;
            prop_assert!(below - 1e-5 <= uniform && uniform <= below + own + 1e-5);
        }
    }

    #[test]
    fn banned_tokens_are_no_candidates_and_infinity_is_finite() {
        let logits = [f32::NEG_INFINITY, 1.0, f32::NAN, f32::INFINITY, 2.0];
        let mut candidates = Candidates::default();
        candidates.collect(&logits);
        assert_eq!(ids(&candidates), [1, 3, 4]);
        assert_eq!(candidates.draw(1.0, 0.999), Some(3));
        candidates.collect_top_k(&logits, 9);
        assert_eq!(ids(&candidates), [3, 4, 1]);
        candidates.collect_top_k(&logits, 0);
        assert!(candidates.is_empty() && candidates.draw(1.0, 0.5).is_none());
    }

    #[test]
    fn filters_leave_at_least_one() {
        let logits = [0.0, 0.0, 0.0];
        let mut candidates = Candidates::default();
        for filter in [Candidates::top_p, Candidates::typical] {
            candidates.collect(&logits);
            filter(&mut candidates, 0.0);
            assert_eq!(ids(&candidates), [0]);
        }
        candidates.collect(&logits);
        candidates.min_p(1.0);
        assert_eq!(sorted(ids(&candidates)), [0, 1, 2]);
    }

    #[test]
    fn extreme_temperatures_draw_the_maximum_or_evenly() {
        let logits = [1.0, 3.0, 2.0, -40.0];
        let mut candidates = Candidates::default();
        candidates.collect(&logits);
        for uniform in [0.0, 0.5, 0.999_999] {
            assert_eq!(candidates.draw(1e-9, uniform), Some(1));
            assert_eq!(candidates.draw(f32::from_bits(1), uniform), Some(1));
        }
        for (uniform, id) in [(0.1, 0), (0.3, 1), (0.6, 2), (0.9, 3)] {
            assert_eq!(candidates.draw(1e9, uniform), Some(id));
        }
    }

    #[test]
    fn exp_is_close_to_the_true_exponential() {
        let mut x = 0.0f32;
        while x > -86.9 {
            let want = f64::from(x).exp();
            let relative = (f64::from(exp(x)) - want).abs() / want;
            assert!(relative < 2.0 * f64::from(f32::EPSILON), "exp({x}) is off by {relative:e}");
            x -= 0.001_37;
        }
    }

    #[test]
    fn exp_is_defined_at_its_ends() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        for x in [-87.0, -1e9, f32::MIN, f32::NEG_INFINITY] {
            assert_eq!(exp(x), 0.0, "exp({x})");
        }
    }

    #[test]
    fn exp_bits_do_not_depend_on_the_platform() {
        let bits = [-0.5f32, -1.0, -3.25, -20.0, -80.125].map(|x| exp(x).to_bits());
        let near = [-0.5f64, -1.0, -3.25, -20.0, -80.125].map(|x| (x.exp() as f32).to_bits());
        for (got, near) in bits.into_iter().zip(near) {
            assert!(got.abs_diff(near) <= 2);
        }
    }
}
