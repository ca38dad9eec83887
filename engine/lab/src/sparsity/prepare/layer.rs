//! Prepares one layer.

use std::{ops::ControlFlow, path::Path, time::Instant};

use super::{LayerReport, PredictorChoice, PrepareOptions, reading::Reading};
use crate::sparsity::{
    predictor::{
        ActivationThreshold, DataSplit, FfnCost, LOW_BIT_TYPES, LayerData, MoeInputs, PredictorReport, Rows,
        TrainOptions, Trained, activation_threshold, assess, gate_scales, low_bit, moe_activation_threshold,
        select_predictor, train, with_threshold,
    },
    profile::InputRecorder,
    sidecar::{PreparedBundles, PreparedDown, PreparedExperts, PreparedLayer, PreparedPredictor, PreparedThreshold},
};
use thermocline_base::{error::Result, telemetry::neurons::LayerNeurons};
use thermocline_cpu::Cpu;
use thermocline_formats::quant::TensorType;
use thermocline_model::{
    Down, ExpertWeights, Ffn, FfnWeights, LayerWeights, Model, Predictor, PredictorInput, PredictorKind, neuron_major,
};

/// Fraction of firings for [`LayerReport::skew`].
const SKEW_OF: f64 = 0.8;
/// Rank of the smallest predictor.
const LEAST_RANK: usize = 32;

/// Returns the number of test tokens among `recorded` tokens.
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
struct PredictorCandidate {
    /// New predictor; `None` for the model file's own predictor.
    kind: Option<PredictorKind>,
    input: PredictorInput,
    threshold: f32,
    report: PredictorReport,
}

/// A layer in preparation.
struct MadeLayer {
    prepared: PreparedLayer,
    report: LayerReport,
}

impl MadeLayer {
    fn set_threshold(&mut self, made: ActivationThreshold, why: &str) {
        let density = (1.0 - made.sparsity) as f32;
        self.prepared.activation_threshold = Some(PreparedThreshold { value: made.value, density });
        (self.report.activation_threshold, self.report.why) = (Some(made), why.to_owned());
    }
}

