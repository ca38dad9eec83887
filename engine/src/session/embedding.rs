//! Embeds texts: hidden states are pooled into one vector of length 1.

use thermocline_base::error::{Error, Result};

/// How the hidden states of a text's tokens become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pooling {
    /// The mean over the tokens.
    #[default]
    Mean,
    /// The hidden state of the last token.
    Last,
}

impl Pooling {
    /// The pooling with this name: `mean` or `last`.
    pub fn of_name(name: &str) -> Option<Self> {
        match name {
            "mean" => Some(Pooling::Mean),
            "last" => Some(Pooling::Last),
            _ => None,
        }
    }
}

/// The pooled hidden states of the tokens so far.
#[derive(Debug)]
pub(super) struct PooledStates {
    pooling: Pooling,
    /// `[d_model]`, the sum of all states, or the last state.
    sum: Vec<f64>,
}

impl PooledStates {
    /// Pooled states of no tokens.
    pub fn new(pooling: Pooling, d_model: usize) -> Self {
        PooledStates { pooling, sum: vec![0.0; d_model] }
    }

    /// Adds the hidden states of the next tokens, `[tokens, d_model]`.
    pub fn add(&mut self, states: &[f32]) {
        for state in states.chunks_exact(self.sum.len()) {
            if self.pooling == Pooling::Last {
                self.sum.fill(0.0);
            }
            self.sum.iter_mut().zip(state).for_each(|(sum, x)| *sum += f64::from(*x));
        }
    }

    /// The pooled states scaled to length 1, `[d_model]`; zeros stay zeros. [`Error::NotFinite`] if
    /// a state is not finite.
    pub fn embedding(&self) -> Result<Vec<f32>> {
        // The direction of the sum equals that of the mean.
        let length = self.sum.iter().map(|x| x * x).sum::<f64>().sqrt();
        if !length.is_finite() {
            return Err(Error::NotFinite { what: "hidden states", got: length.to_string() });
        }
        let factor = if length > 0.0 { 1.0 / length } else { 0.0 };
        Ok(self.sum.iter().map(|x| (x * factor) as f32).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedding_is_the_mean_or_the_last_state_at_length_1() {
        let pooled = |pooling| {
            let mut pooled = PooledStates::new(pooling, 2);
            pooled.add(&[1.0, 2.0, 3.0, 6.0]);
            pooled.add(&[2.0, -8.0]);
            pooled.embedding().unwrap()
        };
        assert_eq!(pooled(Pooling::Mean), [1.0, 0.0], "of (6, 0) / 3");
        let last = pooled(Pooling::Last);
        assert!((last[0] - 2.0 / 68f32.sqrt()).abs() < 1e-6 && (last[1] + 8.0 / 68f32.sqrt()).abs() < 1e-6, "{last:?}");
        assert_eq!(PooledStates::new(Pooling::Mean, 2).embedding().unwrap(), [0.0, 0.0]);
        let mut wrong = PooledStates::new(Pooling::Mean, 2);
        wrong.add(&[1.0, f32::NAN]);
        assert!(matches!(wrong.embedding(), Err(Error::NotFinite { .. })));
        assert_eq!((Pooling::of_name("last"), Pooling::of_name("max")), (Some(Pooling::Last), None));
    }
}
