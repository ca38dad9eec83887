//! Thresholds. A layer's predictor names the neurons whose score is at least its threshold; the higher it is, the fewer
//! are named and the more are missed. Here it becomes as high as the target allows.
//!
//! Recall as a mean over tokens is a weighted share of all firings, a firing of token `t` having the weight `1 / |A_t|`
//! (its mass over the token's, for mass recall). So the threshold for a target is a weighted quantile of the scores of what
//! fired. It is an estimate from some text: the target is raised by [`MARGIN`] standard errors, measured over stretches of
//! text because neighbouring tokens are alike.

use std::{ops::Range, time::Instant};

use super::{
    Trained,
    data::{BLOCK, Firings, LayerData},
    metrics::{Prediction, Tally, down_norms},
    options::Target,
    report::{Limit, PredictorReport},
};
use crate::{
    cpu::Cpu,
    error::Result,
    model::{Predictor, mask},
};

/// Standard errors between the target and what a threshold that will be used is set for. What is missed has a long tail, so two would not do.
const MARGIN: f64 = 3.0;
/// Tokens of a stretch of text.
const STRETCH: usize = 64;

/// `predictor` with the threshold that `target` needs, set on the part of `data` that [`Split`](super::Split) keeps for that and
/// measured on the part that is kept for testing.
///
/// # Errors
/// [`Error::Invalid`](crate::Error::Invalid) for a target that is no share, without tokens, or without the residual stream for a
/// predictor that looks at it.
pub fn with_threshold(cpu: &Cpu, data: &LayerData<'_>, predictor: Predictor, target: Target) -> Result<Trained> {
    target.check()?;
    let (split, norms, started) = (data.split()?, down_norms(data.ffn()), Instant::now());
    let firings = |range| Firings::of(cpu, data, &norms, range, &mut |_| Ok(()));
    let (set, test) = (firings(split.set.clone())?, firings(split.test.clone())?);
    let calibration = calibrate(cpu, data, &predictor, &set, split.set.start, target, MARGIN)?;
    let seconds = started.elapsed().as_secs_f64();
    let mut predictor = Predictor { threshold: calibration.threshold, ..predictor };
    let mut report = PredictorReport::measure(cpu, data, &predictor, &test, split.test.start, target)?;
    report.limit = calibration.unsure.then_some(Limit::Text);
    report.seconds = seconds;
    predictor.quality = Some(report.quality());
    Ok(Trained { predictor, report })
}

/// The scores of `tokens` in blocks: `each(t, scores)` with `t` counted from the beginning of the range.
pub(super) fn for_each_token(
    cpu: &Cpu,
    data: &LayerData<'_>,
    predictor: &Predictor,
    tokens: Range<usize>,
    each: &mut dyn FnMut(usize, &[f32]),
) -> Result<()> {
    let n_ff = data.n_ff();
    let (mut x, mut inner, mut scores) = (Vec::new(), Vec::new(), Vec::new());
    for start in tokens.clone().step_by(BLOCK) {
        let block = start..tokens.end.min(start + BLOCK);
        data.copy(predictor.input, block.clone(), &mut x)?;
        let (scores, _) = predictor.scores(cpu, &x, block.len(), &mut inner, &mut scores)?;
        for (t, scores) in block.zip(scores.chunks_exact(n_ff.max(1))) {
            each(t - tokens.start, scores);
        }
    }
    Ok(())
}

/// Figures of `predictor` with its threshold over the tokens of `firings`, which begin at token `first`.
pub(super) fn evaluate(
    cpu: &Cpu,
    data: &LayerData<'_>,
    predictor: &Predictor,
    firings: &Firings,
    first: usize,
) -> Result<Prediction> {
    let n_ff = data.n_ff();
    let mut tally = Tally::new(n_ff);
    let (mut active, mut predicted) = (vec![0; n_ff.div_ceil(32)], vec![0; n_ff.div_ceil(32)]);
    let mut mass = vec![0.0; n_ff];
    for_each_token(cpu, data, predictor, first..first + firings.tokens(), &mut |t, scores| {
        active.fill(0);
        let (neurons, masses) = firings.token(t);
        for (i, m) in neurons.iter().zip(masses) {
            mask::insert(&mut active, *i as usize);
            mass[*i as usize] = *m;
        }
        mask::fill(&mut predicted, n_ff, |i| scores[i] >= predictor.threshold);
        tally.add(&active, &predicted, Some(&mass));
    })?;
    Ok(tally.figures())
}

/// One firing: its score and its share of its token's count and mass.
#[derive(Clone, Copy)]
struct Firing {
    score: f32,
    token: u32,
    count: f32,
    mass: f32,
}

