//! Preparing one layer.

use std::{ops::ControlFlow, path::Path, time::Instant};

use super::{LayerReport, PredictorChoice, PrepareOptions, reading::Reading};
use crate::{
    cpu::Cpu,
    error::Result,
    model::{
        Down, ExpertWeights, Ffn, FfnWeights, LayerWeights, Model, Predictor, PredictorInput, PredictorKind,
        neuron_major,
    },
    quant::TensorType,
    sparsity::{
        predictor::{
            DataSplit, FfnCost, LOW_BIT_TYPES, LayerData, MoeInputs, PredictorReport, Rows, TrainOptions, Trained,
            activation_threshold, assess, low_bit, moe_activation_threshold, select_predictor, train, with_threshold,
        },
        profile::InputRecorder,
        sidecar::{PreparedDown, PreparedExperts, PreparedLayer, PreparedPredictor, PreparedThreshold},
    },
    telemetry::neurons::LayerNeurons,
};

/// Fraction of the firings that [`LayerReport::skew`] is about.
const SKEW_OF: f64 = 0.8;
/// Rank of the smallest predictor.
const LEAST_RANK: usize = 32;

/// Number of test tokens among `recorded` tokens.
pub(super) fn held_out(recorded: u64) -> u64 {
    usize::try_from(recorded).map_or(0, |recorded| DataSplit::new(recorded).test.len() as u64)
}

/// Inputs of preparing a layer.
pub(super) struct LayerWork<'a> {
    pub model: &'a Model,
    pub cpu: &'a Cpu,
    pub options: &'a PrepareOptions,
    pub reading: &'a Reading,
    /// Folder of the recorded inputs.
    pub folder: &'a Path,
    /// Index of the layer.
    pub n: usize,
}

/// A candidate predictor.
struct Candidate {
    /// `None` for the model file's own.
    kind: Option<PredictorKind>,
    input: PredictorInput,
    threshold: f32,
    report: PredictorReport,
}

