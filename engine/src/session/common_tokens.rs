//! The common tokens of a large vocabulary. A draft is cheap compared with a token of the model, so
//! the output matrix of a large vocabulary is most of its cost. Vocabularies are ordered by
//! frequency, so the first rows suffice for texts that consist of common tokens.

use thermocline_cpu::Cpu;
use thermocline_model::{Linear, Model};

use super::drafter::DraftedToken;

/// Number of common tokens: the first ones of the vocabulary.
const COMMON: usize = 32_768;
/// Number of latest tokens that tell whether a text consists of common tokens, and how many of them
/// may be others.
const LATEST: usize = 64;
const MOST_OTHERS: usize = 4;

/// The rows of a drafter's output matrix for the common tokens.
#[derive(Debug)]
pub(super) struct CommonTokens {
    cpu: Cpu,
    output: Linear,
    soft_cap: Option<f32>,
    /// `[COMMON]`
    logits: Vec<f32>,
}

impl CommonTokens {
    /// Takes the rows of the output matrix of `model` for the common tokens. `cpu` computes them.
    /// Returns `None` if the vocabulary is less than twice as large.
    pub fn new(model: &Model, cpu: Cpu) -> Option<Self> {
        if model.config.n_vocab < 2 * COMMON {
            return None;
        }
        let Linear { weight, bias } = &model.weights.output;
        let bias = bias.as_ref().map(|bias| bias[..COMMON].to_vec());
        let output = Linear { weight: weight.slice_rows(0..COMMON)?, bias };
        Some(CommonTokens { cpu, output, soft_cap: model.config.final_softcap, logits: vec![0.0; COMMON] })
    }

    /// True if the text `held` consists of common tokens, except for a few of the latest ones.
    pub fn suit(held: &[u32]) -> bool {
        let latest = &held[held.len().saturating_sub(LATEST)..];
        latest.iter().filter(|id| **id as usize >= COMMON).count() <= MOST_OTHERS
    }

    /// Drafts the common token with the largest logit after the hidden state `state`, `[d_model]`.
    pub fn draft(&mut self, state: &[f32]) -> DraftedToken {
        self.cpu.matmul(&mut [self.output.job(&mut self.logits)], state, 1);
        if let Some(cap) = self.soft_cap {
            self.cpu.soft_cap(&mut self.logits, cap);
        }
        DraftedToken::likeliest(&self.logits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_with_many_other_tokens_need_the_whole_vocabulary() {
        let other = COMMON as u32;
        assert!(CommonTokens::suit(&[]) && CommonTokens::suit(&[1, other, 2, other]));
        assert!(!CommonTokens::suit(&[other; 5]));
        // Earlier tokens do not matter.
        let text: Vec<u32> = std::iter::repeat_n(other, 100).chain(std::iter::repeat_n(7, LATEST)).collect();
        assert!(CommonTokens::suit(&text) && !CommonTokens::suit(&text[..100 + LATEST - 5]));
    }
}
