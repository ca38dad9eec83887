//! Trains one layer's predictor: searches for its rank, and passes over the data for each rank.
//!
//! With a suitable threshold, every rank meets the target recall, but a small rank selects many
//! neurons. The search therefore looks for the rank with the lowest cost per token
//! ([`FfnCost::predicted`]): the bytes of the predictor and of the neurons that it selects. Each
//! rank is tried in every allowed type, because coarser weights have fewer bytes but select more
//! neurons. The first rank depends on how many neurons fire and how evenly. Then the rank doubles
//! or halves as long as the cost falls.

use std::{ops::ControlFlow, time::Instant};

use ndarray::Array2;
use rand::seq::SliceRandom;
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

use super::{
    data::{Firings, LayerData},
    low_rank::{LowRank, add_product, rows_of, uniform},
    metrics::down_norms,
    options::{TrainOptions, TrainProgress},
    report::{PredictorReport, QualityLimit},
    selection::FfnCost,
    threshold::{calibrate, with_threshold},
};
use crate::unless_stopped;
use thermocline_base::error::{Error, Result};
use thermocline_cpu::Cpu;
use thermocline_formats::quant::TensorType;
use thermocline_model::{Predictor, PredictorInput};

/// A predictor with its threshold and figures.
#[derive(Debug, Clone)]
pub struct Trained {
    /// The predictor.
    pub predictor: Predictor,
    /// The predictor's figures.
    pub report: PredictorReport,
}

/// Ranks are multiples of this number, so that rows are whole blocks of every type.
const RANK_STEP: usize = 32;
/// Tokens per step.
const BATCH: usize = 128;
/// Peak learning rate.
const RATE: f64 = 2e-3;
/// Passes without improvement after which training of a rank ends.
const PATIENCE: usize = 3;
/// Least relative improvement of the cost that counts.
const MIN_IMPROVEMENT: f64 = 0.01;
/// Inputs that determine the scale of the initial weights.
const SAMPLE: usize = 512;
/// Firing rows that are combined into the initial weights together.
const MIX_BLOCK: usize = 512;

/// Trains a low-rank predictor of a layer. Calls `progress` at every step; it may stop the
/// training. The result depends on the seed, the data and the instruction set, but not on the
/// number of threads. It depends on time only if [`TrainOptions::seconds`] runs out.
///
/// # Errors
/// [`Error::Cancelled`] if `progress` breaks. [`Error::Invalid`] without tokens, without a type, or
/// if the allowed parameters are fewer than the smallest predictor has. [`Error::Training`] if the
/// loss is not finite or threads cannot be started.
pub fn train(
    cpu: &Cpu,
    data: &LayerData<'_>,
    options: &TrainOptions,
    progress: &mut dyn FnMut(TrainProgress) -> ControlFlow<()>,
) -> Result<Trained> {
    options.target.check()?;
    if options.types.is_empty() {
        return Err(Error::invalid("types of a predictor", "at least one type", "no type"));
    }
    let mut split = data.split()?;
    split.train.end = split.train.end.min(split.train.start + options.tokens.max(1));
    let per_rank = (data.d() + data.n_ff()) as u64;
    let most =
        usize::try_from(options.parameters / per_rank).unwrap_or(usize::MAX).min(data.n_ff()) / RANK_STEP * RANK_STEP;
    if most == 0 {
        let least = format!("at least {}", per_rank * RANK_STEP as u64);
        return Err(Error::invalid("parameters of a predictor", least, options.parameters));
    }
    let started = Instant::now();
    let mut report_progress = |done: f64, rank: usize| {
        let seconds_left = (done > 0.02).then(|| started.elapsed().as_secs_f64() * (1.0 - done) / done);
        unless_stopped(progress(TrainProgress { done, seconds_left, rank }))
    };
    let norms = down_norms(data.ffn());
    let mut firings = |range, from: f64, to: f64| {
        Firings::compute(cpu, data, &norms, range, &mut |done| report_progress(from + (to - from) * done, 0))
    };
    let fired = firings(split.train, 0.0, 0.9 * PREPARED)?;
    let tune = firings(split.tune, 0.9 * PREPARED, PREPARED)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(cpu.pool().threads()).build();
    let trainer = Trainer {
        cpu,
        data,
        options,
        counts: fired.counts(data.n_ff()),
        fired,
        tune,
        cost: FfnCost::new(data.ffn()),
        pool: pool.map_err(|error| Error::Training(error.to_string()))?,
        started,
    };
    let (best, limit) = trainer.search(most, &mut report_progress)?;
    let Trained { predictor, mut report } = with_threshold(cpu, data, best.predictor, options.target)?;
    report.seconds = started.elapsed().as_secs_f64();
    report.limit = limit.or(report.limit);
    report_progress(1.0, report.rank.unwrap_or(0))?;
    Ok(Trained { predictor, report })
}

