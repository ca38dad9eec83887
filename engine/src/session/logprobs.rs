//! Log probabilities of chosen tokens and of a prompt's tokens.

use thermocline_base::error::Result;
use thermocline_run::runtime::check_logits;

/// Log probabilities that a request wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogprobsRequest {
    /// Number of the most likely tokens to report at every position.
    pub top: usize,
    /// True to report the prompt's tokens too. Then no cached tokens of the prompt are reused.
    pub prompt: bool,
}

/// The log probability of one token, and the most likely tokens at its position.
///
/// Natural logarithms of the softmax of the model's raw logits, before bias, penalties, grammar and
/// temperature.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// The token.
    pub id: u32,
    /// Log probability of the token; `None` for the first token of a prompt, which nothing
    /// predicts.
    pub logprob: Option<f32>,
    /// The most likely tokens with their log probabilities, most likely first. Ties go to the lower
    /// id.
    pub top: Vec<(u32, f32)>,
}

impl TokenLogprobs {
    /// A token that no logits predict.
    pub(super) fn unpredicted(id: u32) -> Self {
        TokenLogprobs { id, logprob: None, top: Vec::new() }
    }

    /// The token `id`, predicted by `logits` (`[n_vocab]`), with the `top` most likely tokens.
    /// [`Error::NotFinite`](thermocline_base::error::Error::NotFinite) if the logits are not
    /// finite.
    pub(super) fn new(logits: &[f32], id: u32, top: usize) -> Result<Self> {
        check_logits(logits)?;
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
        let log_sum = f64::from(largest) + sum.ln();
        let logprob = |id: u32| {
            let logit = logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
            (f64::from(logit) - log_sum) as f32
        };
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        let order = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        let top = top.min(ids.len());
        if top < ids.len() {
            ids.select_nth_unstable_by(top, order);
            ids.truncate(top);
        }
        ids.sort_unstable_by(order);
        let top = ids.into_iter().map(|id| (id, logprob(id))).collect();
        Ok(TokenLogprobs { id, logprob: Some(logprob(id)), top })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logprobs_are_the_logarithm_of_the_softmax() {
        let logits = [1.0_f32, 3.0, -2.0, 3.0];
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        let want = |id: usize| (f64::from(logits[id]).exp() / sum).ln() as f32;
        let read = TokenLogprobs::new(&logits, 2, 3).unwrap();
        assert!((read.logprob.unwrap() - want(2)).abs() < 1e-6);
        assert_eq!(read.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3, 0]);
        assert!(read.top.iter().all(|&(id, logprob)| (logprob - want(id as usize)).abs() < 1e-6));
        let likeliest = TokenLogprobs::new(&logits, 1, 1).unwrap();
        assert_eq!(likeliest.logprob, Some(likeliest.top[0].1), "the same number bit by bit");
        assert_eq!(TokenLogprobs::new(&logits, 0, 9).unwrap().top.len(), 4);
        assert!(TokenLogprobs::new(&[1e30, 0.0], 1, 0).unwrap().logprob.unwrap().is_finite());
        assert!(TokenLogprobs::new(&[f32::NAN, 0.0], 1, 0).is_err());
    }
}
