//! What one layer gets.

use std::{ops::ControlFlow, path::Path, time::Instant};

use super::{LayerReport, PredictorChoice, PrepareOptions, reading::Reading};
use crate::{
    cpu::Cpu,
    error::Result,
    format::TensorType,
    model::{
        Down, ExpertWeights, Ffn, FfnWeights, LayerWeights, Model, Predictor, PredictorInput, PredictorKind,
        neuron_major,
    },
    sparsity::{
        predictor::{
            FfnCost, LOW_BIT_TYPES, LayerData, PredictorReport, Rows, Split, TrainOptions, Trained, assess, choose,
            cut, cut_experts, low_bit, train, with_threshold,
        },
        profile::InputRecorder,
        sidecar::{PreparedCut, PreparedDown, PreparedExperts, PreparedLayer, PreparedPredictor},
    },
    telemetry::neurons::LayerNeurons,
};

/// Share of the firings of which [`LayerReport::skew`] speaks.
const SKEW_OF: f64 = 0.8;
/// Hidden size of the smallest predictor.
const LEAST_RANK: usize = 32;

/// Tokens of `recorded` that predictors are measured on.
pub(super) fn held_out(recorded: u64) -> u64 {
    usize::try_from(recorded).map_or(0, |recorded| Split::of(recorded).test.len() as u64)
}

/// Everything the work on a layer needs.
pub(super) struct Work<'a> {
    pub model: &'a Model,
    pub cpu: &'a Cpu,
    pub options: &'a PrepareOptions,
    pub reading: &'a Reading,
    /// Where the recorded inputs are.
    pub folder: &'a Path,
    /// Which layer.
    pub n: usize,
}

/// A predictor that could be taken.
struct Candidate {
    /// `None`: the model's own.
    kind: Option<PredictorKind>,
    input: PredictorInput,
    threshold: f32,
    report: PredictorReport,
}

