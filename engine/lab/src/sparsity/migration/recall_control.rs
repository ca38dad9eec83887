//! Feedback control of a predictor's recall.

/// Corrects one layer's predictor threshold until its recall, the fraction of firings that it
/// finds, meets a target. The evidence comes from recall checks. At some tokens, all of the layer's
/// gates are computed, and the firings that the predictor would have missed are counted. Predictor
/// scores have no common scale, so the step adapts. It grows while successive corrections have the
/// same sign, and shrinks when the sign changes.
#[derive(Debug, Clone)]
pub struct RecallControl {
    target: f32,
    shift: f32,
    /// Length of the next step, in units of the score.
    step: f32,
    /// Sign of the last step; 0 before the first.
    last: f32,
    /// Firings checked since the last verdict.
    fired: f32,
    /// Checked firings that the predictor would have missed.
    missed: f32,
    /// Recall over all checks, exponentially decayed.
    found: Option<f32>,
}

/// Length of the first step. The scores of trained predictors are logits.
const FIRST: f32 = 0.05;
/// Length of the longest step.
const LONGEST: f32 = 200.0;
/// Expected misses that a verdict requires.
const EVIDENCE: f32 = 12.0;
/// Tolerated difference from the expected number of misses, in standard deviations.
const CERTAINTY: f32 = 1.5;

impl RecallControl {
    /// Creates a control without correction, for a predictor with the target recall `target`, from
    /// 0 to 1.
    pub fn new(target: f32) -> Self {
        RecallControl { target, shift: 0.0, step: FIRST, last: 0.0, fired: 0.0, missed: 0.0, found: None }
    }

    /// Adds a recall check, in which `fired` neurons fired and the predictor missed `missed` of
    /// them. Returns true if the shift changed.
    pub fn add_check(&mut self, fired: usize, missed: usize) -> bool {
        self.fired += fired as f32;
        self.missed += missed as f32;
        let expected = self.fired * (1.0 - self.target).max(1e-3);
        // If most firings are missed, there is no need to wait.
        if expected < EVIDENCE && self.missed < 2.0 * EVIDENCE {
            return false;
        }
        let found = 1.0 - self.missed / self.fired;
        self.found = Some(self.found.map_or(found, |before| 0.7 * before + 0.3 * found));
        let over = self.missed - expected;
        let tolerated = CERTAINTY * expected.sqrt();
        (self.fired, self.missed) = (0.0, 0.0);
        if over.abs() <= tolerated {
            return false;
        }
        // After many misses, a lower threshold selects more neurons.
        let sign = -over.signum();
        if self.last != 0.0 {
            self.step = (self.step * if sign == self.last { 1.6 } else { 0.4 }).min(LONGEST);
        }
        self.last = sign;
        self.shift += sign * self.step;
        true
    }

    /// Returns the correction to add to the threshold.
    pub fn shift(&self) -> f32 {
        self.shift
    }

    /// Returns the recent recall, from 0 to 1; `None` before the first verdict.
    pub fn found(&self) -> Option<f32> {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recall of a layer whose firing neurons have scores of a logistic distribution around
    /// `centre`.
    fn recall_at(threshold: f32, centre: f32, scale: f32) -> f32 {
        1.0 / (1.0 + ((threshold - centre) / scale).exp())
    }

    fn run(recall: &mut RecallControl, checks: usize, centre: f32, scale: f32, noise: &mut u64) -> f32 {
        let mut sum = 0.0;
        for check in 0..checks {
            let found = recall_at(recall.shift(), centre, scale);
            let missed = (0..100)
                .filter(|_| {
                    *noise = noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (*noise >> 40) as f32 / (1u64 << 24) as f32 >= found
                })
                .count();
            recall.add_check(100, missed);
            if check * 2 >= checks {
                sum += recall_at(recall.shift(), centre, scale);
            }
        }
        sum / (checks as f32 / 2.0)
    }

    #[test]
    fn recall_control_reaches_the_target_at_any_score_scale_and_after_a_change() {
        for scale in [0.02, 0.5, 20.0] {
            let (mut recall, mut noise) = (RecallControl::new(0.95), 7);
            for centre in [0.0, 3.0, -1.0] {
                let got = run(&mut recall, 1500, centre * scale, scale, &mut noise);
                assert!((got - 0.95).abs() < 0.02, "scale {scale}, centre {centre}: {got}");
            }
        }
    }

    #[test]
    fn recall_control_keeps_a_threshold_that_meets_the_target() {
        let (mut recall, mut noise) = (RecallControl::new(0.95), 3);
        run(&mut recall, 1000, 0.0, 1.0, &mut noise);
        let settled = recall.shift();
        run(&mut recall, 1000, 0.0, 1.0, &mut noise);
        assert!((recall.shift() - settled).abs() < 0.7, "{settled} {}", recall.shift());
        assert!(recall.found().is_some_and(|found| (found - 0.95).abs() < 0.04));
    }

    #[test]
    fn recall_control_needs_firings_to_change_anything() {
        let mut recall = RecallControl::new(0.95);
        assert!(!(0..100).any(|_| recall.add_check(0, 0)));
        assert_eq!((recall.shift(), recall.found()), (0.0, None));
        // A target recall of 1 must not lower the threshold without end.
        let mut all = RecallControl::new(1.0);
        for _ in 0..100_000 {
            all.add_check(10, 0);
        }
        assert!((0.0..100_000.0).contains(&all.shift()), "{all:?}");
    }
}
