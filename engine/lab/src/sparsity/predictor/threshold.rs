//! Thresholds of predictors. A layer's predictor selects the neurons whose score is at least its
//! threshold. A higher threshold selects fewer neurons and misses more firings. [`with_threshold`]
//! sets the highest threshold that reaches the target recall.
//!
//! Recall as a mean over tokens is a weighted fraction of all firings. A firing at token `t` has
//! the weight `1 / |A_t|`, or for mass recall its fraction of the token's mass. The threshold is
//! therefore a weighted quantile of the scores of the neurons that fired. This is an estimate from
//! some text, so the target is raised by [`MARGIN`] standard errors. They are measured over
//! stretches of text, because neighbouring tokens are correlated.

use std::{ops::Range, time::Instant};

use super::{
    Trained,
    data::{BLOCK, Firings, LayerData},
    metrics::{Prediction, PredictionTally, down_norms},
    options::Target,
    report::{PredictorReport, QualityLimit},
};
use thermocline_base::error::Result;
use thermocline_cpu::Cpu;
use thermocline_model::{Predictor, mask};
use thermocline_run::runtime::predictor_scores;

/// The recall must exceed the target by this many standard errors. Misses have a long tail, so two
/// are not enough.
const MARGIN: f64 = 3.0;
/// Tokens per stretch of text.
const STRETCH: usize = 64;

/// Sets the threshold of `predictor` for `target` on one held-out range of `data`, and measures it
/// on another ([`DataSplit`](super::DataSplit)).
///
/// # Errors
/// [`Error::Invalid`](thermocline_base::error::Error::Invalid) for a target outside 0 to 1, without
/// tokens, or without the residual stream for a predictor that reads it.
pub fn with_threshold(cpu: &Cpu, data: &LayerData<'_>, predictor: Predictor, target: Target) -> Result<Trained> {
    target.check()?;
    let (split, norms, started) = (data.split()?, down_norms(data.ffn()), Instant::now());
    let firings = |range| Firings::compute(cpu, data, &norms, range, &mut |_| Ok(()));
    let (set, test) = (firings(split.set)?, firings(split.test)?);
    let calibration = calibrate(cpu, data, &predictor, &set, target, MARGIN)?;
    let seconds = started.elapsed().as_secs_f64();
    let mut predictor = Predictor { threshold: calibration.threshold, ..predictor };
    let mut report = PredictorReport::measure(cpu, data, &predictor, &test, target)?;
    report.limit = calibration.unsure.then_some(QualityLimit::Text);
    report.seconds = seconds;
    predictor.quality = Some(report.quality());
    Ok(Trained { predictor, report })
}

/// Calls `each(t, scores)` for `tokens`. `t` counts from the beginning of the range, and `scores`
/// are `[n_ff]`.
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
        let (scores, _) = predictor_scores(predictor, cpu, &x, block.len(), &mut inner, &mut scores)?;
        for (t, scores) in block.zip(scores.chunks_exact(n_ff.max(1))) {
            each(t - tokens.start, scores);
        }
    }
    Ok(())
}

