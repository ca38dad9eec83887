//! Training one layer's predictor: the search for its size, and the passes over the data for each size.
//!
//! With a threshold of its own every size finds the share of firings that is asked for; a small one just names many
//! neurons to do so. What is searched for is therefore the size at which a token costs least ([`FfnCost::predicted`]):
//! the predictor's own bytes and those of the neurons it lets through. Each size is tried in every type it may have, since
//! coarser weights are fewer bytes but name more neurons. The first guess comes from how many neurons fire
//! and how evenly; from there the size doubles or halves as long as that pays.

use std::{ops::ControlFlow, time::Instant};

use candle_core::{DType, Device, Tensor};
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

use super::{
    choose::FfnCost,
    data::{Firings, LayerData},
    low_rank::{LowRank, failed},
    metrics::down_norms,
    options::{Progress, TrainOptions},
    report::{Limit, PredictorReport},
    threshold::{calibrate, with_threshold},
};
use crate::{
    cpu::Cpu,
    error::{Error, Result},
    format::TensorType,
    model::{Predictor, PredictorInput},
    synth::random::{fill_normal, permutation},
};

/// A predictor with its threshold, and what was measured of it.
#[derive(Debug, Clone)]
pub struct Trained {
    /// The predictor.
    pub predictor: Predictor,
    /// Its figures.
    pub report: PredictorReport,
}

/// Ranks are multiples of this, so that rows are whole blocks of every type.
const RANK_STEP: usize = 32;
/// Most tokens of a step.
const BATCH: usize = 128;
/// Learning rate at its highest.
const RATE: f64 = 2e-3;
/// Passes without improvement after which a size is done.
const PATIENCE: usize = 3;
/// A cost has to fall by this share to count as lower.
const WORTH: f64 = 0.01;
/// Inputs the first weights are scaled by.
const SAMPLE: usize = 512;
/// Firing rows the first weights are mixed of at a time.
const MIXED: usize = 512;

/// Trains a low-rank predictor of a layer. `progress` is told how far it is and may stop it. The result depends on the seed,
/// the data and the instruction set, not on the number of threads (but on time where [`TrainOptions::seconds`] runs out).
///
/// # Errors
/// [`Error::Cancelled`] if `progress` breaks, [`Error::Invalid`] without tokens or with fewer parameters allowed than the
/// smallest predictor has or without a type, [`Error::Training`] if the training library fails or the numbers do.
pub fn train(
    cpu: &Cpu,
    data: &LayerData<'_>,
    options: &TrainOptions,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Trained> {
    options.target.check()?;
    if options.types.is_empty() {
        return Err(Error::invalid("types of a predictor", "at least one", "none"));
    }
    let mut split = data.split()?;
    split.train.end = split.train.end.min(split.train.start + options.tokens.max(1));
    let of_rank = (data.d() + data.n_ff()) as u64;
    let most =
        usize::try_from(options.parameters / of_rank).unwrap_or(usize::MAX).min(data.n_ff()) / RANK_STEP * RANK_STEP;
    if most == 0 {
        let least = format!("at least {}", of_rank * RANK_STEP as u64);
        return Err(Error::invalid("parameters of a predictor", least, options.parameters));
    }
    let started = Instant::now();
    let mut tell = |done: f64, rank: usize| match progress(Progress {
        done,
        seconds_left: (done > 0.02).then(|| started.elapsed().as_secs_f64() * (1.0 - done) / done),
        rank,
    }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Cancelled),
    };
    let norms = down_norms(data.ffn());
    let mut firings = |range, from: f64, to: f64| {
        Firings::of(cpu, data, &norms, range, &mut |done| tell(from + (to - from) * done, 0))
    };
    let fired = firings(split.train.clone(), 0.0, 0.9 * PREPARED)?;
    let tune = firings(split.tune.clone(), 0.9 * PREPARED, PREPARED)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(cpu.pool().threads()).build();
    let trainer = Trainer {
        cpu,
        data,
        options,
        first: split.train.start,
        counts: fired.counts(data.n_ff()),
        fired,
        tune,
        tune_first: split.tune.start,
        cost: FfnCost::of(data.ffn()),
        pool: pool.map_err(|error| Error::Training(error.to_string()))?,
        started,
    };
    let (best, limit) = trainer.search(most, &mut tell)?;
    let Trained { predictor, mut report } = with_threshold(cpu, data, best.predictor, options.target)?;
    report.seconds = started.elapsed().as_secs_f64();
    report.limit = limit.or(report.limit);
    tell(1.0, report.rank.unwrap_or(0))?;
    Ok(Trained { predictor, report })
}

