//! The router of an MoE layer: the experts that each token uses, and their weights.

use super::{ChosenExperts, WHAT};
use crate::runtime::{
    LayerPreference,
    scratch::{grow, held_bytes},
};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::{
    Cpu,
    ops::{softmax_in_place, top_k},
};
use thermocline_model::{ExpertGroups, ExpertWeights, Experts, Router, RouterScore, mask};

/// The experts that a chunk's tokens use, and their router weights. The buffers grow to the size of
/// the largest chunk.
#[derive(Debug, Default)]
pub struct Routing {
    /// `[tokens, experts]`
    scores: Vec<f32>,
    /// `[experts]` for one token: the values that decide the choice, if they are not the scores.
    choice: Vec<f32>,
    /// Weight of the shared expert, if there is one, for each routed token; 1 if it has no gate.
    pub gates: Vec<f32>,
    /// `[tokens, used]`, best first, and their router weights. An index past the last expert means
    /// no expert.
    pub(super) chosen: Vec<usize>,
    pub(super) router_weights: Vec<f32>,
    /// `[tokens]`: the ranges of the values that decided the choices; empty without a preference.
    pub(super) ranges: Vec<f32>,
    /// `[tokens, d]`: the router's input, if it is a norm of the residual stream.
    normed: Vec<f32>,
}

/// Inputs for choosing experts, `[tokens, d]` each.
#[derive(Debug, Clone, Copy)]
pub struct RouterInputs<'a> {
    /// The experts' inputs.
    pub x: &'a [f32],
    /// The residual stream. Only routers with their own norm read it.
    pub residual: &'a [f32],
    /// Tokens.
    pub tokens: usize,
    /// Preference for resident experts.
    pub(crate) preference: Option<LayerPreference<'a>>,
}

impl<'a> RouterInputs<'a> {
    /// The inputs of `tokens` tokens, without a preference.
    pub fn new(x: &'a [f32], residual: &'a [f32], tokens: usize) -> Self {
        RouterInputs { x, residual, tokens, preference: None }
    }
}

