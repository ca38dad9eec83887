//! The FFN of a layer, dense or MoE, and its report to observers.

use std::time::Instant;

use super::{
    ChosenExperts, CpuFfn, FfnBlock, FfnTask, FfnWork, HiddenNorm, PredictionSource, TokenInputs, experts::MoeFfn,
};
use crate::runtime::{LayerFiring, LayerPreference, Probe, Sparsity, scratch::held_bytes};
use thermocline_base::{error::Result, telemetry::neurons::Strength};
use thermocline_cpu::Cpu;
use thermocline_model::{
    Activation, FfnKind, FfnWeights, ModelConfig, Norm, Predictor, PredictorInput, SkippedInputs, mask,
};

/// The FFN of one layer for one chunk: weights, inputs and mode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerTask<'a> {
    /// The model's configuration.
    pub config: &'a ModelConfig,
    /// Index of the layer, for observers.
    pub layer: usize,
    pub ffn: FfnKind<'a>,
    /// Norm of a dense FFN's hidden values.
    pub hidden_norm: Option<&'a Norm>,
    /// See [`LayerWeights::gate_deviations`](thermocline_model::LayerWeights::gate_deviations).
    pub gate_deviations: Option<f32>,
    pub predictor: Option<&'a Predictor>,
    pub activation_threshold: Option<f32>,
    pub sparsity: Sparsity,
    /// Small inputs that a dense FFN skips.
    pub skipped: Option<&'a SkippedInputs>,
    /// Shift added to the predictor's threshold.
    pub shift: f32,
    /// True to compare the predictor with the firing neurons and ignore its prediction.
    pub recall_check: bool,
    /// Inputs, `[tokens, d_model]`.
    pub x: &'a [f32],
    /// Input of the norm before the FFN, `[tokens, d_model]`.
    pub residual: &'a [f32],
    pub tokens: usize,
    /// True if each token is computed as if it were alone.
    pub separate: bool,
    /// True if the layer's experts were chosen before ([`MoeFfn::route`]).
    pub routed: bool,
    /// Preference of the layer's router for resident experts.
    pub preference: Option<LayerPreference<'a>>,
}

impl LayerTask<'_> {
    /// The task of a dense FFN.
    fn ffn_task<'a>(&'a self, ffn: &'a [FfnBlock<'a>; 1], observed: bool) -> FfnTask<'a> {
        let prediction = self.predictor.map(|predictor| {
            let x = match predictor.input {
                PredictorInput::Residual => self.residual,
                PredictorInput::Normed => self.x,
            };
            PredictionSource::Predictor { predictor, x, shift: self.shift }
        });
        FfnTask {
            sparsity: self.sparsity,
            separate: self.separate,
            prediction,
            recall_check: self.recall_check,
            activation_threshold: self.activation_threshold,
            observed,
            ..FfnTask::dense(ffn, self.config.activation, TokenInputs { x: self.x, tokens: self.tokens })
        }
    }

    /// The block of the whole dense FFN `ffn`.
    fn block<'a>(&'a self, ffn: &'a FfnWeights) -> FfnBlock<'a> {
        let eps = self.config.norm_eps;
        let hidden_norm = self.hidden_norm.map(|norm| HiddenNorm { weight: &norm.weight, eps: norm.eps(eps) });
        FfnBlock { gate_deviations: self.gate_deviations, hidden_norm, skipped: self.skipped, ..FfnBlock::whole(ffn) }
    }
}

/// Computes FFNs of layers, dense or MoE. The buffers grow to the size of the largest chunk.
#[derive(Debug, Default)]
pub(crate) struct LayerFfn {
    ffn: CpuFfn,
    /// The router may run before [`LayerFfn::run`].
    pub(super) moe: MoeFfn,
    /// `[tokens, words(n_ff)]`
    fired: Vec<u32>,
}

impl LayerFfn {
    /// Has idle threads prefetch the weights that `task` reads first.
    pub fn expect(&self, cpu: &Cpu, task: &LayerTask<'_>) {
        match task.ffn {
            FfnKind::Dense(ffn) => cpu.prefetch(&task.ffn_task(&[task.block(ffn)], false).first_read()),
            FfnKind::Experts(experts) if task.routed => cpu.prefetch(&self.moe.first_read(experts)),
            // The experts are not known before the router has chosen them.
            FfnKind::Experts(_) => cpu.prefetch(&[]),
        }
    }