/// Fraction of the work that is done when the training begins.
const PREPARED: f64 = 0.1;

struct Trainer<'a, 'd> {
    cpu: &'a Cpu,
    data: &'a LayerData<'d>,
    options: &'a TrainOptions,
    /// Firings in the training range.
    fired: Firings,
    /// Firings per neuron in the training range, `[n_ff]`.
    counts: Vec<u32>,
    /// Firings in the tuning range.
    tune: Firings,
    cost: FfnCost,
    pool: rayon::ThreadPool,
    started: Instant,
}

/// A trained network of one rank.
struct Trial {
    rank: usize,
    predictor: Predictor,
    /// Cost of one token ([`FfnCost`]).
    cost: f64,
    /// True if the time limit ended the training.
    out_of_time: bool,
    /// Multiplications of the training.
    work: f64,
}

/// Callback with the fraction of the work that is done and the rank being tried. An error stops the
/// training.
type OnProgress<'t> = dyn FnMut(f64, usize) -> Result<()> + 't;

impl Trainer<'_, '_> {
    /// Returns the trial of the cheapest rank, at most `most`, and the limit that the search met.
    fn search(&self, most: usize, on_progress: &mut OnProgress<'_>) -> Result<(Trial, Option<QualityLimit>)> {
        let first = self.first_rank().min(most);
        // The number of ranks to try is unknown, so each rank uses at most half of the remaining
        // work.
        let (mut done, mut left) = (PREPARED, self.options.work);
        let mut trial = |rank: usize, on_progress: &mut OnProgress<'_>| {
            let part = 0.4 * (1.0 - done);
            let trial = self.trial(rank, 0.5 * left, &mut |at, rank| on_progress(done + part * at, rank));
            done += part;
            left = trial.as_ref().map_or(left, |trial| left - trial.work);
            trial
        };
        let mut best = trial(first, on_progress)?;
        let mut limit = None;
        for grow in [true, false] {
            let from = best.rank;
            // If growing paid, shrinking does not.
            if !grow && best.rank != first {
                break;
            }
            loop {
                let next = if grow { (2 * best.rank).min(most) } else { best.rank / 2 / RANK_STEP * RANK_STEP };
                if next == best.rank || next == 0 {
                    limit = (grow && next == best.rank && most < self.data.n_ff() / 2)
                        .then_some(QualityLimit::Parameters)
                        .or(limit);
                    break;
                }
                if best.out_of_time || self.time_is_over() {
                    limit = Some(QualityLimit::Time);
                    break;
                }
                let other = trial(next, on_progress)?;
                let better = other.cost < best.cost * (1.0 - MIN_IMPROVEMENT);
                if !better {
                    break;
                }
                best = other;
            }
            if best.rank < from {
                limit = None;
            }
        }
        Ok((best, limit))
    }

    /// Returns the first rank to try. It is larger if many neurons fire, and if firings are spread
    /// over many neurons. A few neurons that always fire are easy to predict.
    fn first_rank(&self) -> usize {
        let n_ff = self.data.n_ff();
        let total: f64 = self.counts.iter().map(|count| f64::from(*count)).sum();
        let active = total / (n_ff * self.fired.tokens()).max(1) as f64;
        let mut sorted = self.counts.clone();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        let mut missing = 0.8 * total;
        let spread = sorted.iter().take_while(|count| {
            missing -= f64::from(**count);
            missing > 0.0
        });
        let spread = spread.count() as f64 / n_ff.max(1) as f64;
        let rank = self.data.d() as f64 * active.sqrt() * (0.25 + 1.25 * spread);
        (rank as usize).next_multiple_of(RANK_STEP).max(RANK_STEP)
    }

    fn time_is_over(&self) -> bool {
        self.options.seconds.is_some_and(|seconds| self.started.elapsed().as_secs_f64() > seconds)
    }

    /// Trains a network of `rank` from its initial weights, with at most `work` multiplications,
    /// but at least one step.
    fn trial(&self, rank: usize, work: f64, on_progress: &mut OnProgress<'_>) -> Result<Trial> {
        on_progress(0.0, rank)?;
        let mut rng = ChaCha8Rng::seed_from_u64(self.options.seed);
        rng.set_stream(rank as u64);
        let tokens = self.fired.tokens();
        let mut x = Vec::new();
        let first = self.fired.range().start;
        self.data.copy(PredictorInput::Normed, first..first + tokens.min(SAMPLE), &mut x)?;
        let x = rows_of(self.data.d(), x)?;
        let mut network = self.pool.install(|| -> Result<LowRank> {
            let fc1 = self.initial_fc1(rank, &mut rng)?;
            Ok(LowRank::new(fc1, x, &self.counts, tokens, &mut rng))
        })?;
        let epochs = self.options.epochs.max(1);
        // Counts each product and the products for the gradients of its two factors.
        let work_of_step = (3 * BATCH.min(tokens) * rank * (self.data.d() + self.data.n_ff())) as f64;
        let steps = ((epochs * tokens.div_ceil(BATCH)) as f64).min(work / work_of_step).max(1.0).floor();
        let (mut step, mut worse) = (0.0, 0);
        let mut best: Option<Trial> = None;
        let mut order: Vec<usize> = (0..tokens).collect();
        while step < steps {
            order.shuffle(&mut rng);
            for batch in order.chunks(BATCH).take((steps - step) as usize) {
                on_progress(step / steps, rank)?;
                let mut x = vec![0.0; batch.len() * self.data.d()];
                self.data.gather(first, batch, &mut x);
                let x = rows_of(self.data.d(), x)?;
                // Linear warm-up over a twentieth of the steps, then cosine decay.
                let at: f64 = step / steps;
                let rate = RATE * (at / 0.05).min(1.0) * (0.02 + 0.49 * (1.0 + (std::f64::consts::PI * at).cos()));
                let loss = self.pool.install(|| network.step(x.view(), batch, &self.fired, rate));
                if !loss.is_finite() {
                    return Err(Error::Training(format!("the loss of a predictor of rank {rank} became {loss}")));
                }
                step += 1.0;
                if self.time_is_over() {
                    break;
                }
            }
            let out_of_time = self.time_is_over();
            worse += 1;
            for ty in &self.options.types {
                let (predictor, cost) = self.priced(&network, *ty)?;
                if best.as_ref().is_none_or(|best| cost < best.cost) {
                    let improved = best.as_ref().is_none_or(|best| cost < best.cost * (1.0 - 0.2 * MIN_IMPROVEMENT));
                    worse = if improved { 0 } else { worse };
                    best = Some(Trial { rank, predictor, cost, out_of_time, work: 0.0 });
                }
            }
            if out_of_time || worse >= PATIENCE {
                break;
            }
        }
        let done = step * work_of_step;
        best.map(|best| Trial { work: done, ..best })
            .ok_or_else(|| Error::Training(format!("the training made no step at rank {rank}")))
    }

    /// Returns `network` as a predictor of type `ty`, and the cost of a token with it.
    fn priced(&self, network: &LowRank, ty: TensorType) -> Result<(Predictor, f64)> {
        let predictor = network.predictor(ty)?;
        // Ranks are compared at the target itself, without a margin.
        let calibration = calibrate(self.cpu, self.data, &predictor, &self.tune, self.options.target, 0.0)?;
        let fired: f64 = self.counts.iter().map(|count| f64::from(*count)).sum();
        let active = fired / (self.counts.len() * self.fired.tokens()).max(1) as f64;
        let cost = self.cost.predicted(predictor.bytes(), calibration.density, active.min(calibration.density));
        Ok((predictor, cost))
    }

    /// Returns the initial first layer, `[rank, d]`: random combinations of the layer's firing
    /// rows, weighted by how often their neurons fire. The span of these rows decides firing.
    fn initial_fc1(&self, rank: usize, rng: &mut ChaCha8Rng) -> Result<Array2<f32>> {
        let d = self.data.d();
        let rows = &self.data.firing_rows().weight;
        let mut fc1 = Array2::zeros((rank, d));
        for (at, counts) in self.counts.chunks(MIX_BLOCK).enumerate() {
            let (mut some, mut parts) = (vec![0.0; counts.len() * d], vec![0.0; counts.len() * rank]);
            let each = some.chunks_exact_mut(d).zip(parts.chunks_exact_mut(rank)).zip(counts);
            for (i, ((row, parts), count)) in (at * MIX_BLOCK..).zip(each) {
                rows.dequantise_row(i, row);
                parts.fill_with(|| uniform(rng, (*count as f32 + 0.1).sqrt()));
            }
            add_product(rows_of(rank, parts)?.t(), rows_of(d, some)?.view(), fc1.view_mut());
        }
        Ok(fc1)
    }
}