impl LayerWork<'_> {
    /// Prepares the layer; trained predictors have at most `parameters` weights. `progress` is called with the fraction done and may
    /// stop the work.
    pub(super) fn run(
        &self,
        parameters: u64,
        progress: &mut dyn FnMut(f64) -> Result<()>,
    ) -> Result<(PreparedLayer, LayerReport)> {
        progress(0.0)?;
        let started = Instant::now();
        let profile = &self.reading.profile;
        let frequency = match &self.model.weights.layers[self.n].ffn {
            Ffn::Dense(_) => profile.frequency(self.n),
            Ffn::Experts(_) => profile.experts(self.n),
            Ffn::None => Vec::new(),
        };
        let frequency = Some(frequency).filter(|frequency| !frequency.is_empty());
        let mut prepared = PreparedLayer { frequency, ..PreparedLayer::default() };
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
            activation_threshold: None,
            down_type: None,
            down_error: None,
            bytes: 0,
            seconds: 0.0,
        };
        let weights = &self.model.weights.layers[self.n];
        match &weights.ffn {
            Ffn::None => report.why = "no FFN".to_owned(),
            Ffn::Experts(moe) => self.prepare_experts(moe, &mut prepared, &mut report, progress)?,
            Ffn::Dense(ffn) => {
                let normed = self.inputs(PredictorInput::Normed)?;
                let residual = self.inputs(PredictorInput::Residual)?;
                let normed = Rows::F16(normed.as_deref().unwrap_or_default());
                let residual = residual.as_deref().map(Rows::F16);
                let data = LayerData::new(ffn, self.model.config.activation, normed, residual)?;
                if self.model.config.activation.is_sparse() {
                    let candidates = self.candidates(weights, ffn, &data, parameters, &mut |at| progress(0.9 * at))?;
                    self.choose_predictor(ffn, candidates, &mut prepared, &mut report);
                } else {
                    self.set_activation_threshold(ffn, &data, &mut prepared, &mut report)?;
                }
                progress(0.9)?;
                self.transpose_down(ffn, &mut prepared, &mut report)?;
            }
        }
        report.bytes = prepared.bytes();
        report.seconds = started.elapsed().as_secs_f64();
        progress(1.0)?;
        Ok((prepared, report))
    }

    /// Prepares an MoE layer: firing frequencies of the experts' neurons, one activation threshold, and neuron-major down
    /// projections.
    fn prepare_experts(
        &self,
        moe: &ExpertWeights,
        prepared: &mut PreparedLayer,
        report: &mut LayerReport,
        progress: &mut dyn FnMut(f64) -> Result<()>,
    ) -> Result<()> {
        let activation = self.model.config.activation;
        report.why = "a mixture of experts: no predictors are made for its experts' neurons, gates decide".to_owned();
        if let (false, Some(experts)) = (activation.is_sparse(), &self.model.config.experts) {
            let normed = self.inputs(PredictorInput::Normed)?;
            let residual = self.inputs(PredictorInput::Residual)?;
            let normed = Rows::F16(normed.as_deref().unwrap_or_default());
            let inputs = MoeInputs { normed, residual: residual.as_deref().map(Rows::F16) };
            let (norm_eps, goal) = (self.model.config.norm_eps, self.options.threshold_goal);
            let made = moe_activation_threshold(self.cpu, moe, experts, norm_eps, activation, inputs, goal)?;
            report.why =
                "a mixture of experts whose activations are never zero: neurons of the chosen experts with small gates may be skipped, no predictors are made"
                    .to_owned();
            prepared.activation_threshold =
                Some(PreparedThreshold { value: made.value, density: (1.0 - made.sparsity) as f32 });
            report.activation_threshold = Some(made);
        }
        progress(0.3)?;
        let LayerNeurons::Experts { experts, width, .. } = moe.neurons() else { return Ok(()) };
        let mut frequency = self.reading.profile.frequency(self.n);
        let shared = frequency.split_off(experts * width);
        let mut made = PreparedExperts { width, frequency, shared, ..PreparedExperts::default() };
        let count = moe.ffns().count();
        for (at, down) in moe.downs().enumerate() {
            let Down::Outputs(down) = down else { break };
            if !self.options.down {
                break;
            }
            let (weight, error) = neuron_major(self.cpu.pool(), &down.weight)?;
            report.down_type.get_or_insert_with(|| weight.ty().to_string());
            made.downs.push(weight);
            made.down_error = made.down_error.max(error as f32);
            progress(0.3 + 0.7 * (at + 1) as f64 / count as f64)?;
        }
        report.down_error = report.down_type.as_ref().map(|_| made.down_error);
        prepared.experts = Some(made);
        Ok(())
    }

    fn inputs(&self, input: PredictorInput) -> Result<Option<Vec<u8>>> {
        InputRecorder::read(self.folder, self.n, input, self.reading.recorded, self.model.config.d_model)
    }

    fn choose_predictor(
        &self,
        ffn: &FfnWeights,
        mut candidates: Vec<Candidate>,
        prepared: &mut PreparedLayer,
        report: &mut LayerReport,
    ) {
        report.candidates = candidates.iter().map(|candidate| candidate.report.clone()).collect();
        let taken = match self.options.predictors {
            PredictorChoice::Auto => {
                let choice = select_predictor(&FfnCost::new(ffn), report.density, &report.candidates);
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
        let Some(taken) = taken else { return };
        let Candidate { kind, input, threshold, report: made } = candidates.swap_remove(taken);
        // The bias of rows is the model's own, which sidecars do not store.
        let kind = kind.map(|kind| match kind {
            PredictorKind::Rows { rows, .. } => PredictorKind::Rows { rows, bias: None },
            other => other,
        });
        prepared.predictor = Some(PreparedPredictor { kind, input, threshold, quality: made.quality() });
        (report.predictor, report.threshold) = (Some(made), Some(threshold));
    }

    fn candidates(
        &self,
        weights: &LayerWeights,
        ffn: &FfnWeights,
        data: &LayerData<'_>,
        parameters: u64,
        progress: &mut dyn FnMut(f64) -> Result<()>,
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
        progress(0.1)?;
        let room = parameters / (data.d() + data.n_ff()) as u64 >= LEAST_RANK as u64;
        if matches!(wanted, PredictorChoice::Auto | PredictorChoice::Trained) && room && data.n_ff() >= LEAST_RANK {
            let options = TrainOptions {
                target,
                parameters,
                types: self.predictor_types(ffn),
                seed: self.options.seed,
                ..TrainOptions::default()
            };
            // `train` reports a break as cancelled, and every other error as its own.
            let trained = train(self.cpu, data, &options, &mut |training| match progress(0.1 + 0.9 * training.done) {
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

    /// Candidate types of a trained predictor: floats where the model has floats, so that every processor computes the same scores;
    /// else 8 bits or 4, whichever costs less per token.
    fn predictor_types(&self, ffn: &FfnWeights) -> Vec<TensorType> {
        let firing = ffn.gate.as_ref().unwrap_or(&ffn.up).weight.ty();
        let whole = TensorType::Q8_0.row_bytes(self.model.config.d_model).is_some();
        match firing.block_len() == 1 || !whole {
            true => vec![TensorType::F16],
            false => vec![TensorType::Q8_0, TensorType::Q4_0],
        }
    }

    fn set_activation_threshold(
        &self,
        ffn: &FfnWeights,
        data: &LayerData<'_>,
        prepared: &mut PreparedLayer,
        report: &mut LayerReport,
    ) -> Result<()> {
        if ffn.gate.is_none() {
            report.why = "no gate for a threshold, and activations are never zero".to_owned();
            return Ok(());
        }
        let made = activation_threshold(self.cpu, data, self.options.threshold_goal)?;
        report.why = "activations are never zero: neurons of small gates may be skipped".to_owned();
        prepared.activation_threshold =
            Some(PreparedThreshold { value: made.value, density: (1.0 - made.sparsity) as f32 });
        report.activation_threshold = Some(made);
        Ok(())
    }

    /// Transposes the down projection, unless the file has it in neuron-major order.
    fn transpose_down(&self, ffn: &FfnWeights, prepared: &mut PreparedLayer, report: &mut LayerReport) -> Result<()> {
        let Down::Outputs(down) = &ffn.down else { return Ok(()) };
        if self.options.down {
            let (weight, error) = neuron_major(self.cpu.pool(), &down.weight)?;
            (report.down_type, report.down_error) = (Some(weight.ty().to_string()), Some(error as f32));
            prepared.down = Some(PreparedDown { weight, error: error as f32 });
        }
        Ok(())
    }
}
