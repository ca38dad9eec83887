//! Activation thresholds for models whose activations are never exactly zero. A neuron whose gate
//! activation is small adds little. It is skipped if `|f(gate)|`, times the neuron's scale
//! ([`gate_scales`](super::gate_scales)), is at most the layer's threshold. The threshold is a
//! percentile of the gate activations on held-out text (CATS, Lee et al. 2024). It is chosen for a
//! fraction of neurons to skip, or for an error of the FFN's output.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{
    data::{BLOCK, DataSplit, LayerData, Rows},
    metrics::{Mean, down_norms, output_error},
};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::Cpu;
use thermocline_model::{Activation, ExpertWeights, Experts, FfnWeights, PredictorInput};
use thermocline_run::runtime::{RouterInputs, Routing};

/// Goal of an activation threshold.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThresholdGoal {
    /// Skip this fraction of the neurons, below 1.
    Sparsity(f64),
    /// Skip as many neurons as this mean relative error of the FFN's output, `|y - y'| / |y|`,
    /// allows.
    OutputError(f64),
}

/// A layer's activation threshold and its effect on held-out text.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ActivationThreshold {
    /// Threshold: neurons with `|f(gate)|`, times their scale, of at most this value are skipped.
    #[serde(rename = "cut")]
    pub value: f32,
    /// Fraction of the neurons that are skipped.
    pub sparsity: f64,
    /// Kept fraction of the mass `|a_i| |d_i|`, as the mean over tokens.
    pub mass: f64,
    /// Relative error of the FFN's output, `|y - y'| / |y|`, as the mean over tokens.
    pub output_error: f64,
    /// Number of tokens evaluated.
    pub tokens: u64,
}

/// Most tokens for choosing a threshold, and for evaluating it.
const MAX_TOKENS: usize = 512;
/// Bisection steps of the search for an output error.
const STEPS: usize = 10;

/// Finds the activation threshold of a gated layer, for the scales that its gates have.
///
/// # Errors
/// [`Error::Unsupported`] for a layer without a gate, [`Error::Invalid`] without tokens or for a
/// goal out of range.
pub fn activation_threshold(cpu: &Cpu, data: &LayerData<'_>, goal: ThresholdGoal) -> Result<ActivationThreshold> {
    search(cpu, data.split()?, goal, &mut |range| {
        let members = (0..range.len()).map(|t| (t, 1.0)).collect();
        let mut sample = LayerSample::new(range.len(), data.d());
        sample.add(cpu, data.ffn(), data, range, members)?;
        Ok(sample)
    })
}

/// Inputs of an MoE layer, `[tokens, d]`.
#[derive(Debug, Clone, Copy)]
pub struct MoeInputs<'a> {
    /// Inputs of the experts.
    pub normed: Rows<'a>,
    /// Residual stream, if the router reads it.
    pub residual: Option<Rows<'a>>,
}

/// Finds the activation threshold of an MoE layer. All experts share it. Each expert computes the
/// tokens that the router sends to it.
///
/// # Errors
/// As [`activation_threshold`].
pub fn moe_activation_threshold(
    cpu: &Cpu,
    moe: &ExpertWeights,
    experts: &Experts,
    norm_eps: f32,
    activation: Activation,
    inputs: MoeInputs<'_>,
    goal: ThresholdGoal,
) -> Result<ActivationThreshold> {
    let Some(first) = moe.experts.first() else {
        return Err(Error::invalid("MoE layer", "at least one expert", 0));
    };
    let all = LayerData::new(first, activation, inputs.normed, inputs.residual)?;
    let d = all.d();
    search(cpu, all.split()?, goal, &mut |range| {
        let (mut x, mut stream, mut routing, tokens) = (Vec::new(), Vec::new(), Routing::default(), range.len());
        if moe.router_norm.is_some() {
            all.copy(PredictorInput::Residual, range.clone(), &mut stream)?;
        }
        all.copy(PredictorInput::Normed, range, &mut x)?;
        routing.route(cpu, experts, norm_eps, moe, RouterInputs::new(&x, &stream, tokens))?;
        let mut sample = LayerSample::new(tokens, d);
        for (at, ffn) in moe.ffns().enumerate() {
            let is_routed = at < moe.experts.len();
            let mut members: Vec<(usize, f32)> = match is_routed {
                true => routing.members(at, tokens).collect(),
                false => routing.gates.iter().copied().take(tokens).enumerate().collect(),
            };
            let mut rows = Vec::with_capacity(members.len() * d);
            for (t, weight) in &mut members {
                let [input, output] = if is_routed { experts.router.factors(*weight) } else { [1.0, *weight] };
                rows.extend(x[*t * d..][..d].iter().map(|x| x * input));
                *weight = output;
            }
            let data = LayerData::new(ffn, activation, Rows::F32(&rows), None)?;
            sample.add(cpu, ffn, &data, 0..members.len(), members)?;
        }
        Ok(sample)
    })
}