impl Routing {
    /// Computes the router of `weights`.
    ///
    /// # Errors
    /// [`Error::Memory`] if the buffers cannot grow.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn route(
        &mut self,
        cpu: &Cpu,
        experts: &Experts,
        norm_eps: f32,
        weights: &ExpertWeights,
        inputs: RouterInputs<'_>,
    ) -> Result<()> {
        let RouterInputs { x, residual, .. } = inputs;
        let Some(norm) = &weights.router_norm else { return self.route_by(cpu, experts, weights, inputs, x) };
        let mut normed = std::mem::take(&mut self.normed);
        let router_x = grow(&mut normed, Some(residual.len()), WHAT)?;
        cpu.rms_norm(router_x, Some(residual), &norm.weight, norm_eps);
        let done = self.route_by(cpu, experts, weights, inputs, router_x);
        self.normed = normed;
        done
    }

    /// Computes a router that reads `router_x`, `[tokens, d]`.
    fn route_by(
        &mut self,
        cpu: &Cpu,
        experts: &Experts,
        weights: &ExpertWeights,
        inputs: RouterInputs<'_>,
        router_x: &[f32],
    ) -> Result<()> {
        let RouterInputs { x, tokens, preference, .. } = inputs;
        let n = weights.router.weight.rows();
        let scores = grow(&mut self.scores, tokens.checked_mul(n), WHAT)?;
        let choice = grow(&mut self.choice, Some(n), WHAT)?;
        let gates = grow(&mut self.gates, Some(tokens), WHAT)?;
        cpu.matmul(&mut [weights.router.job(&mut *scores)], router_x, tokens);
        match weights.shared.as_ref().and_then(|shared| shared.gate.as_ref()) {
            Some(gate) => {
                cpu.matmul(&mut [gate.job(&mut *gates)], x, tokens);
                gates.iter_mut().for_each(|gate| *gate = sigmoid(*gate));
            }
            None => gates.fill(1.0),
        }
        self.chosen.resize(tokens * experts.used, 0);
        self.router_weights.clear();
        self.ranges.clear();
        let bias = weights.selection_bias.as_deref();
        for (scores, chosen) in scores.chunks_exact_mut(n).zip(self.chosen.chunks_exact_mut(experts.used)) {
            match preference {
                None => choose(&experts.router, bias, scores, choice, chosen),
                Some(preference) => {
                    self.ranges.push(choose_preferring(&experts.router, bias, scores, choice, chosen, preference));
                }
            }
            let first = self.router_weights.len();
            weigh(&experts.router, scores, chosen, &mut self.router_weights);
            if let Some(scale) = &weights.scale {
                let all = self.router_weights[first..].iter_mut().zip(&*chosen);
                all.for_each(|(weight, expert)| *weight *= scale.get(*expert).copied().unwrap_or(1.0));
            }
        }
        Ok(())
    }

    /// Sets a choice made elsewhere, `[tokens, used]`, without a shared expert.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the numbers of ids and weights differ, or are not a multiple of the
    /// number of tokens.
    pub(crate) fn set_choice(&mut self, tokens: usize, chosen: ChosenExperts<'_>) -> Result<()> {
        let ChosenExperts { ids, router_weights } = chosen;
        if ids.len() != router_weights.len() || !ids.len().is_multiple_of(tokens.max(1)) {
            let expected = format!("equal numbers of ids and router weights for each of {tokens} tokens");
            let got = format!("{} ids and {} router weights", ids.len(), router_weights.len());
            return Err(Error::invalid("chosen experts", expected, got));
        }
        self.chosen.clear();
        self.chosen.extend(ids.iter().map(|id| *id as usize));
        self.router_weights.clear();
        self.router_weights.extend_from_slice(router_weights);
        Ok(())
    }

    /// Leaves out weak experts that are not resident. The weights of the other experts stay.
    /// Returns the number of experts that were left out.
    pub(super) fn drop_weak(&mut self, preference: &LayerPreference<'_>, used: usize) -> usize {
        let mut dropped = 0;
        let pairs = self.chosen.iter_mut().zip(&self.router_weights).enumerate();
        for (pair, (expert, weight)) in pairs {
            if preference.drops(pair % used.max(1), *expert, *weight) {
                *expert = usize::MAX;
                dropped += 1;
            }
        }
        dropped
    }

    /// The tokens below `tokens` that use `expert`, with their router weights.
    pub fn members(&self, expert: usize, tokens: usize) -> impl Iterator<Item = (usize, f32)> {
        let used = (self.chosen.len() / tokens.max(1)).max(1);
        let pairs = self.chosen.iter().zip(&self.router_weights).enumerate();
        let ours = pairs.filter(move |(_, (chosen, _))| **chosen == expert);
        ours.map(move |(pair, (_, weight))| (pair / used, *weight))
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        held_bytes([&self.scores, &self.choice, &self.gates, &self.router_weights, &self.ranges])
            + held_bytes([&self.chosen])
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Converts one token's logits, `[experts]`, to scores and chooses the experts with the largest
/// scores, best first. `choice` is scratch.
fn choose(router: &Router, bias: Option<&[f32]>, scores: &mut [f32], choice: &mut [f32], chosen: &mut [usize]) {
    let by_logits = bias.is_none() && router.groups.is_none();
    if by_logits {
        // Scores increase with logits, but the scores of large logits are equal.
        top_k(scores, chosen);
    }
    to_scores(router.score, scores);
    if by_logits {
        return;
    }
    add_bias(scores, bias, choice);
    if let Some(groups) = router.groups {
        keep_best(groups, choice);
    }
    top_k(choice, chosen);
}

/// As [`choose`], with a preference for resident experts. Returns the range of the values by which
/// experts are chosen.
fn choose_preferring(
    router: &Router,
    bias: Option<&[f32]>,
    scores: &mut [f32],
    choice: &mut [f32],
    chosen: &mut [usize],
    preference: LayerPreference<'_>,
) -> f32 {
    let by_logits = bias.is_none() && router.groups.is_none();
    if by_logits {
        choice.copy_from_slice(scores);
    }
    to_scores(router.score, scores);
    if !by_logits {
        add_bias(scores, bias, choice);
    }
    let finite = || choice.iter().copied().filter(|value| value.is_finite());
    let range = finite().fold(f32::MIN, f32::max) - finite().fold(f32::MAX, f32::min);
    let lift = preference.lift + preference.own * range.max(0.0);
    if let Some(groups) = router.groups {
        keep_best(groups, choice);
    }
    if lift > 0.0 {
        let always = &mut chosen[..preference.always];
        top_k(choice, always);
        let resident = |expert: &usize| mask::contains(preference.resident, *expert);
        (0..choice.len()).filter(resident).for_each(|expert| choice[expert] += lift);
        // These experts stay the first ones, in their order.
        let firsts = [f32::INFINITY, f32::MAX];
        always.iter().zip(firsts).for_each(|(expert, first)| choice[*expert] = first);
    }
    top_k(choice, chosen);
    range.max(0.0)
}

/// Converts logits to scores.
fn to_scores(score: RouterScore, scores: &mut [f32]) {
    match score {
        RouterScore::Softmax => softmax_in_place(scores),
        RouterScore::SoftmaxOfChosen | RouterScore::SparseMixer => {}
        RouterScore::Sigmoid => scores.iter_mut().for_each(|score| *score = sigmoid(*score)),
    }
}

/// `choice = scores + bias`
fn add_bias(scores: &[f32], bias: Option<&[f32]>, choice: &mut [f32]) {
    choice.copy_from_slice(scores);
    if let Some(bias) = bias {
        choice.iter_mut().zip(bias).for_each(|(choice, bias)| *choice += bias);
    }
}

/// Sets the experts of all groups except the best ones to `-inf`.
fn keep_best(groups: ExpertGroups, choice: &mut [f32]) {
    let len = choice.len() / groups.count.max(1);
    let mut best = vec![0; groups.best.min(len)];
    let goodness = choice.chunks_exact(len.max(1)).map(|group| {
        top_k(group, &mut best);
        best.iter().map(|at| group[*at]).sum::<f32>()
    });
    let goodness: Vec<f32> = goodness.collect();
    let mut used = vec![0; groups.used.min(goodness.len())];
    top_k(&goodness, &mut used);
    let hidden = choice.chunks_exact_mut(len.max(1)).enumerate().filter(|(group, _)| !used.contains(group));
    hidden.for_each(|(_, group)| group.fill(f32::NEG_INFINITY));
}

/// Appends to `weights` the weights of the experts that were chosen by `scores`.
fn weigh(router: &Router, scores: &[f32], chosen: &[usize], weights: &mut Vec<f32>) {
    let first = weights.len();
    weights.extend(chosen.iter().map(|expert| scores[*expert]));
    let weights = &mut weights[first..];
    match router.score {
        RouterScore::SoftmaxOfChosen => softmax_in_place(weights),
        RouterScore::SparseMixer => mix(scores, chosen, weights),
        RouterScore::Softmax | RouterScore::Sigmoid => {}
    }
    // All sigmoids can be zero.
    let sum = if router.renormalise { weights.iter().sum::<f32>().max(f32::MIN_POSITIVE) } else { 1.0 };
    weights.iter_mut().for_each(|weight| *weight *= router.scale / sum);
}

/// Computes SparseMixer's weights: for each of `chosen`, best first, its `softmax` over the nearly
/// equally good experts that were not chosen before it.
fn mix(scores: &[f32], chosen: &[usize], weights: &mut [f32]) {
    for (at, (weight, expert)) in weights.iter_mut().zip(chosen).enumerate() {
        let best = scores[*expert];
        let near = |score: f32| best - score <= NEARLY * score.abs().max(best);
        let others = scores.iter().enumerate().filter(|(other, score)| !chosen[..at].contains(other) && near(**score));
        *weight = 1.0 / others.map(|(_, score)| (score - best).exp()).sum::<f32>();
    }
}

/// Largest difference of a nearly equally good expert, relative to its score: twice the jitter of
/// training.
const NEARLY: f32 = 0.02;

#[cfg(test)]
mod tests {
    use super::*;

    fn route(router: &Router, bias: Option<&[f32]>, logits: &[f32], used: usize) -> (Vec<usize>, Vec<f32>) {
        let (mut scores, mut choice, mut chosen) = (logits.to_vec(), vec![0.0; logits.len()], vec![0; used]);
        choose(router, bias, &mut scores, &mut choice, &mut chosen);
        let mut weights = Vec::new();
        weigh(router, &scores, &chosen, &mut weights);
        (chosen, weights)
    }

    fn close(got: &[f32], wanted: &[f32]) {
        assert!(got.len() == wanted.len() && got.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?}");
    }

    #[test]
    fn scores_are_those_of_all_of_the_chosen_or_of_each() {
        let logits = [0.0, 3.0_f32.ln(), 2.0_f32.ln(), 2.0_f32.ln()];
        let (chosen, weights) = route(&Router::softmax(false), None, &logits, 2);
        assert_eq!(chosen, [1, 2]);
        close(&weights, &[3.0 / 8.0, 2.0 / 8.0]);
        close(&route(&Router::softmax(true), None, &logits, 2).1, &[0.6, 0.4]);
        let of_chosen = Router { score: RouterScore::SoftmaxOfChosen, scale: 2.0, ..Router::softmax(false) };
        close(&route(&of_chosen, None, &logits, 2).1, &[1.2, 0.8]);
        let (chosen, weights) = route(&Router::sigmoid(false), None, &logits, 2);
        assert_eq!(chosen, [1, 2]);
        close(&weights, &[0.75, 2.0 / 3.0]);
        close(&route(&Router { scale: 2.5, ..Router::sigmoid(true) }, None, &logits, 1).1, &[2.5]);
        close(&route(&Router::sigmoid(true), None, &[-200.0; 3], 2).1, &[0.0, 0.0]);
        assert_eq!(route(&Router::sigmoid(false), None, &[40.0, 60.0, 50.0], 2).0, [1, 2], "all scores are 1");
    }

    #[test]
    fn bias_chooses_and_does_not_weigh() {
        let logits = [0.0, 3.0_f32.ln(), -1.0];
        let (chosen, weights) = route(&Router::sigmoid(false), Some(&[1.0, 0.0, 0.0]), &logits, 2);
        assert_eq!(chosen, [0, 1]);
        close(&weights, &[0.5, 0.75]);
    }

    /// The best expert is always taken. Resident experts are lifted, and weights do not change.
    #[test]
    fn resident_experts_are_lifted_behind_the_best() {
        let logits = [1.0f32, 4.0, 2.0, 1.5, 0.0];
        let prefer = |lift, always, router: &Router, bias: Option<&[f32]>| {
            let (mut scores, mut choice, mut chosen) = (logits.to_vec(), vec![0.0; 5], vec![0; 3]);
            let preference = LayerPreference { lift, own: 0.0, weakest: 0.0, always, resident: &[0b11000] };
            let range = choose_preferring(router, bias, &mut scores, &mut choice, &mut chosen, preference);
            let mut weights = Vec::new();
            weigh(router, &scores, &chosen, &mut weights);
            (chosen, weights, range)
        };
        let exact = route(&Router::softmax(true), None, &logits, 3);
        let (chosen, weights, range) = prefer(0.0, 1, &Router::softmax(true), None);
        assert_eq!((&chosen, &weights, range), (&exact.0, &exact.1, 4.0));
        assert_eq!(chosen, [1, 2, 3]);
        assert_eq!(prefer(1.0, 1, &Router::softmax(true), None).0, [1, 3, 2]);
        let (chosen, weights, _) = prefer(100.0, 1, &Router::softmax(false), None);
        assert_eq!(chosen, [1, 3, 4]);
        let all: f32 = logits.iter().map(|logit| logit.exp()).sum();
        close(&weights, &[4.0, 1.5, 0.0].map(|logit: f32| logit.exp() / all));
        assert_eq!(prefer(100.0, 2, &Router::softmax(false), None).0, [1, 2, 3]);
        // The bias belongs to the values that are compared.
        let bias = [0.0, -10.0, 0.0, 0.0, 0.0];
        assert_eq!(prefer(100.0, 1, &Router::sigmoid(false), Some(&bias)).0, [2, 3, 4]);
        // Experts outside the best groups stay out.
        let groups = Some(ExpertGroups { count: 5, used: 3, best: 1 });
        assert_eq!(prefer(100.0, 1, &Router { groups, ..Router::sigmoid(false) }, None).0, [1, 3, 2]);
    }

    #[test]
    fn sparse_mixer_weighs_experts_against_those_nearly_as_good() {
        let router = Router { score: RouterScore::SparseMixer, ..Router::softmax(false) };
        // First a single expert, then one with another within 2 %.
        let (chosen, weights) = route(&router, None, &[1.0, 3.0, 2.0, 1.98], 2);
        assert_eq!(chosen, [1, 2]);
        close(&weights, &[1.0, 1.0 / (1.0 + (-0.02f32).exp())]);
        // The first expert is compared with the second, but the second is not compared with the
        // first.
        let (chosen, weights) = route(&router, None, &[5.0, 5.05, -1.0], 2);
        assert_eq!(chosen, [1, 0]);
        close(&weights, &[1.0 / (1.0 + (-0.05f32).exp()), 1.0]);
        // Scores below 0 are compared by magnitude too.
        let (chosen, weights) = route(&router, None, &[-2.0, -2.03, -4.0], 2);
        assert_eq!(chosen, [0, 1]);
        close(&weights, &[1.0 / (1.0 + (-0.03f32).exp()), 1.0]);
    }

    #[test]
    fn only_experts_of_the_best_groups_are_chosen() {
        // The best expert is alone in its group. Its group is the best if groups are ranked by one
        // expert, and the second if ranked by two.
        let logits = [5.0, -9.0, 4.0, 3.0, 1.0, 2.0];
        for (best, used, wanted) in [(1, 1, [0, 1]), (2, 1, [2, 3]), (2, 2, [2, 3]), (1, 2, [0, 2])] {
            let router = Router { groups: Some(ExpertGroups { count: 3, used, best }), ..Router::sigmoid(false) };
            assert_eq!(route(&router, None, &logits, 2).0, wanted, "{best} {used}");
        }
    }
}