impl LayerWork<'_> {
    /// Prepares the layer. Trained predictors have at most `parameters` weights. Calls `progress`
    /// with the fraction done; an error stops the work.
    pub fn run(
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
        let report = LayerReport {
            layer: self.n,
            neurons: profile.counts[self.n].len(),
            density: profile.density(self.n),
            skew: profile.skew(self.n, SKEW_OF),
            silent: profile.silent(self.n),
            ..LayerReport::default()
        };
        let mut made = MadeLayer { prepared: PreparedLayer { frequency, ..PreparedLayer::default() }, report };
        let weights = &self.model.weights.layers[self.n];
        match &weights.ffn {
            Ffn::None => made.report.why = "the layer has no FFN".to_owned(),
            Ffn::Experts(moe) => self.prepare_experts(moe, &mut made, progress)?,
            Ffn::Dense(ffn) => {
                let normed = self.inputs(PredictorInput::Normed)?;
                let residual = self.inputs(PredictorInput::Residual)?;
                let normed = Rows::F16(normed.as_deref().unwrap_or_default());
                let residual = residual.as_deref().map(Rows::F16);
                let data = LayerData::new(ffn, self.model.config.activation, normed, residual)?;
                if self.model.config.activation.is_sparse() {
                    let candidates = self.candidates(weights, ffn, &data, parameters, &mut |at| progress(0.9 * at))?;
                    self.choose_predictor(ffn, candidates, &mut made);
                } else {
                    self.set_activation_threshold(ffn, &data, &mut made)?;
                }
                progress(0.9)?;
                self.transpose_down(ffn, &mut made)?;
                self.bundle(ffn, &mut made);
            }
        }
        made.report.bytes = made.prepared.bytes();
        made.report.seconds = started.elapsed().as_secs_f64();
        progress(1.0)?;
        Ok((made.prepared, made.report))
    }

    /// Prepares an MoE layer: firing frequencies of the experts' neurons, one activation threshold,
    /// and neuron-major down projections.
    fn prepare_experts(
        &self,
        moe: &ExpertWeights,
        made: &mut MadeLayer,
        progress: &mut dyn FnMut(f64) -> Result<()>,
    ) -> Result<()> {
        let activation = self.model.config.activation;
        made.report.why = "an MoE layer: its experts get no predictors, so the gates decide".to_owned();
        if let (false, Some(experts)) = (activation.is_sparse(), &self.model.config.experts) {
            let normed = self.inputs(PredictorInput::Normed)?;
            let residual = self.inputs(PredictorInput::Residual)?;
            let normed = Rows::F16(normed.as_deref().unwrap_or_default());
            let inputs = MoeInputs { normed, residual: residual.as_deref().map(Rows::F16) };
            let (norm_eps, goal) = (self.model.config.norm_eps, self.options.threshold_goal);
            let threshold = moe_activation_threshold(self.cpu, moe, experts, norm_eps, activation, inputs, goal)?;
            made.set_threshold(
                threshold,
                "an MoE layer without zero activations: it gets no predictors, but neurons of the chosen experts with \
                 small gates may be skipped",
            );
        }
        progress(0.3)?;
        let LayerNeurons::Experts { experts, width, .. } = moe.neurons() else { return Ok(()) };
        let mut frequency = self.reading.profile.frequency(self.n);
        let shared = frequency.split_off(experts * width);
        let mut parts = PreparedExperts { width, frequency, shared, ..PreparedExperts::default() };
        let count = moe.ffns().count();
        for (at, down) in moe.downs().enumerate() {
            let Down::Outputs(down) = down else { break };
            if !self.options.down {
                break;
            }
            let (weight, error) = neuron_major(self.cpu.pool(), &down.weight)?;
            made.report.down_type.get_or_insert_with(|| weight.ty().to_string());
            parts.downs.push(weight);
            parts.down_error = parts.down_error.max(error as f32);
            progress(0.3 + 0.7 * (at + 1) as f64 / count as f64)?;
        }
        made.report.down_error = made.report.down_type.as_ref().map(|_| parts.down_error);
        made.prepared.experts = Some(parts);
        Ok(())
    }

    fn inputs(&self, input: PredictorInput) -> Result<Option<Vec<u8>>> {
        InputRecorder::read(self.folder, self.n, input, self.reading.recorded, self.model.config.d_model)
    }

    fn choose_predictor(&self, ffn: &FfnWeights, mut candidates: Vec<PredictorCandidate>, made: &mut MadeLayer) {
        made.report.candidates = candidates.iter().map(|candidate| candidate.report.clone()).collect();
        let taken = match self.options.predictors {
            PredictorChoice::Auto => {
                let choice = select_predictor(&FfnCost::new(ffn), made.report.density, &made.report.candidates);
                made.report.why = choice.why;
                choice.candidate
            }
            PredictorChoice::None => {
                made.report.why = "no predictor was requested".to_owned();
                None
            }
            PredictorChoice::Trained | PredictorChoice::Rows => {
                made.report.why = "the requested kind of predictor".to_owned();
                (!candidates.is_empty()).then_some(0)
            }
        };
        let Some(taken) = taken else { return };
        let PredictorCandidate { kind, input, threshold, report } = candidates.swap_remove(taken);
        // The bias of rows belongs to the model, and sidecars do not store it.
        let kind = kind.map(|kind| match kind {
            PredictorKind::Rows { rows, .. } => PredictorKind::Rows { rows, bias: None },
            other => other,
        });
        made.prepared.predictor = Some(PreparedPredictor { kind, input, threshold, quality: report.quality() });
        (made.report.predictor, made.report.threshold) = (Some(report), Some(threshold));
    }

    fn candidates(
        &self,
        weights: &LayerWeights,
        ffn: &FfnWeights,
        data: &LayerData<'_>,
        parameters: u64,
        progress: &mut dyn FnMut(f64) -> Result<()>,
    ) -> Result<Vec<PredictorCandidate>> {
        let (wanted, target) = (self.options.predictors, self.options.target);
        let mut candidates = Vec::new();
        let mut made = |Trained { predictor, report }: Trained| {
            let Predictor { kind, input, threshold, .. } = predictor;
            candidates.push(PredictorCandidate { kind: Some(kind), input, threshold, report });
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
            // `train` returns `Cancelled` after a break, and every other error unchanged.
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
                candidates.push(PredictorCandidate { kind: None, input: own.input, threshold, report });
            }
        }
        Ok(candidates)
    }

    /// Returns the candidate types of a trained predictor. If the model has floats, it is F16, so
    /// that every processor computes the same scores. Otherwise it is 8 or 4 bits, whichever costs
    /// less per token.
    fn predictor_types(&self, ffn: &FfnWeights) -> Vec<TensorType> {
        let firing = ffn.gate.as_ref().unwrap_or(&ffn.up).weight.ty();
        let whole = TensorType::Q8_0.row_bytes(self.model.config.d_model).is_some();
        match firing.block_len() == 1 || !whole {
            true => vec![TensorType::F16],
            false => vec![TensorType::Q8_0, TensorType::Q4_0],
        }
    }

    fn set_activation_threshold(&self, ffn: &FfnWeights, data: &LayerData<'_>, made: &mut MadeLayer) -> Result<()> {
        if ffn.gate.is_none() {
            made.report.why = "the FFN has no gate for a threshold, and its activations are never zero".to_owned();
            return Ok(());
        }
        let scales = gate_scales(self.cpu, data)?;
        let scaled = FfnWeights { gate_scales: Some(scales.as_slice().into()), ..ffn.clone() };
        let threshold = activation_threshold(self.cpu, &data.with_ffn(&scaled), self.options.threshold_goal)?;
        made.prepared.gate_scales = Some(scales);
        made.set_threshold(threshold, "activations are never zero, but neurons with small gates may be skipped");
        Ok(())
    }

    /// Transposes the down projection, unless the file stores it neuron-major.
    fn transpose_down(&self, ffn: &FfnWeights, made: &mut MadeLayer) -> Result<()> {
        let Down::Outputs(down) = &ffn.down else { return Ok(()) };
        if self.options.down {
            let (weight, error) = neuron_major(self.cpu.pool(), &down.weight)?;
            (made.report.down_type, made.report.down_error) = (Some(weight.ty().to_string()), Some(error as f32));
            made.prepared.down = Some(PreparedDown { weight, error: error as f32 });
        }
        Ok(())
    }

    /// Chooses the rows that are stored beside those of the down projection, if bundles were
    /// requested.
    fn bundle(&self, ffn: &FfnWeights, made: &mut MadeLayer) {
        if !self.options.bundles {
            return;
        }
        let MadeLayer { prepared, report } = made;
        let of_file = || match &ffn.down {
            Down::Neurons(down) => Some(PreparedDown { weight: down.weight.clone(), error: 0.0 }),
            Down::Outputs(_) => None,
        };
        let Some(down) = prepared.down.take().or_else(of_file) else { return };
        prepared.bundles = PreparedBundles::of(ffn, &down.weight, prepared.predictor.is_some());
        // Without bundles, a down projection that the file stores neuron-major stays there.
        prepared.down = Some(down).filter(|_| prepared.bundles.is_some() || report.down_type.is_some());
        report.bundle_bytes = prepared.bundle_bytes();
    }
}
