//! The router of an MoE layer: the experts that each token uses, and their weights.

use super::{ChosenExperts, WHAT};
use crate::runtime::scratch::{grow, held_bytes};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::{
    Cpu,
    ops::{softmax_in_place, top_k},
};
use thermocline_model::{ExpertGroups, ExpertWeights, Experts, Router, RouterScore};

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
        let RouterInputs { x, residual, tokens } = inputs;
        let Some(norm) = &weights.router_norm else { return self.route_by(cpu, experts, weights, x, x, tokens) };
        let mut normed = std::mem::take(&mut self.normed);
        let router_x = grow(&mut normed, Some(residual.len()), WHAT)?;
        cpu.rms_norm(router_x, Some(residual), &norm.weight, norm_eps);
        let done = self.route_by(cpu, experts, weights, x, router_x, tokens);
        self.normed = normed;
        done
    }

    /// Computes a router that reads `router_x`, `[tokens, d]`.
    fn route_by(
        &mut self,
        cpu: &Cpu,
        experts: &Experts,
        weights: &ExpertWeights,
        x: &[f32],
        router_x: &[f32],
        tokens: usize,
    ) -> Result<()> {
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
        let bias = weights.selection_bias.as_deref();
        for (scores, chosen) in scores.chunks_exact_mut(n).zip(self.chosen.chunks_exact_mut(experts.used)) {
            choose(&experts.router, bias, scores, choice, chosen);
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

    /// The tokens below `tokens` that use `expert`, with their router weights.
    pub fn members(&self, expert: usize, tokens: usize) -> impl Iterator<Item = (usize, f32)> {
        let used = (self.chosen.len() / tokens.max(1)).max(1);
        let pairs = self.chosen.iter().zip(&self.router_weights).enumerate();
        let ours = pairs.filter(move |(_, (chosen, _))| **chosen == expert);
        ours.map(move |(pair, (_, weight))| (pair / used, *weight))
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        held_bytes([&self.scores, &self.choice, &self.gates, &self.router_weights]) + held_bytes([&self.chosen])
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
    match router.score {
        RouterScore::Softmax => softmax_in_place(scores),
        RouterScore::SoftmaxOfChosen | RouterScore::SparseMixer => {}
        RouterScore::Sigmoid => scores.iter_mut().for_each(|score| *score = sigmoid(*score)),
    }
    if by_logits {
        return;
    }
    choice.copy_from_slice(scores);
    if let Some(bias) = bias {
        choice.iter_mut().zip(bias).for_each(|(choice, bias)| *choice += bias);
    }
    if let Some(groups) = router.groups {
        keep_best(groups, choice);
    }
    top_k(choice, chosen);
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