/// Finds the threshold for `goal` on one part of the tokens and evaluates it on another. `sample`
/// computes the neurons for a range of tokens.
fn search<'a>(
    cpu: &Cpu,
    split: DataSplit,
    goal: ThresholdGoal,
    sample: &mut dyn FnMut(Range<usize>) -> Result<LayerSample<'a>>,
) -> Result<ActivationThreshold> {
    let (ThresholdGoal::Sparsity(wanted) | ThresholdGoal::OutputError(wanted)) = goal;
    if !(0.0..1.0).contains(&wanted) {
        return Err(Error::invalid("goal of an activation threshold", "a fraction from 0 to below 1", wanted));
    }
    let tokens = |range: Range<usize>| range.start..range.end.min(range.start + MAX_TOKENS);
    let mut set = sample(tokens(split.set))?;
    let chosen = match goal {
        ThresholdGoal::Sparsity(fraction) => set.percentile(fraction),
        ThresholdGoal::OutputError(error) => {
            // The error grows with the fraction of skipped neurons.
            let (mut low, mut high) = (0.0, 1.0);
            for _ in 0..STEPS {
                let middle = 0.5 * (low + high);
                let threshold = set.percentile(middle);
                if set.evaluate(cpu, threshold).output_error <= error { low = middle } else { high = middle }
            }
            set.percentile(low)
        }
    };
    Ok(sample(tokens(split.test))?.evaluate(cpu, chosen))
}

/// Neurons of a layer, computed for some tokens.
struct LayerSample<'a> {
    tokens: usize,
    d: usize,
    ffns: Vec<FfnSample<'a>>,
    /// Output of the layer without biases, `[tokens, d]`.
    output: Vec<f32>,
    /// All gate activations in ascending order, sorted on first use.
    sorted: Vec<f32>,
}

/// Neurons of one of the layer's FFNs, computed for the FFN's tokens.
struct FfnSample<'a> {
    ffn: &'a FfnWeights,
    /// Tokens and their router weights.
    members: Vec<(usize, f32)>,
    /// `|f(gate)|` times the neuron's scale, `[members, n_ff]`.
    gates: Vec<f32>,
    /// Hidden activations, `[members, n_ff]`.
    hidden: Vec<f32>,
    /// Norms of the down vectors, `[n_ff]`.
    norms: Vec<f32>,
}

impl<'a> LayerSample<'a> {
    fn new(tokens: usize, d: usize) -> Self {
        LayerSample { tokens, d, ffns: Vec::new(), output: vec![0.0; tokens * d], sorted: Vec::new() }
    }

