//! Repetition, presence and frequency penalties.

/// Lowers the logits of tokens that occurred lately. With `n` occurrences among the last `last_n` tokens,
/// `l' = (l > 0 ? l / repeat : l * repeat) - n * frequency - presence` (repetition: Keskar et al. 2019; the other two:
/// OpenAI's API).
#[derive(Debug)]
pub(super) struct Penalties {
    pub repeat: f32,
    pub presence: f32,
    pub frequency: f32,
    pub last_n: usize,
    /// Occurrences per token id; all zero between calls.
    counts: Vec<u32>,
}

impl Penalties {
    pub fn new(repeat: f32, presence: f32, frequency: f32, last_n: usize) -> Self {
        Penalties { repeat, presence, frequency, last_n, counts: Vec::new() }
    }

    /// Whether they would change anything.
    pub fn is_active(&self) -> bool {
        self.last_n > 0 && (self.repeat != 1.0 || self.presence != 0.0 || self.frequency != 0.0)
    }

    /// Whether they may make a token likelier.
    pub fn may_raise(&self) -> bool {
        self.is_active() && (self.repeat < 1.0 || self.presence < 0.0 || self.frequency < 0.0)
    }

    /// Applies them to `logits`, `[vocab]`. Ids in `history` that the vocabulary has not got are passed over.
    pub fn apply(&mut self, logits: &mut [f32], history: &[u32]) {
        if !self.is_active() {
            return;
        }
        self.counts.resize(logits.len(), 0);
        let recent = &history[history.len() - self.last_n.min(history.len())..];
        for &id in recent {
            if let Some(count) = self.counts.get_mut(id as usize) {
                *count += 1;
            }
        }
        for &id in recent {
            let (Some(count), Some(logit)) = (self.counts.get_mut(id as usize), logits.get_mut(id as usize)) else {
                continue;
            };
            // The first visit takes the count, so every token is penalised once.
            let occurrences = std::mem::take(count) as f32;
            if occurrences > 0.0 && *logit > f32::NEG_INFINITY {
                let scaled = if *logit > 0.0 { *logit / self.repeat } else { *logit * self.repeat };
                // A penalty is never a ban.
                *logit = (scaled - occurrences * self.frequency - self.presence).clamp(f32::MIN, f32::MAX);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn follow_the_formula(
            logits in prop::collection::vec(-9.0f32..9.0, 20),
            history in prop::collection::vec(0u32..24, 0..60),
            repeat in 0.5f32..2.0, presence in -2.0f32..2.0, frequency in -1.0f32..1.0, last_n in 0usize..80,
        ) {
            let mut penalties = Penalties::new(repeat, presence, frequency, last_n);
            let mut got = logits.clone();
            penalties.apply(&mut got, &history);
            let mut counts = HashMap::new();
            for id in history.iter().rev().take(last_n) {
                *counts.entry(*id as usize).or_insert(0.0f64) += 1.0;
            }
            for (id, (got, logit)) in got.iter().zip(&logits).enumerate() {
                let mut want = f64::from(*logit);
                if let Some(n) = counts.get(&id) {
                    want = if want > 0.0 { want / f64::from(repeat) } else { want * f64::from(repeat) };
                    want -= n * f64::from(frequency) + f64::from(presence);
                }
                prop_assert!((f64::from(*got) - want).abs() < 1e-4, "token {id}: {got}, not {want}");
            }
            // The counts are back at zero: a second call must give the same.
            let mut again = logits.clone();
            penalties.apply(&mut again, &history);
            prop_assert_eq!(got, again);
        }
    }

    #[test]
    fn never_ban_and_never_lift_a_ban() {
        let mut penalties = Penalties::new(f32::MAX, 3.0, 3.0, usize::MAX);
        let mut logits = [-5.0, f32::NEG_INFINITY, 1.0];
        penalties.apply(&mut logits, &[0, 1, 1, 0]);
        assert_eq!(logits, [f32::MIN, f32::NEG_INFINITY, 1.0]);
    }
}
