//! Holding a predictor to its promise.

/// Shifts one layer's predictor threshold until the share of firings it finds is the one asked for. Some tokens are audited: all
/// of the layer's gates are computed, and what the predictor would have missed is counted. The scores of predictors have no
/// common scale, so steps find their own length: they grow while they go one way and shrink when they turn.
#[derive(Debug, Clone)]
pub struct Recall {
    target: f32,
    shift: f32,
    /// Length of the next step, and the direction of the last.
    step: f32,
    last: f32,
    /// Since the last step.
    fired: f32,
    missed: f32,
    /// Of all audits, the older the less.
    found: Option<f32>,
}

/// Length of the first step; scores of trained predictors are logits.
const FIRST: f32 = 0.05;
/// Length of the longest.
const LONGEST: f32 = 200.0;
/// Misses expected before a verdict is given.
const EVIDENCE: f32 = 12.0;
/// Standard deviations from the expected number of misses within which all is well.
const CERTAINTY: f32 = 1.5;

impl Recall {
    /// For a predictor that is to find `target` of what fires, a share below 1.
    pub fn new(target: f32) -> Self {
        Recall { target, shift: 0.0, step: FIRST, last: 0.0, fired: 0.0, missed: 0.0, found: None }
    }

    /// An audited token: so many neurons fired, and so many of them the predictor had ruled out. Returns whether the shift has
    /// changed.
    pub fn audit(&mut self, fired: usize, missed: usize) -> bool {
        self.fired += fired as f32;
        self.missed += missed as f32;
        let expected = self.fired * (1.0 - self.target).max(1e-3);
        // Where most are missed there is no need to wait.
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
        // Misses: a lower threshold lets more through.
        let way = -over.signum();
        if self.last != 0.0 {
            self.step = (self.step * if way == self.last { 1.6 } else { 0.4 }).min(LONGEST);
        }
        self.last = way;
        self.shift += way * self.step;
        true
    }

    /// What is to be added to the threshold.
    pub fn shift(&self) -> f32 {
        self.shift
    }

    /// Share of the firings found lately; `None` before there is evidence.
    pub fn found(&self) -> Option<f32> {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A layer whose firing neurons have scores of a logistic distribution around `centre`.
    fn recall_at(threshold: f32, centre: f32, scale: f32) -> f32 {
        1.0 / (1.0 + ((threshold - centre) / scale).exp())
    }

    fn run(recall: &mut Recall, audits: usize, centre: f32, scale: f32, noise: &mut u64) -> f32 {
        let mut sum = 0.0;
        for audit in 0..audits {
            let found = recall_at(recall.shift(), centre, scale);
            let missed = (0..100)
                .filter(|_| {
                    *noise = noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (*noise >> 40) as f32 / (1u64 << 24) as f32 >= found
                })
                .count();
            recall.audit(100, missed);
            if audit * 2 >= audits {
                sum += recall_at(recall.shift(), centre, scale);
            }
        }
        sum / (audits as f32 / 2.0)
    }

    #[test]
    fn it_finds_the_target_whatever_the_scale_and_again_after_a_change() {
        for scale in [0.02, 0.5, 20.0] {
            let (mut recall, mut noise) = (Recall::new(0.95), 7);
            for centre in [0.0, 3.0, -1.0] {
                let got = run(&mut recall, 1500, centre * scale, scale, &mut noise);
                assert!((got - 0.95).abs() < 0.02, "scale {scale}, centre {centre}: {got}");
            }
        }
    }

    #[test]
    fn what_is_well_is_left_alone() {
        let (mut recall, mut noise) = (Recall::new(0.95), 3);
        run(&mut recall, 1000, 0.0, 1.0, &mut noise);
        let settled = recall.shift();
        run(&mut recall, 1000, 0.0, 1.0, &mut noise);
        assert!((recall.shift() - settled).abs() < 0.7, "{settled} {}", recall.shift());
        assert!(recall.found().is_some_and(|found| (found - 0.95).abs() < 0.04));
    }

    #[test]
    fn without_firings_there_is_no_evidence() {
        let mut recall = Recall::new(0.95);
        assert!(!(0..100).any(|_| recall.audit(0, 0)));
        assert_eq!((recall.shift(), recall.found()), (0.0, None));
        // A target of everything still ends.
        let mut all = Recall::new(1.0);
        for _ in 0..100_000 {
            all.audit(10, 0);
        }
        assert!((0.0..100_000.0).contains(&all.shift()), "{all:?}");
    }
}
