//! How well predictors (or cuts) find what fires, layer by layer, by the definitions of
//! [`metrics`](crate::sparsity::predictor::metrics), and what leaving the rest out does to the FFN's output.
//!
//! The text runs through the model by the [`Method`] at hand, and what every FFN is given on the way is looked at here: all
//! its neurons are computed once more, whether the method skips them or not.

use std::sync::Arc;

use serde::Serialize;

use super::{
    Activity, Conditions, Control, Corpus, Method, levels::Sample, score::Scorer, watch::FfnInputs, watch::Observer,
};
use crate::{
    cpu::{Cpu, MatmulJob, ops::Hidden},
    error::{Error, Result},
    model::{
        Down, ExpertWeights, Experts, Ffn, FfnWeights, Forward, Model, Predictor, PredictorInput, Routing, Sparsity,
    },
    sparsity::predictor::metrics::{
        MASS_OF_ACTIVE, Mean, Prediction, Tally, bit, down_norms, fill_mask, heaviest, least_and_median, ones,
        output_error,
    },
};

/// Tokens looked at together.
const BLOCK: usize = 32;

/// Figures of all layers.
#[derive(Debug, Clone, Serialize)]
pub struct Recall {
    /// How it was measured.
    pub conditions: Conditions,
    /// Which neurons count as active.
    pub active: String,
    /// Layers that have a predictor, or a cut.
    pub layers: Vec<LayerRecall>,
    /// Least and median over layers.
    pub recall: (f64, f64),
    /// The same of the mass recall.
    pub mass_recall: (f64, f64),
}

/// Figures of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LayerRecall {
    /// Which.
    pub layer: usize,
    /// Means over tokens.
    #[serde(flatten)]
    pub figures: Prediction,
    /// Mean of `|y - y'| / |y|`: the FFN's output with and without the neurons that were ruled out.
    pub output_error: f64,
}

/// Measures the predictors under [`Sparsity::Predicted`], the cuts under [`Sparsity::Threshold`].
///
/// # Errors
/// As [`Forward::run`]; [`Error::Invalid`] if `method` does not guess, or no layer has what that takes;
/// [`Error::Cancelled`] if `control` says so.
pub fn recall(
    forward: &mut Forward,
    cpu: &Cpu,
    corpus: &Corpus,
    method: Method,
    device: &str,
    control: &mut dyn Control,
) -> Result<Recall> {
    let model = Arc::clone(forward.model());
    let mut judge = Judge::new(cpu, &model, method.sparsity)?;
    let kv_type = judge.read(forward, corpus, method, control)?;
    let layers: Vec<LayerRecall> =
        judge.layers.iter().enumerate().filter_map(|(at, layer)| Some(layer.as_ref()?.figures(at))).collect();
    let over = |of: fn(&LayerRecall) -> f64| {
        least_and_median(&layers.iter().map(of).collect::<Vec<_>>()).unwrap_or((1.0, 1.0))
    };
    Ok(Recall {
        conditions: Conditions::new(&model, corpus, method, kv_type, device),
        active: if model.config.activation.is_sparse() {
            "all that are not zero".to_owned()
        } else {
            format!("the fewest that hold {:.0} % of the mass", 100.0 * MASS_OF_ACTIVE)
        },
        recall: over(|layer| layer.figures.recall),
        mass_recall: over(|layer| layer.figures.mass_recall),
        layers,
    })
}

/// Computes whole FFNs from what they are given, and what is guessed of them.
pub(super) struct Judge<'a> {
    cpu: &'a Cpu,
    form: Hidden,
    sparse: bool,
    pub layers: Vec<Option<Judged<'a>>>,
    buffers: Buffers,
    /// Why it could not.
    failed: Option<Error>,
}

/// One layer's weights and figures.
pub(super) struct Judged<'a> {
    /// Its FFN, or a mixture's experts and the one that every token passes through.
    ffns: Vec<(&'a FfnWeights, Vec<f32>)>,
    mixture: Option<(&'a ExpertWeights, &'a Experts)>,
    guess: Guess<'a>,
    tally: Tally,
    error: Mean,
    /// What decides the guess: scores of neurons that fire, weighted so that every token counts alike; or magnitudes of all
    /// gates.
    pub sample: Sample,
}

/// What says which neurons are computed.
enum Guess<'a> {
    Predictor(&'a Predictor),
    Cut(f32),
}

/// `[tokens, n_ff]` each, and `[tokens, d]` outputs.
#[derive(Default)]
struct Buffers {
    gate: Vec<f32>,
    up: Vec<f32>,
    scores: Vec<f32>,
    inner: Vec<f32>,
    mass: Vec<f32>,
    whole: Vec<f32>,
    part: Vec<f32>,
    active: Vec<u32>,
    predicted: Vec<u32>,
}