    /// `out = ffn(x)`, both `[tokens, d_model]`.
    pub fn run(&mut self, cpu: &Cpu, task: &LayerTask<'_>, out: &mut [f32], probe: &mut dyn Probe) -> Result<()> {
        let weights = match task.ffn {
            FfnKind::Dense(weights) => weights,
            FfnKind::Experts(weights) => return self.moe.run(cpu, task, weights, &mut self.ffn, out, probe),
        };
        let observed = probe.wants_firing();
        let started = (observed && probe.wants_times()).then(Instant::now);
        let blocks = [task.block(weights)];
        let part = task.ffn_task(&blocks, observed);
        let shows = probe.wants_ffn_hidden();
        let mut before = |gate: &[f32], up: &[f32]| probe.ffn_hidden(task.layer, task.tokens, gate, up);
        let work = self.ffn.run(cpu, &part, out, if shows { Some(&mut before) } else { None })?;
        add_bias(weights, 1.0, out);
        if observed {
            self.report(task, weights.up.weight.rows(), work, started, probe);
        }
        Ok(())
    }

    /// `out = ffn(x)` of a dense FFN beside a layer's experts, both `[tokens, d_model]`.
    pub fn dense(
        &mut self,
        cpu: &Cpu,
        ffn: &FfnWeights,
        activation: Activation,
        inputs: TokenInputs<'_>,
        out: &mut [f32],
    ) -> Result<()> {
        self.ffn.partial(cpu, &FfnTask::dense(&[FfnBlock::whole(ffn)], activation, inputs), out)?;
        add_bias(ffn, 1.0, out);
        Ok(())
    }

    /// Computes the weighted sum of an MoE layer's experts that were chosen elsewhere
    /// ([`MoeFfn::run_chosen`]).
    pub fn experts(
        &mut self,
        cpu: &Cpu,
        task: &LayerTask<'_>,
        chosen: ChosenExperts<'_>,
        out: &mut [f32],
        fired: Option<&mut [u32]>,
    ) -> Result<FfnWork> {
        self.moe.run_chosen(cpu, task, chosen, &mut self.ffn, out, fired)
    }

    /// Hidden values of all neurons of the last dense FFN, `[tokens, n_ff]`.
    pub fn hidden(&self) -> &[f32] {
        match self.ffn.strength(0) {
            Strength::All(values) | Strength::Listed { values, .. } => values,
        }
    }

    fn report(
        &mut self,
        task: &LayerTask<'_>,
        n_ff: usize,
        work: FfnWork,
        started: Option<Instant>,
        probe: &mut dyn Probe,
    ) {
        let reporting = started.map(|started| (Instant::now(), started));
        self.fired.clear();
        self.fired.resize(task.tokens * mask::words(n_ff), 0);
        self.ffn.fired(0, &mut self.fired);
        let strength = probe.wants_strength().then(|| self.ffn.strength(0));
        probe.firing(&LayerFiring {
            layer: task.layer,
            tokens: task.tokens,
            fired: &self.fired,
            predicted: self.ffn.predicted(),
            complete: task.recall_check || self.ffn.predicted().is_none(),
            strength,
            cpu_bytes: work.bytes(),
            cpu_scattered: work.scattered,
            cpu_ns: reporting.map_or(0, |(now, started)| now.duration_since(started).as_nanos() as u64),
            reporting: reporting.map(|(now, _)| now),
            ..LayerFiring::default()
        });
    }

    /// Bytes of the buffers.
    pub fn bytes(&self) -> u64 {
        self.ffn.bytes() + self.moe.bytes() + held_bytes([&self.fired])
    }
}

/// Adds the bias of the down projection, times `factor`, to every token's row of `out`.
pub(crate) fn add_bias(ffn: &FfnWeights, factor: f32, out: &mut [f32]) {
    if let Some(bias) = &ffn.down.linear().bias {
        for out in out.chunks_exact_mut(bias.len().max(1)) {
            out.iter_mut().zip(bias).for_each(|(out, bias)| *out += factor * bias);
        }
    }
}