impl Work<'_> {
    /// Does it; trained predictors have at most `parameters` weights. `tell` gets the share that is done, and may stop it.
    pub(super) fn run(
        &self,
        parameters: u64,
        tell: &mut dyn FnMut(f64) -> Result<()>,
    ) -> Result<(PreparedLayer, LayerReport)> {
        tell(0.0)?;
        let started = Instant::now();
        let profile = &self.reading.profile;
        let frequency = match &self.model.weights.layers[self.n].ffn {
            Ffn::Dense(_) => profile.frequency(self.n),
            Ffn::Experts(_) => profile.experts(self.n),
        };
        let mut prepared = PreparedLayer { frequency: Some(frequency), ..PreparedLayer::default() };
        let mut report = LayerReport {
            layer: self.n,
            neurons: profile.counts[self.n].len(),
            density: profile.density(self.n),
            skew: profile.skew(self.n, SKEW_OF),
            silent: profile.silent(self.n),
            predictor: None,
            threshold: None,
            candidates: Vec::new(),
            why: String::new(),
            cut: None,
            down_type: None,
            down_error: None,
            bytes: 0,
            seconds: 0.0,
        };
        let weights = &self.model.weights.layers[self.n];
        match &weights.ffn {
            Ffn::Experts(mixture) => self.mixture(mixture, &mut prepared, &mut report, tell)?,
            Ffn::Dense(ffn) => {
                let normed = self.inputs(PredictorInput::Normed)?;
                let residual = self.inputs(PredictorInput::Residual)?;
                let normed = Rows::F16(normed.as_deref().unwrap_or_default());
                let residual = residual.as_deref().map(Rows::F16);
                let data = LayerData::new(ffn, self.model.config.activation, normed, residual)?;
                if self.model.config.activation.is_sparse() {
                    self.predictor(weights, ffn, &data, parameters, &mut prepared, &mut report, &mut |at| {
                        tell(0.9 * at)
                    })?;
                } else {
                    self.cut(ffn, &data, &mut prepared, &mut report)?;
                }
                tell(0.9)?;
                self.down(ffn, &mut prepared, &mut report)?;
            }
        }
        report.bytes = prepared.bytes();
        report.seconds = started.elapsed().as_secs_f64();
        tell(1.0)?;
        Ok((prepared, report))
    }

    /// A mixture's experts: how often their neurons fire, one cut for all, and their down projections.
    fn mixture(
        &self,
        mixture: &ExpertWeights,
        prepared: &mut PreparedLayer,
        report: &mut LayerReport,
        tell: &mut dyn FnMut(f64) -> Result<()>,
    ) -> Result<()> {
        let activation = self.model.config.activation;
        report.why = "a mixture: no predictors are made for its experts' neurons, gates decide".to_owned();
        if let (false, Some(experts)) = (activation.is_sparse(), &self.model.config.experts) {
            let normed = self.inputs(PredictorInput::Normed)?;
            let normed = Rows::F16(normed.as_deref().unwrap_or_default());
            let made = cut_experts(self.cpu, (mixture, experts), activation, normed, self.options.cut)?;
            report.why =
                "a mixture whose activations are never zero: neurons of the chosen experts with small gates may be skipped, no predictors are made"
                    .to_owned();
            prepared.cut = Some(PreparedCut { value: made.cut, density: (1.0 - made.sparsity) as f32 });
            report.cut = Some(made);
        }
        tell(0.3)?;
        let LayerNeurons::Mixture { experts, width, .. } = mixture.neurons() else { return Ok(()) };
        let mut frequency = self.reading.profile.frequency(self.n);
        let shared = frequency.split_off(experts * width);
        let mut made = PreparedExperts { width, frequency, shared, ..PreparedExperts::default() };
        let count = mixture.ffns().count();
        for (at, down) in mixture.downs().enumerate() {
            let Down::Outputs(down) = down else { break };
            if !self.options.down {
                break;
            }
            let (weight, error) = neuron_major(self.cpu.pool(), &down.weight)?;
            report.down_type.get_or_insert_with(|| weight.ty().to_string());
            made.downs.push(weight);
            made.down_error = made.down_error.max(error as f32);
            tell(0.3 + 0.7 * (at + 1) as f64 / count as f64)?;
        }
        report.down_error = report.down_type.as_ref().map(|_| made.down_error);
        prepared.experts = Some(made);
        Ok(())
    }

    fn inputs(&self, input: PredictorInput) -> Result<Option<Vec<u8>>> {
        InputRecorder::read(self.folder, self.n, input, self.reading.recorded, self.model.config.d_model)
    }

    fn predictor(
        &self,
        weights: &LayerWeights,
        ffn: &FfnWeights,
        data: &LayerData<'_>,
        parameters: u64,
        prepared: &mut PreparedLayer,
        report: &mut LayerReport,
        tell: &mut dyn FnMut(f64) -> Result<()>,
    ) -> Result<()> {
        let mut candidates = self.candidates(weights, ffn, data, parameters, tell)?;
        report.candidates = candidates.iter().map(|candidate| candidate.report.clone()).collect();
        let taken = match self.options.predictors {
            PredictorChoice::Auto => {
                let choice = choose(&FfnCost::of(ffn), report.density, &report.candidates);
                report.why = choice.why;
                choice.candidate
            }
            PredictorChoice::None => {
                report.why = "no predictor was asked for".to_owned();
                None
            }
            PredictorChoice::Trained | PredictorChoice::Rows => {
                report.why = "the kind that was asked for".to_owned();
                (!candidates.is_empty()).then_some(0)
            }
        };
        let Some(taken) = taken else { return Ok(()) };
        let Candidate { kind, input, threshold, report: made } = candidates.swap_remove(taken);
        // The bias of rows is the model's own, which a sidecar does not repeat.
        let kind = kind.map(|kind| match kind {
            PredictorKind::Rows { rows, .. } => PredictorKind::Rows { rows, bias: None },
            other => other,
        });
        prepared.predictor = Some(PreparedPredictor { kind, input, threshold, quality: made.quality() });
        (report.predictor, report.threshold) = (Some(made), Some(threshold));
        Ok(())
    }

    fn candidates(
        &self,
        weights: &LayerWeights,
        ffn: &FfnWeights,
        data: &LayerData<'_>,
        parameters: u64,
        tell: &mut dyn FnMut(f64) -> Result<()>,
    ) -> Result<Vec<Candidate>> {
        let (wanted, target) = (self.options.predictors, self.options.target);
        let mut candidates = Vec::new();
        let mut made = |Trained { predictor, report }: Trained| {
            let Predictor { kind, input, threshold, .. } = predictor;
            candidates.push(Candidate { kind: Some(kind), input, threshold, report });
        };
        if matches!(wanted, PredictorChoice::Auto | PredictorChoice::Rows)
            && let Some(ty) = LOW_BIT_TYPES.into_iter().find(|ty| ty.row_bytes(data.d()).is_some())
        {
            made(low_bit(self.cpu, data, ty, target)?);
        }
        tell(0.1)?;
        let room = parameters / (data.d() + data.n_ff()) as u64 >= LEAST_RANK as u64;
        if matches!(wanted, PredictorChoice::Auto | PredictorChoice::Trained) && room && data.n_ff() >= LEAST_RANK {
            let options = TrainOptions {
                target,
                parameters,
                types: self.predictor_types(ffn),
                seed: self.options.seed,
                ..TrainOptions::default()
            };
            // Anything but being told to stop is training's own error.
            let trained = train(self.cpu, data, &options, &mut |progress| match tell(0.1 + 0.9 * progress.done) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            });
            made(trained?);
        }
        if wanted == PredictorChoice::Auto
            && let Some(own) = &weights.predictor
        {
            let as_it_is = assess(self.cpu, data, own, target)?;
            let Trained { predictor, report } = with_threshold(self.cpu, data, own.clone(), target)?;
            for (threshold, report) in [(own.threshold, as_it_is), (predictor.threshold, report)] {
                candidates.push(Candidate { kind: None, input: own.input, threshold, report });
            }
        }
        Ok(candidates)
    }

    /// Floats where the model has floats, so that every processor computes the same scores; else 8 bits or 4, whichever costs
    /// a token less.
    fn predictor_types(&self, ffn: &FfnWeights) -> Vec<TensorType> {
        let firing = ffn.gate.as_ref().unwrap_or(&ffn.up).weight.ty();
        let whole = TensorType::Q8_0.row_bytes(self.model.config.d_model).is_some();
        match firing.block_len() == 1 || !whole {
            true => vec![TensorType::F16],
            false => vec![TensorType::Q8_0, TensorType::Q4_0],
        }
    }

    fn cut(
        &self,
        ffn: &FfnWeights,
        data: &LayerData<'_>,
        prepared: &mut PreparedLayer,
        report: &mut LayerReport,
    ) -> Result<()> {
        if ffn.gate.is_none() {
            report.why = "no gate to cut, and activations are never zero".to_owned();
            return Ok(());
        }
        let made = cut(self.cpu, data, self.options.cut)?;
        report.why = "activations are never zero: neurons of small gates may be skipped".to_owned();
        prepared.cut = Some(PreparedCut { value: made.cut, density: (1.0 - made.sparsity) as f32 });
        report.cut = Some(made);
        Ok(())
    }

    /// Files with a row per neuron need no other.
    fn down(&self, ffn: &FfnWeights, prepared: &mut PreparedLayer, report: &mut LayerReport) -> Result<()> {
        let Down::Outputs(down) = &ffn.down else { return Ok(()) };
        if self.options.down {
            let (weight, error) = neuron_major(self.cpu.pool(), &down.weight)?;
            (report.down_type, report.down_error) = (Some(weight.ty().to_string()), Some(error as f32));
            prepared.down = Some(PreparedDown { weight, error: error as f32 });
        }
        Ok(())
    }
}