/// The highest threshold with which `predictor` meets `target` on the tokens of `firings`, `margin` standard errors to spare, and
/// the share of the neurons it then names. Where nothing fires, nothing seen is named.
pub(super) fn calibrate(
    cpu: &Cpu,
    data: &LayerData<'_>,
    predictor: &Predictor,
    firings: &Firings,
    first: usize,
    target: Target,
    margin: f64,
) -> Result<Calibration> {
    let mut fired = Vec::new();
    let mut scores_seen = ScoreSample::new(firings.tokens() * data.n_ff());
    for_each_token(cpu, data, predictor, first..first + firings.tokens(), &mut |t, scores| {
        scores_seen.add(scores);
        let (neurons, masses) = firings.token(t);
        let whole: f32 = masses.iter().sum();
        // Inputs that overflow count for nothing here.
        let share = |mass: f32| if whole > 0.0 && whole.is_finite() { mass / whole } else { 0.0 };
        let number = |score: f32| if score.is_nan() { f32::MAX } else { score.clamp(f32::MIN, f32::MAX) };
        fired.extend(neurons.iter().zip(masses).map(|(i, mass)| Firing {
            score: number(scores[*i as usize]),
            token: t as u32,
            count: 1.0 / neurons.len() as f32,
            mass: share(*mass),
        }));
    })?;
    fired.sort_unstable_by(|a, b| b.score.total_cmp(&a.score).then(a.token.cmp(&b.token)));
    let (threshold, unsure) = match fired.is_empty() {
        true => (scores_seen.largest.next_up().min(f32::MAX), true),
        false => {
            let (by_count, unsure) = quantile(&fired, firings.tokens(), target.recall, margin, |firing| firing.count);
            let (by_mass, also) = quantile(&fired, firings.tokens(), target.mass, margin, |firing| firing.mass);
            (below(by_count.min(by_mass)), unsure || also)
        }
    };
    Ok(Calibration { threshold, density: scores_seen.share_from(threshold), unsure })
}

/// What [`calibrate`] found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Calibration {
    /// The threshold.
    pub threshold: f32,
    /// Share of the neurons it names, estimated.
    pub density: f64,
    /// Whether there was too little text for the margin that other text may need.
    pub unsure: bool,
}

/// A little less than `score`: sums in another order may round it down.
fn below(score: f32) -> f32 {
    (score - 1e-5 * score.abs()).max(f32::MIN)
}

/// The score from which on the firings (in descending order) have the share `target` of all weight, plus the margin; and
/// whether the margin should have been larger.
fn quantile(fired: &[Firing], tokens: usize, target: f64, margin: f64, weight: impl Fn(&Firing) -> f32) -> (f32, bool) {
    let whole: f64 = fired.iter().map(|firing| f64::from(weight(firing))).sum();
    let reached = |share: f64| {
        let mut missing = share * whole;
        let found = fired.iter().position(|firing| {
            missing -= f64::from(weight(firing));
            missing <= 0.0
        });
        found.unwrap_or(fired.len() - 1)
    };
    // Recall of each stretch at the threshold without margin, of which the scatter tells how far other text may be off.
    let stretches = tokens.div_ceil(STRETCH);
    let mut sums = vec![(0.0, 0.0); stretches];
    let at = reached(target);
    for (i, firing) in fired.iter().enumerate() {
        let (found, all) = &mut sums[firing.token as usize / STRETCH];
        let weight = f64::from(weight(firing));
        *all += weight;
        *found += if i <= at { weight } else { 0.0 };
    }
    let mean = whole / stretches as f64;
    let scatter: f64 = sums.iter().map(|(found, all)| (found - target * all).powi(2)).sum();
    let error = match stretches {
        // A single stretch tells nothing about others: as if each firing were on its own.
        1 => (target * (1.0 - target) / fired.len() as f64).sqrt(),
        n => (scatter / (n - 1) as f64 / n as f64).sqrt() / mean.max(f64::MIN_POSITIVE),
    };
    // Never so much that the last misses are what decides: half of what may be missed is always missed.
    let most = 0.5 * (1.0 - target);
    (fired[reached(target + (margin * error).min(most))].score, margin * error > most)
}

/// A sample of scores, for densities.
struct ScoreSample {
    every: u64,
    seen: u64,
    sample: Vec<f32>,
    largest: f32,
}

impl ScoreSample {
    /// Of about `n` scores.
    fn new(n: usize) -> Self {
        const MOST: usize = 1 << 18;
        let every = n.div_ceil(MOST).max(1) as u64;
        ScoreSample { every, seen: 0, sample: Vec::new(), largest: f32::MIN }
    }

    fn add(&mut self, scores: &[f32]) {
        for score in scores {
            self.largest = self.largest.max(*score);
            // Scattered: equal steps might always meet the same neurons.
            if (self.seen.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).is_multiple_of(self.every) {
                self.sample.push(*score);
            }
            self.seen += 1;
        }
    }

    fn share_from(&self, threshold: f32) -> f64 {
        let above = self.sample.iter().filter(|score| **score >= threshold).count();
        above as f64 / self.sample.len().max(1) as f64
    }
}