/// Measures `predictor` at its threshold over the tokens of `firings`.
pub(super) fn evaluate(
    cpu: &Cpu,
    data: &LayerData<'_>,
    predictor: &Predictor,
    firings: &Firings,
) -> Result<Prediction> {
    let n_ff = data.n_ff();
    let mut tally = PredictionTally::new(n_ff);
    let (mut active, mut predicted) = (vec![0; n_ff.div_ceil(32)], vec![0; n_ff.div_ceil(32)]);
    let mut mass = vec![0.0; n_ff];
    for_each_token(cpu, data, predictor, firings.range(), &mut |t, scores| {
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

/// A firing with its score and its weights in recall and mass recall.
#[derive(Clone, Copy)]
struct ScoredFiring {
    score: f32,
    token: u32,
    /// Weight in recall, `1 / |A_t|`.
    count: f32,
    /// Weight in mass recall: fraction of the token's mass.
    mass: f32,
}

/// Finds the highest threshold at which `predictor` meets `target` on the tokens of `firings`, with
/// `margin` standard errors to spare. Also estimates the fraction of neurons that it selects. If
/// nothing fires, the threshold is above every score.
pub(super) fn calibrate(
    cpu: &Cpu,
    data: &LayerData<'_>,
    predictor: &Predictor,
    firings: &Firings,
    target: Target,
    margin: f64,
) -> Result<Calibration> {
    let mut fired = Vec::new();
    let mut scores_seen = ScoreSample::new(firings.tokens() * data.n_ff());
    for_each_token(cpu, data, predictor, firings.range(), &mut |t, scores| {
        scores_seen.add(scores);
        let (neurons, masses) = firings.token(t);
        let whole: f32 = masses.iter().sum();
        // Firings of tokens whose mass overflows have no weight in mass recall.
        let fraction = |mass: f32| if whole > 0.0 && whole.is_finite() { mass / whole } else { 0.0 };
        let number = |score: f32| if score.is_nan() { f32::MAX } else { score.clamp(f32::MIN, f32::MAX) };
        fired.extend(neurons.iter().zip(masses).map(|(i, mass)| ScoredFiring {
            score: number(scores[*i as usize]),
            token: t as u32,
            count: 1.0 / neurons.len() as f32,
            mass: fraction(*mass),
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
    Ok(Calibration { threshold, density: scores_seen.fraction_from(threshold), unsure })
}

/// Result of [`calibrate`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Calibration {
    /// Threshold on the scores.
    pub threshold: f32,
    /// Estimated fraction of the neurons that the threshold selects.
    pub density: f64,
    /// True if there was too little text for the full margin.
    pub unsure: bool,
}

/// Returns slightly less than `score`, because another summation order may round the score down.
fn below(score: f32) -> f32 {
    (score - 1e-5 * score.abs()).max(f32::MIN)
}

/// Returns a score. The firings with at least this score hold the fraction `target` plus the margin
/// of all weight. Also returns true if the margin should have been larger.
fn quantile(
    fired: &[ScoredFiring],
    tokens: usize,
    target: f64,
    margin: f64,
    weight: impl Fn(&ScoredFiring) -> f32,
) -> (f32, bool) {
    let whole: f64 = fired.iter().map(|firing| f64::from(weight(firing))).sum();
    let reached = |fraction: f64| {
        let mut missing = fraction * whole;
        let found = fired.iter().position(|firing| {
            missing -= f64::from(weight(firing));
            missing <= 0.0
        });
        found.unwrap_or(fired.len() - 1)
    };
    // Recall of each stretch at the threshold without margin. Its scatter estimates the error on
    // other text.
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
        // A single stretch has no scatter, so independent firings are assumed.
        1 => (target * (1.0 - target) / fired.len() as f64).sqrt(),
        n => (scatter / (n - 1) as f64 / n as f64).sqrt() / mean.max(f64::MIN_POSITIVE),
    };
    // The margin is bounded so that the last misses do not decide. At least half of the tolerated
    // misses remain allowed.
    let most = 0.5 * (1.0 - target);
    (fired[reached(target + (margin * error).min(most))].score, margin * error > most)
}

/// A sample of scores for estimating densities.
struct ScoreSample {
    every: u64,
    seen: u64,
    sample: Vec<f32>,
    largest: f32,
}

impl ScoreSample {
    /// Creates an empty sample for about `n` scores.
    fn new(n: usize) -> Self {
        const MOST: usize = 1 << 18;
        let every = n.div_ceil(MOST).max(1) as u64;
        ScoreSample { every, seen: 0, sample: Vec::new(), largest: f32::MIN }
    }

    fn add(&mut self, scores: &[f32]) {
        for score in scores {
            self.largest = self.largest.max(*score);
            // Hashes the index, because equal steps may always hit the same neurons.
            if (self.seen.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).is_multiple_of(self.every) {
                self.sample.push(*score);
            }
            self.seen += 1;
        }
    }

    fn fraction_from(&self, threshold: f32) -> f64 {
        let above = self.sample.iter().filter(|score| **score >= threshold).count();
        above as f64 / self.sample.len().max(1) as f64
    }
}
