//! Measured probabilities that drafts are accepted.

use super::{MOST_DRAFTS, running_mean::RunningMean};

/// The mean of a depth represents this number of latest drafts.
const REPRESENTED: f64 = 24.0;
/// Probability that a draft of a new source is accepted, and the number of drafts that it counts
/// as. A depth's own prior is the probability of the depth before it.
const PRIOR: f64 = 0.6;
const PRIOR_WEIGHT: f64 = 2.0;
/// Number of drafts that a doubted mean represents.
const DOUBTED: f64 = 6.0;
/// Factor of the weight of a depth's earlier drafts in every pass that does not reach the depth.
/// Its probability thus returns to the probability of the depth before it, so that it is tried
/// again.
const FADING: f64 = 0.98;
/// Number of latest drafts that the calibration represents, and the weight of a ratio of 1.
const CALIBRATED: f64 = 64.0;
const CALIBRATED_PRIOR: f64 = 4.0;

/// Acceptance of one source's drafts. The probability of a depth is the probability that a draft at
/// this depth is accepted, given that all earlier drafts of the pass were accepted.
#[derive(Debug, Default)]
pub(super) struct Acceptance {
    by_depth: [RunningMean; MOST_DRAFTS],
    /// The source's own probabilities of its drafts, and how many of these drafts were accepted.
    claimed: RunningMean,
    confirmed: RunningMean,
}

impl Acceptance {
    /// Records that `accepted` of `drafted` tokens were accepted. The first token had the depth
    /// `from`. Drafts deeper than the table count as its last depth.
    pub fn note(&mut self, from: usize, drafted: usize, accepted: usize) {
        for at in 0..drafted.min(accepted + 1) {
            let depth = (from + at).min(MOST_DRAFTS - 1);
            self.by_depth[depth].add(f64::from(u8::from(at < accepted)), REPRESENTED);
        }
        self.by_depth.iter_mut().skip(from + drafted).for_each(|depth| depth.count *= FADING);
    }

    /// Records whether a draft with the source's `probability` was accepted. All earlier drafts of
    /// the pass must have been accepted.
    pub fn note_probability(&mut self, probability: f64, accepted: bool) {
        self.claimed.add(probability, CALIBRATED);
        self.confirmed.add(f64::from(u8::from(accepted)), CALIBRATED);
    }

    /// The probability that a draft with the source's `probability` is accepted. Sources are often
    /// surer than they should be, so the ratio of the two is measured.
    pub fn calibrated(&self, probability: f64) -> f64 {
        let prior = self.claimed.get().unwrap_or(1.0);
        let claimed = self.claimed.with_prior(prior, CALIBRATED_PRIOR).max(1e-6);
        (probability * self.confirmed.with_prior(prior, CALIBRATED_PRIOR) / claimed).clamp(0.0, 1.0)
    }

    /// The probability of each depth.
    pub fn probabilities(&self) -> [f64; MOST_DRAFTS] {
        let mut before = PRIOR;
        self.by_depth.map(|depth| {
            before = depth.with_prior(before, PRIOR_WEIGHT);
            before
        })
    }

    /// Expected number of tokens of a pass with 0, 1, 2 ... drafts. The first draft has the depth
    /// `from`.
    pub fn tokens(&self, from: usize) -> [f64; 1 + MOST_DRAFTS] {
        let probabilities = self.probabilities();
        let (mut tokens, mut chain) = ([1.0; 1 + MOST_DRAFTS], 1.0);
        for drafts in 1..tokens.len() {
            chain *= probabilities[(from + drafts - 1).min(MOST_DRAFTS - 1)];
            tokens[drafts] = tokens[drafts - 1] + chain;
        }
        tokens
    }

    /// Reduces the weight of all earlier drafts, so that a few new ones change the means.
    pub fn doubt(&mut self) {
        self.by_depth.iter_mut().for_each(|depth| depth.count = depth.count.min(DOUBTED));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_behind_a_rejected_one_are_not_counted() {
        let mut acceptance = Acceptance::default();
        (0..100).for_each(|_| acceptance.note(0, 3, 1));
        let [first, second, third, ..] = acceptance.probabilities();
        assert!(first > 0.9 && second < 0.1 && third == second, "{first} {second} {third}");
        let tokens = acceptance.tokens(0);
        assert!(tokens[0] == 1.0 && tokens[1] > 1.9 && tokens[2] < tokens[1] + 0.1, "{tokens:?}");
    }

    #[test]
    fn new_depths_are_expected_to_be_like_those_before_them() {
        let mut acceptance = Acceptance::default();
        assert_eq!(acceptance.probabilities(), [PRIOR; MOST_DRAFTS]);
        (0..20).for_each(|_| acceptance.note(0, 2, 2));
        assert!(acceptance.probabilities().iter().all(|it| *it > 0.9));
        acceptance.note(20, 5, 0);
        let probabilities = acceptance.probabilities();
        assert!(probabilities[MOST_DRAFTS - 1] < 0.8 && probabilities[MOST_DRAFTS - 2] > 0.9, "{probabilities:?}");
    }

    #[test]
    fn doubted_means_follow_the_next_drafts() {
        let (mut trusted, mut doubted) = (Acceptance::default(), Acceptance::default());
        for acceptance in [&mut trusted, &mut doubted] {
            (0..50).for_each(|_| acceptance.note(0, 1, 0));
        }
        doubted.doubt();
        for acceptance in [&mut trusted, &mut doubted] {
            (0..6).for_each(|_| acceptance.note(0, 1, 1));
        }
        assert!(trusted.probabilities()[0] < 0.35 && doubted.probabilities()[0] > 0.5);
    }

    #[test]
    fn probabilities_are_corrected_by_what_was_accepted() {
        let mut acceptance = Acceptance::default();
        assert_eq!(acceptance.calibrated(0.8), 0.8);
        for at in 0..400 {
            acceptance.note_probability(0.9, at % 2 == 0);
        }
        let calibrated = acceptance.calibrated(0.9);
        assert!((0.47..0.55).contains(&calibrated), "{calibrated}");
        (0..400).for_each(|_| acceptance.note_probability(0.5, true));
        assert!(acceptance.calibrated(0.5) > 0.9 && acceptance.calibrated(1.0) == 1.0);
    }
}