/// Share of the work that is done when training begins.
const PREPARED: f64 = 0.1;

struct Trainer<'a, 'd> {
    cpu: &'a Cpu,
    data: &'a LayerData<'d>,
    options: &'a TrainOptions,
    /// First token trained on.
    first: usize,
    fired: Firings,
    /// Per neuron, of `fired`.
    counts: Vec<u32>,
    tune: Firings,
    tune_first: usize,
    cost: FfnCost,
    pool: rayon::ThreadPool,
    started: Instant,
}

/// One size, trained.
struct Trial {
    rank: usize,
    predictor: Predictor,
    /// Of one token, see [`FfnCost`].
    cost: f64,
    /// Whether the time was over before it was done.
    cut_short: bool,
    /// Multiplications it took.
    work: f64,
}

type Tell<'t> = dyn FnMut(f64, usize) -> Result<()> + 't;

impl Trainer<'_, '_> {
    /// The size that costs least, of at most `most`, and what limits it.
    fn search(&self, most: usize, tell: &mut Tell<'_>) -> Result<(Trial, Option<Limit>)> {
        let first = self.first_rank().min(most);
        // How many sizes will be tried is not known: each takes at most half of the work that is left.
        let (mut done, mut left) = (PREPARED, self.options.work);
        let mut trial = |rank: usize, tell: &mut Tell<'_>| {
            let share = 0.4 * (1.0 - done);
            let trial = self.trial(rank, 0.5 * left, &mut |at, rank| tell(done + share * at, rank));
            done += share;
            left = trial.as_ref().map_or(left, |trial| left - trial.work);
            trial
        };
        let mut best = trial(first, tell)?;
        let mut limit = None;
        for grow in [true, false] {
            let from = best.rank;
            // Growing that paid has answered whether to shrink.
            if !grow && best.rank != first {
                break;
            }
            loop {
                let next = if grow { (2 * best.rank).min(most) } else { best.rank / 2 / RANK_STEP * RANK_STEP };
                if next == best.rank || next == 0 {
                    limit = (grow && next == best.rank && most < self.data.n_ff() / 2)
                        .then_some(Limit::Parameters)
                        .or(limit);
                    break;
                }
                if best.cut_short || self.time_is_over() {
                    limit = Some(Limit::Time);
                    break;
                }
                let other = trial(next, tell)?;
                let better = other.cost < best.cost * (1.0 - WORTH);
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

    /// Where to begin: more for layers of which much fires, and for those whose firings are spread over many neurons (the
    /// same few, always, are easily told).
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

    /// One size, from the beginning, in at most `work` multiplications (but one step at least).
    fn trial(&self, rank: usize, work: f64, tell: &mut Tell<'_>) -> Result<Trial> {
        tell(0.0, rank)?;
        let mut rng = ChaCha8Rng::seed_from_u64(self.options.seed);
        rng.set_stream(rank as u64);
        let tokens = self.fired.tokens();
        let mut x = Vec::new();
        self.data.copy(PredictorInput::Normed, self.first..self.first + tokens.min(SAMPLE), &mut x)?;
        let network = self.pool.install(|| {
            let fc1 = self.first_layer(rank, &mut rng)?;
            LowRank::new(fc1, &x, &self.counts, tokens, &mut rng)
        });
        let mut network = network.map_err(failed)?;
        let epochs = self.options.epochs.max(1);
        // The product itself and those for the gradients of its two sides.
        let work_of_step = (3 * BATCH.min(tokens) * rank * (self.data.d() + self.data.n_ff())) as f64;
        let steps = ((epochs * tokens.div_ceil(BATCH)) as f64).min(work / work_of_step).max(1.0).floor();
        let (mut step, mut worse) = (0.0, 0);
        let mut best: Option<Trial> = None;
        while step < steps {
            let order = permutation(&mut rng, tokens);
            for batch in order.chunks(BATCH).take((steps - step) as usize) {
                tell(step / steps, rank)?;
                let mut x = vec![0.0; batch.len() * self.data.d()];
                self.data.gather(self.first, batch, &mut x);
                // Up within a twentieth of the way, then down along a cosine.
                let at: f64 = step / steps;
                let rate = RATE * (at / 0.05).min(1.0) * (0.02 + 0.49 * (1.0 + (std::f64::consts::PI * at).cos()));
                let loss = self.pool.install(|| network.step(x, batch, &self.fired, rate)).map_err(failed)?;
                if !loss.is_finite() {
                    return Err(Error::Training(format!("the loss of a predictor of rank {rank} became {loss}")));
                }
                step += 1.0;
                if self.time_is_over() {
                    break;
                }
            }
            let cut_short = self.time_is_over();
            worse += 1;
            for ty in &self.options.types {
                let (predictor, cost) = self.priced(&network, *ty)?;
                if best.as_ref().is_none_or(|best| cost < best.cost) {
                    let much = best.as_ref().is_none_or(|best| cost < best.cost * (1.0 - 0.2 * WORTH));
                    worse = if much { 0 } else { worse };
                    best = Some(Trial { rank, predictor, cost, cut_short, work: 0.0 });
                }
            }
            if cut_short || worse >= PATIENCE {
                break;
            }
        }
        let done = step * work_of_step;
        best.map(|best| Trial { work: done, ..best })
            .ok_or_else(|| Error::Training(format!("nothing came of rank {rank}")))
    }

    /// What `network` is in type `ty`, and what a token then costs.
    fn priced(&self, network: &LowRank, ty: TensorType) -> Result<(Predictor, f64)> {
        let predictor = network.predictor(ty)?;
        let (tune, first, target) = (&self.tune, self.tune_first, self.options.target);
        // Without a margin: sizes are compared at the target itself.
        let calibration = calibrate(self.cpu, self.data, &predictor, tune, first, target, 0.0)?;
        let fired: f64 = self.counts.iter().map(|count| f64::from(*count)).sum();
        let active = fired / (self.counts.len() * self.fired.tokens()).max(1) as f64;
        let cost = self.cost.predicted(predictor.bytes(), calibration.density, active.min(calibration.density));
        Ok((predictor, cost))
    }

    /// `[rank, d]`: random mixtures of the layer's firing rows, those of busy neurons in larger parts. What decides about
    /// firing lies in their span.
    fn first_layer(&self, rank: usize, rng: &mut ChaCha8Rng) -> candle_core::Result<Tensor> {
        let d = self.data.d();
        let rows = &self.data.firing_rows().weight;
        let mut fc1 = Tensor::zeros((rank, d), DType::F32, &Device::Cpu)?;
        for (at, counts) in self.counts.chunks(MIXED).enumerate() {
            let (mut some, mut parts) = (vec![0.0; counts.len() * d], vec![0.0; counts.len() * rank]);
            let each = some.chunks_exact_mut(d).zip(parts.chunks_exact_mut(rank)).zip(counts);
            for (i, ((row, parts), count)) in (at * MIXED..).zip(each) {
                rows.dequantise_row(i, row);
                fill_normal(rng, (*count as f32 + 0.1).sqrt(), parts);
            }
            let some = Tensor::from_vec(some, (counts.len(), d), &Device::Cpu)?;
            let parts = Tensor::from_vec(parts, (counts.len(), rank), &Device::Cpu)?;
            fc1 = (fc1 + parts.t()?.matmul(&some)?)?;
        }
        Ok(fc1)
    }
}