impl<'a> Judge<'a> {
    /// Of the layers that have a predictor, or a cut.
    pub fn new(cpu: &'a Cpu, model: &'a Model, sparsity: Sparsity) -> Result<Self> {
        Judge::of(cpu, model, sparsity, None)
    }

    /// The same; under [`Sparsity::Threshold`] layers without a cut have `cut`.
    pub fn of(cpu: &'a Cpu, model: &'a Model, sparsity: Sparsity, cut: Option<f32>) -> Result<Self> {
        let layers = model.weights.layers.iter().map(|layer| {
            let (ffns, mixture): (Vec<_>, _) = match &layer.ffn {
                Ffn::Dense(ffn) => (vec![ffn], None),
                Ffn::Experts(mixture) => {
                    (mixture.ffns().collect(), model.config.experts.as_ref().map(|of| (mixture, of)))
                }
            };
            let first = *ffns.first()?;
            let guess = match sparsity {
                Sparsity::Predicted => Guess::Predictor(layer.predictor.as_ref()?),
                Sparsity::Threshold => Guess::Cut(first.gate.as_ref().and(layer.cut.or(cut))?),
                Sparsity::Dense | Sparsity::Exact => return None,
            };
            let tally = Tally::new(first.up.weight.rows());
            let ffns = ffns.into_iter().map(|ffn| (ffn, down_norms(ffn))).collect();
            Some(Judged { ffns, mixture, guess, tally, error: Mean::default(), sample: Sample::default() })
        });
        let layers: Vec<_> = layers.collect();
        if layers.iter().all(Option::is_none) {
            let expected = match sparsity {
                Sparsity::Predicted if model.config.experts.is_some() => {
                    "a model with predictors, which mixtures have not (cuts can be measured under threshold)"
                }
                Sparsity::Predicted => "a model with predictors (`prepare` makes them)",
                Sparsity::Threshold => "a model with gates, and cuts for them (`prepare` makes them)",
                Sparsity::Dense | Sparsity::Exact => "a mode that guesses, predicted or threshold",
            };
            return Err(Error::invalid("what the recall is measured of", expected, sparsity));
        }
        let activation = model.config.activation;
        Ok(Judge {
            cpu,
            form: Hidden::from(activation),
            sparse: activation.is_sparse(),
            layers,
            buffers: Buffers::default(),
            failed: None,
        })
    }

    /// Runs a text through the model and looks at it; returns what type the cache got.
    pub fn read(
        &mut self,
        forward: &mut Forward,
        corpus: &Corpus,
        method: Method,
        control: &mut dyn Control,
    ) -> Result<crate::model::KvType> {
        let mut activity = Activity::new(forward.model());
        let mut scorer = Scorer::new(forward, corpus, method)?;
        for passage in &corpus.passages {
            let mut observer = Observer { control: &mut *control, activity: &mut activity, inputs: Some(&mut *self) };
            scorer.score(passage, &mut observer, &mut |_, _| Ok(()))?;
            self.failed.take().map_or(Ok(()), Err)?;
        }
        Ok(scorer.kv_type())
    }
}

impl FfnInputs for Judge<'_> {
    fn look(&mut self, layer: usize, tokens: usize, normed: &[f32], residual: &[f32]) {
        let Some(Some(layer)) = self.layers.get_mut(layer) else { return };
        let d = normed.len() / tokens.max(1);
        for (normed, residual) in normed.chunks(BLOCK * d.max(1)).zip(residual.chunks(BLOCK * d.max(1))) {
            let how = (self.form, self.sparse);
            if let Err(error) = layer.look_at_all(self.cpu, how, normed, residual, &mut self.buffers) {
                self.failed.get_or_insert(error);
            }
        }
    }
}

/// Makes room and returns it.
fn room(buffer: &mut Vec<f32>, n: usize) -> &mut [f32] {
    if buffer.len() < n {
        buffer.resize(n, 0.0);
    }
    &mut buffer[..n]
}