    /// Computes `ffn` for a range of the tokens of `data`.
    fn add(
        &mut self,
        cpu: &Cpu,
        ffn: &'a FfnWeights,
        data: &LayerData<'_>,
        range: Range<usize>,
        members: Vec<(usize, f32)>,
    ) -> Result<()> {
        let Some(gate) = &ffn.gate else {
            return Err(Error::unsupported(
                "sparsity mode",
                "threshold for a layer without a gate",
                "layers with a gate",
            ));
        };
        let n_ff = data.n_ff();
        let mut part = FfnSample {
            ffn,
            members,
            gates: vec![0.0; range.len() * n_ff],
            hidden: Vec::with_capacity(range.len() * n_ff),
            norms: down_norms(ffn),
        };
        let (mut x, mut hidden, mut other) = (Vec::new(), Vec::new(), Vec::new());
        for start in range.clone().step_by(BLOCK) {
            let block = start..range.end.min(start + BLOCK);
            data.copy(PredictorInput::Normed, block.clone(), &mut x)?;
            data.hidden(cpu, &x, &mut hidden, &mut other);
            part.hidden.extend_from_slice(&hidden);
            let out = &mut part.gates[(start - range.start) * n_ff..][..block.len() * n_ff];
            cpu.matmul(&mut [gate.job(&mut *out)], &x, block.len());
            cpu.activate(data.ffn().form(data.activation()), out, None);
        }
        part.gates.iter_mut().for_each(|gate| *gate = gate.abs());
        ffn.scale_gates(None, &mut part.gates);
        part.add_down(cpu, &part.hidden, self.d, &mut self.output);
        self.ffns.push(part);
        Ok(())
    }

    /// Returns the value that a `fraction` of the gate activations does not exceed.
    fn percentile(&mut self, fraction: f64) -> f32 {
        if self.sorted.is_empty() {
            self.sorted.extend(self.ffns.iter().flat_map(|part| &part.gates));
            self.sorted.sort_unstable_by(f32::total_cmp);
        }
        let below = (fraction * self.sorted.len() as f64) as usize;
        match below.min(self.sorted.len()) {
            0 => 0.0,
            n => self.sorted[n - 1],
        }
    }

    /// Measures the effect of `threshold` on these tokens.
    fn evaluate(&self, cpu: &Cpu, threshold: f32) -> ActivationThreshold {
        let (mut skipped, mut all) = (0u64, 0usize);
        let (mut kept_mass, mut mass) = (vec![0.0; self.tokens], vec![0.0; self.tokens]);
        let mut output = vec![0.0; self.output.len()];
        for ffn in &self.ffns {
            let mut kept = ffn.hidden.clone();
            for (kept, gate) in kept.iter_mut().zip(&ffn.gates) {
                if *gate <= threshold {
                    (*kept, skipped) = (0.0, skipped + 1);
                }
            }
            all += ffn.gates.len();
            ffn.add_mass(&ffn.hidden, &mut mass);
            ffn.add_mass(&kept, &mut kept_mass);
            ffn.add_down(cpu, &kept, self.d, &mut output);
        }
        let (mut masses, mut errors) = (Mean::default(), Mean::default());
        kept_mass.iter().zip(&mass).for_each(|(kept, whole)| masses.add((*whole > 0.0).then(|| kept / whole)));
        let d = self.d.max(1);
        for (y, approximation) in self.output.chunks_exact(d).zip(output.chunks_exact(d)) {
            errors.add(output_error(y, approximation));
        }
        ActivationThreshold {
            value: threshold,
            sparsity: skipped as f64 / all.max(1) as f64,
            mass: masses.get().unwrap_or(1.0),
            output_error: errors.get().unwrap_or(0.0),
            tokens: self.tokens as u64,
        }
    }
}

impl FfnSample<'_> {
    /// Adds the mass `|a_i| |d_i|` of hidden activations `[members, n_ff]` to `masses` `[tokens]`.
    fn add_mass(&self, hidden: &[f32], masses: &mut [f64]) {
        for (hidden, (t, weight)) in hidden.chunks_exact(self.norms.len().max(1)).zip(&self.members) {
            let mass: f64 = hidden.iter().zip(&self.norms).map(|(a, norm)| f64::from(a.abs() * norm)).sum();
            masses[*t] += f64::from(*weight) * mass;
        }
    }

    /// Adds the down projection of hidden activations `[members, n_ff]`, without its bias, to
    /// `outputs` `[tokens, d]`.
    fn add_down(&self, cpu: &Cpu, hidden: &[f32], d: usize, outputs: &mut [f32]) {
        let tokens = self.members.len();
        let mut out = vec![0.0; tokens * d];
        self.ffn.down.product(cpu, None, hidden, tokens, &mut out);
        for (out, (t, weight)) in out.chunks_exact(d.max(1)).zip(&self.members) {
            cpu.add_scaled(&mut outputs[t * d..][..d], out, *weight);
        }
    }
}