impl Judged<'_> {
    /// Of a mixture every expert is looked at with the tokens that use it, as if that were a layer's whole FFN.
    fn look_at_all(
        &mut self,
        cpu: &Cpu,
        how: (Hidden, bool),
        normed: &[f32],
        residual: &[f32],
        buffers: &mut Buffers,
    ) -> Result<()> {
        let Some((mixture, experts)) = self.mixture else {
            return self.look(0, cpu, how, (normed, residual), buffers);
        };
        let d = mixture.router.weight.cols();
        let (tokens, mut routing) = (normed.len() / d.max(1), Routing::default());
        routing.ask(cpu, experts, mixture, normed, tokens)?;
        for at in 0..self.ffns.len() {
            let rows: Vec<f32> = match at < mixture.experts.len() {
                true => routing.members(at, tokens).flat_map(|(t, _)| &normed[t * d..][..d]).copied().collect(),
                false => normed.to_vec(),
            };
            self.look(at, cpu, how, (&rows, &rows), buffers)?;
        }
        Ok(())
    }

    fn look(
        &mut self,
        at: usize,
        cpu: &Cpu,
        (form, sparse): (Hidden, bool),
        (normed, residual): (&[f32], &[f32]),
        buffers: &mut Buffers,
    ) -> Result<()> {
        let Buffers { gate, up, scores, inner, mass, whole, part, active, predicted } = buffers;
        let (ffn, norms) = &self.ffns[at];
        let (n_ff, d) = (ffn.up.weight.rows(), ffn.up.weight.cols());
        let tokens = normed.len() / d;
        let (gate, up) = (room(gate, tokens * n_ff), room(up, tokens * n_ff));
        let up_job = MatmulJob { weight: &ffn.up.weight, bias: ffn.up.bias.as_deref(), out: &mut *up };
        match &ffn.gate {
            Some(linear) => {
                let gate = MatmulJob { weight: &linear.weight, bias: linear.bias.as_deref(), out: &mut *gate };
                cpu.matmul(&mut [gate, up_job], normed, tokens);
            }
            None => cpu.matmul(&mut [up_job], normed, tokens),
        }
        let scores = match self.guess {
            Guess::Predictor(predictor) => {
                let x = if predictor.input == PredictorInput::Residual { residual } else { normed };
                predictor.scores(cpu, x, tokens, inner, scores)?.0
            }
            Guess::Cut(_) => {
                let scores = room(scores, tokens * n_ff);
                scores.copy_from_slice(gate);
                cpu.activate(form, scores, None);
                scores.iter_mut().for_each(|score| *score = score.abs());
                &*scores
            }
        };
        let hidden = match ffn.gate {
            Some(_) => {
                cpu.activate(form, gate, Some(up));
                gate
            }
            None => {
                cpu.activate(form, up, None);
                up
            }
        };
        let (whole, part) = (room(whole, tokens * d), room(part, tokens * d));
        down(ffn, cpu, hidden, tokens, whole);
        let mass = room(mass, n_ff);
        for mask in [&mut *active, &mut *predicted] {
            mask.resize(n_ff.div_ceil(32), 0);
        }
        for (hidden, scores) in hidden.chunks_exact_mut(n_ff).zip(scores.chunks_exact(n_ff)) {
            for ((mass, h), norm) in mass.iter_mut().zip(&*hidden).zip(norms) {
                *mass = h.abs() * norm;
            }
            if sparse {
                fill_mask(active, n_ff, |i| hidden[i] != 0.0);
            } else {
                heaviest(mass, MASS_OF_ACTIVE, active);
            }
            match self.guess {
                Guess::Predictor(predictor) => {
                    fill_mask(predicted, n_ff, |i| scores[i] >= predictor.threshold);
                    let count = ones(active).count();
                    ones(active).for_each(|i| self.sample.push(scores[i], 1.0 / count as f32));
                }
                Guess::Cut(cut) => {
                    fill_mask(predicted, n_ff, |i| scores[i] > cut);
                    scores.iter().for_each(|score| self.sample.push(*score, 1.0));
                }
            }
            // One that every token passes through may be of another width.
            if self.mixture.is_none_or(|(mixture, _)| at < mixture.experts.len()) {
                self.tally.add(active, predicted, Some(mass));
            }
            for (i, h) in hidden.iter_mut().enumerate() {
                if !bit(predicted, i) {
                    *h = 0.0;
                }
            }
        }
        down(ffn, cpu, hidden, tokens, part);
        for (whole, part) in whole.chunks_exact(d).zip(part.chunks_exact(d)) {
            self.error.add(output_error(whole, part));
        }
        Ok(())
    }

    fn figures(&self, layer: usize) -> LayerRecall {
        LayerRecall { layer, figures: self.tally.figures(), output_error: self.error.get().unwrap_or(0.0) }
    }
}

/// The FFN's output.
fn down(ffn: &FfnWeights, cpu: &Cpu, hidden: &[f32], tokens: usize, out: &mut [f32]) {
    match &ffn.down {
        Down::Outputs(down) => {
            cpu.matmul(&mut [MatmulJob { weight: &down.weight, bias: down.bias.as_deref(), out }], hidden, tokens);
        }
        Down::Neurons(down) => {
            cpu.matmul_neurons(&down.weight, down.bias.as_deref(), hidden, tokens, out);
        }
    }
}
