//! Direct logit attribution: the part of a token's logit that each neuron adds itself, through its down projection, the final norm
//! and the head (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"). What it does through later layers is not
//! in it. Norms behind the neuron are taken as the linear maps they were for this token.
//!
//! With `x` the residual stream before the final norm and `r` its root mean square, the logit of token `t` is `u . x + bias` where
//! `u = w * head[t] / r`; neuron `n` adds `a_n (down_n . u)`.

use std::{ops::ControlFlow, sync::Arc};

use serde::Serialize;

use thermocline_base::{
    error::{Error, Result},
    telemetry::neurons::Strength,
};
use thermocline_cpu::{Cpu, CpuOptions, InputPrecision, MatmulJob};
use thermocline_formats::format::Matrix;
use thermocline_model::{Down, Ffn, FfnWeights, Model, NeuronIndex, Norm, NormKind, Register, Step};
use thermocline_run::runtime::{ExpertHidden, Forward, KvType, LayerFiring, Outputs, Probe, check_logits};

/// A neuron's own part of a logit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct NeuronEffect {
    /// The neuron.
    #[serde(flatten)]
    pub place: NeuronIndex,
    /// Its activation, before the router weight of its expert.
    pub activation: f32,
    /// Its part of the logit.
    pub logit: f32,
}

/// A token's logit in parts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Attribution {
    /// Id of the token.
    pub token: u32,
    /// Its logit after the context, before a soft cap: the sum of `layers` and `residual`.
    pub logit: f32,
    /// Its probability among all tokens.
    pub probability: f32,
    /// The neurons with the largest effects, by magnitude, descending.
    pub neurons: Vec<NeuronEffect>,
    /// Per layer the sum over all its neurons, `[layers]`.
    pub layers: Vec<f32>,
    /// The rest: embedding, attention and biases.
    pub residual: f32,
}

/// The parts of the logit that `token` has after `context`, with the `top` neurons of the largest effects. Computed densely, on the
/// instruction set and workers of `cpu` and in its precision; the parts are taken in floats. `proceed` is asked between layers.
///
/// # Errors
/// [`Error::Invalid`] for an empty context or an id outside the vocabulary, [`Error::Unsupported`] for a model whose FFNs do not reach
/// the residual stream by a sum (several streams, a dense FFN beside experts), [`Error::Cancelled`], and errors of the forward pass.
pub fn attribution(
    model: &Arc<Model>,
    cpu: &Cpu,
    context: &[u32],
    token: u32,
    top: usize,
    proceed: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Attribution> {
    let (last, before) = split_context(model, context, token)?;
    let outputs: Vec<FfnOutput<'_>> =
        (0..model.config.n_layer()).map(|layer| FfnOutput::of(model, layer)).collect::<Result<_>>()?;
    let mut forward = forward_beside(model, cpu)?;
    let cpu = beside(cpu, InputPrecision::Float)?;
    let mut kv = forward.kv_cache(context.len(), KvType::F32)?;
    if !before.is_empty() {
        forward.run(before, &mut kv, Outputs::None, &mut Until(&mut *proceed))?;
    }
    let mut recorder =
        AttributionProbe { model, cpu: &cpu, proceed, layers: vec![Vec::new(); outputs.len()], residual: vec![] };
    let logits = forward.run(&[*last], &mut kv, Outputs::Last, &mut recorder)?;
    check_logits(logits)?;
    let probability = probability(logits, token);
    let AttributionProbe { layers: recorded, residual: x, .. } = recorder;
    let (mut u, bias) = direction(model, &x, token);
    let logit = dot(&u, &x) + bias;

    let (mut neurons, mut layers) = (Vec::new(), vec![0.0; outputs.len()]);
    // From the last layer to the first: what scales the residual stream behind a layer scales what the layer added.
    for (layer, (output, blocks)) in outputs.iter().zip(&recorded).enumerate().rev() {
        if let Some(factor) = model.weights.layers[layer].output_scale {
            u.iter_mut().for_each(|u| *u *= factor);
        }
        layers[layer] = layer_effects(model, &cpu, layer, output, blocks, &u, &mut neurons);
    }
    let descending =
        |a: &NeuronEffect, b: &NeuronEffect| b.logit.abs().total_cmp(&a.logit.abs()).then(a.place.cmp(&b.place));
    if neurons.len() > top {
        neurons.select_nth_unstable_by(top, descending);
        neurons.truncate(top);
    }
    neurons.sort_unstable_by(descending);
    let residual = logit - layers.iter().sum::<f32>();
    Ok(Attribution { token, logit, probability, neurons, layers, residual })
}

/// The greedy continuation of `context` by up to `tokens` tokens, computed as [`attribution`] computes.
///
/// # Errors
/// As [`attribution`].
pub fn continuation(
    model: &Arc<Model>,
    cpu: &Cpu,
    context: &[u32],
    tokens: usize,
    proceed: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Vec<u32>> {
    let mut forward = forward_beside(model, cpu)?;
    let mut kv = forward.kv_cache(context.len() + tokens, KvType::F32)?;
    let mut continued: Vec<u32> = Vec::new();
    while continued.len() < tokens {
        let next = continued.last().map_or(context, std::slice::from_ref);
        let best = forward.top(next, &mut kv, 1, &mut Until(&mut *proceed))?;
        continued.extend(best.ids.first());
    }
    Ok(continued)
}

/// The last token of `context` and those before it, if there is one, and `token` is in the vocabulary.
pub(super) fn split_context<'c>(model: &Model, context: &'c [u32], token: u32) -> Result<(&'c u32, &'c [u32])> {
    if token as usize >= model.config.n_vocab && !context.is_empty() {
        return Err(Error::invalid("token id", format!("below {}", model.config.n_vocab), token));
    }
    context.split_last().ok_or_else(|| Error::invalid("context", "at least one token", "none"))
}

/// A forward pass of `model` on the instruction set and workers of `cpu`, in its precision.
pub(super) fn forward_beside(model: &Arc<Model>, cpu: &Cpu) -> Result<Forward> {
    Ok(Forward::new(Arc::clone(model), beside(cpu, cpu.activations())?))
}

/// A CPU of this precision, on the instruction set and workers of `cpu`.
fn beside(cpu: &Cpu, activations: InputPrecision) -> Result<Cpu> {
    let options = CpuOptions { isa: Some(cpu.isa()), activations, ..CpuOptions::default() };
    Cpu::with_workers(&options, cpu.workers())
}

/// The way of an FFN's output into the residual stream: through a norm, if there is one, and a factor.
struct FfnOutput<'a> {
    norm: Option<&'a Norm>,
    factor: f32,
}

impl<'a> FfnOutput<'a> {
    fn of(model: &'a Model, layer: usize) -> Result<Self> {
        let steps = &model.config.layers[layer].steps;
        let mut output = FfnOutput { norm: None, factor: model.config.residual_scale };
        let Some(at) = steps.iter().position(|step| matches!(step, Step::Ffn { .. })) else { return Ok(output) };
        let another = |step: &Step| {
            Error::unsupported(
                "program of a layer to attribute",
                format!("{step:?} in layer {layer}"),
                "FFNs whose outputs are normed at most and added to the residual stream",
            )
        };
        if let Some(step) = steps.iter().find(|step| matches!(step, Step::Altup(_) | Step::DenseFfn { .. })) {
            return Err(another(step));
        }
        for step in &steps[at + 1..] {
            match step {
                Step::AddOut => return Ok(output),
                Step::Norm { norm, from: Register::Out, into: Register::Out }
                    if model.config.norm == NormKind::Rms && output.norm.is_none() =>
                {
                    output.norm = model.weights.layers[layer].norm(*norm);
                }
                _ => return Err(another(step)),
            }
        }
        Ok(output)
    }
}

/// Hidden values of one FFN for the last token.
#[derive(Debug, Clone)]
struct HiddenBlock {
    /// The expert; 0 of a dense FFN, the number behind the last of the shared expert.
    expert: usize,
    /// Its router weight.
    factor: f32,
    /// `[n_ff]`
    hidden: Vec<f32>,
}

/// The effects of a layer's neurons, appended to `neurons`; their sum. `u` is the map from the residual stream behind the layer.
fn layer_effects(
    model: &Model,
    cpu: &Cpu,
    layer: usize,
    output: &FfnOutput<'_>,
    blocks: &[HiddenBlock],
    u: &[f32],
    neurons: &mut Vec<NeuronEffect>,
) -> f32 {
    let ffn = &model.weights.layers[layer].ffn;
    let mut u: Vec<f32> = u.iter().map(|u| u * output.factor).collect();
    if let Some(norm) = output.norm {
        let out = ffn_output(cpu, ffn, blocks, u.len());
        let scale = 1.0 / (dot(&out, &out) / out.len().max(1) as f32 + norm.eps(model.config.norm_eps)).sqrt();
        u.iter_mut().zip(&norm.weight).for_each(|(u, weight)| *u *= weight * scale);
    }
    let latent = latent_direction(cpu, ffn, &u);
    let shape = model.neuron_shape();
    let mut sum = 0.0;
    for block in blocks {
        let Some((weights, routed)) = ffn_of(ffn, block.expert) else { continue };
        let first = if routed { shape.group(layer, block.expert).start } else { 0 };
        let u = latent.as_deref().filter(|_| is_latent(ffn, block.expert)).unwrap_or(&u);
        let down = products_with_down(cpu, &weights.down, u);
        for (neuron, (activation, down)) in block.hidden.iter().zip(down).enumerate() {
            let logit = block.factor * activation * down;
            if logit != 0.0 {
                let place = NeuronIndex { layer, neuron: first + neuron };
                neurons.push(NeuronEffect { place, activation: *activation, logit });
                sum += logit;
            }
        }
    }
    sum
}

/// The product of `matrix` and one vector `x`, `[rows]`.
pub(super) fn product(cpu: &Cpu, matrix: &Matrix, x: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; matrix.rows()];
    cpu.matmul(&mut [MatmulJob { weight: matrix, bias: None, out: &mut out }], x, 1);
    out
}

/// Products of all neurons' down columns with `u`, `[n_ff]`.
pub(super) fn products_with_down(cpu: &Cpu, down: &Down, u: &[f32]) -> Vec<f32> {
    match down {
        Down::Neurons(rows) => product(cpu, &rows.weight, u),
        // Its transpose is a sum of its rows.
        Down::Outputs(rows) => {
            let mut products = vec![0.0; rows.weight.cols()];
            cpu.matmul_neurons(&rows.weight, None, u, 1, &mut products);
            products
        }
    }
}

/// The FFN of a block, and true if it is an expert's.
fn ffn_of(ffn: &Ffn, expert: usize) -> Option<(&FfnWeights, bool)> {
    match ffn {
        Ffn::Dense(weights) => Some((weights, false)),
        Ffn::Experts(moe) => moe.ffns().nth(expert).map(|weights| (weights, true)),
        Ffn::None => None,
    }
}

/// True for an expert that reads and writes a latent.
pub(super) fn is_latent(ffn: &Ffn, expert: usize) -> bool {
    matches!(ffn, Ffn::Experts(moe) if moe.latent.is_some() && expert < moe.experts.len())
}

/// `u` for the outputs of experts in their latent.
pub(super) fn latent_direction(cpu: &Cpu, ffn: &Ffn, u: &[f32]) -> Option<Vec<f32>> {
    let Ffn::Experts(moe) = ffn else { return None };
    let up = &moe.latent.as_ref()?.up.weight;
    let mut latent = vec![0.0; up.cols()];
    cpu.matmul_neurons(up, None, u, 1, &mut latent);
    Some(latent)
}

/// The sum of the blocks' outputs and biases, `[d]`.
fn ffn_output(cpu: &Cpu, ffn: &Ffn, blocks: &[HiddenBlock], d: usize) -> Vec<f32> {
    let mut out = vec![0.0; d];
    for block in blocks {
        let Some((weights, _)) = ffn_of(ffn, block.expert) else { continue };
        let (down, mut part) = (&weights.down, vec![0.0; weights.down.outputs()]);
        down.product(cpu, down.linear().bias.as_deref(), &block.hidden, 1, &mut part);
        if let (true, Ffn::Experts(moe)) = (is_latent(ffn, block.expert), ffn)
            && let Some(latent) = &moe.latent
        {
            part = product(cpu, &latent.up.weight, &part);
        }
        out.iter_mut().zip(part).for_each(|(out, part)| *out += block.factor * part);
    }
    out
}

/// The logit of `token` by the residual stream before the final norm, `[d_model]`; before a soft cap.
pub(super) fn logit_of(model: &Model, x: &[f32], token: u32) -> f32 {
    let (u, bias) = direction(model, x, token);
    dot(&u, x) + bias
}

/// `u` and `bias` of `logit = u . x + bias`, for the norm that `x` `[d_model]` has.
fn direction(model: &Model, x: &[f32], token: u32) -> (Vec<f32>, f32) {
    let (norm, head) = (&model.weights.output_norm, &model.weights.output);
    let mut u = vec![0.0; x.len()];
    head.weight.dequantise_row(token as usize, &mut u);
    let mut bias = head.bias.as_ref().map_or(0.0, |bias| bias[token as usize]);
    if let Some(norm) = &norm.bias {
        bias += dot(norm, &u);
    }
    let n = x.len().max(1) as f32;
    let mean = if model.config.norm == NormKind::Layer { x.iter().sum::<f32>() / n } else { 0.0 };
    let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / n;
    let scale = 1.0 / (variance + norm.eps(model.config.norm_eps)).sqrt();
    u.iter_mut().zip(&norm.weight).for_each(|(u, weight)| *u *= weight * scale);
    if model.config.norm == NormKind::Layer {
        subtract_mean(&mut u);
    }
    (u, bias)
}

/// Moves the elements of `x` so that their mean is 0, as a layer norm does.
pub(super) fn subtract_mean(x: &mut [f32]) {
    let mean = x.iter().sum::<f32>() / x.len().max(1) as f32;
    x.iter_mut().for_each(|x| *x -= mean);
}

pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
}

/// `softmax(logits)[token]`
fn probability(logits: &[f32], token: u32) -> f32 {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - greatest).exp()).sum();
    (f64::from(logits[token as usize] - greatest).exp() / sum) as f32
}

/// Stops a pass when its caller says so.
struct Until<'a>(&'a mut dyn FnMut() -> ControlFlow<()>);

impl Probe for Until<'_> {
    fn cancelled(&mut self) -> bool {
        (self.0)().is_break()
    }
}

/// Keeps the residual stream before the final norm, of the last token.
pub(super) struct FinalResidual<'a> {
    layers: usize,
    proceed: &'a mut dyn FnMut() -> ControlFlow<()>,
    x: Vec<f32>,
}

impl<'a> FinalResidual<'a> {
    pub fn new(model: &Model, proceed: &'a mut dyn FnMut() -> ControlFlow<()>) -> Self {
        FinalResidual { layers: model.config.n_layer(), proceed, x: Vec::new() }
    }

    /// `[d_model]` of each token of the last chunk.
    pub fn residual(&self) -> &[f32] {
        &self.x
    }
}

impl Probe for FinalResidual<'_> {
    fn cancelled(&mut self) -> bool {
        (self.proceed)().is_break()
    }

    fn wants_layer_output(&mut self) -> bool {
        true
    }

    fn layer_output(&mut self, layer: usize, x: &[f32]) {
        if layer + 1 == self.layers {
            self.x = x.to_vec();
        }
    }
}

/// Records hidden values and the final residual stream of one token.
struct AttributionProbe<'a> {
    model: &'a Model,
    cpu: &'a Cpu,
    proceed: &'a mut dyn FnMut() -> ControlFlow<()>,
    layers: Vec<Vec<HiddenBlock>>,
    /// `[d_model]`
    residual: Vec<f32>,
}

impl Probe for AttributionProbe<'_> {
    fn cancelled(&mut self) -> bool {
        (self.proceed)().is_break()
    }

    fn wants_layer_output(&mut self) -> bool {
        true
    }

    fn layer_output(&mut self, layer: usize, x: &[f32]) {
        if layer + 1 == self.layers.len() {
            self.residual = x.to_vec();
        }
    }

    fn wants_firing(&mut self) -> bool {
        true
    }

    fn wants_strength(&mut self) -> bool {
        true
    }

    fn wants_times(&mut self) -> bool {
        false
    }

    // An MoE layer's values come expert by expert, with their router weights.
    fn firing(&mut self, firing: &LayerFiring<'_>) {
        let dense = matches!(self.model.weights.layers[firing.layer].ffn, Ffn::Dense(_));
        if let (true, Some(Strength::All(values))) = (dense, firing.strength) {
            self.layers[firing.layer] = vec![HiddenBlock { expert: 0, factor: 1.0, hidden: values.to_vec() }];
        }
    }

    fn wants_ffn_hidden(&mut self) -> bool {
        true
    }

    fn expert_hidden(&mut self, hidden: &ExpertHidden<'_>) {
        let ExpertHidden { layer, expert, members, gate, up } = *hidden;
        let [(_, factor)] = members else { return };
        let Some(ffn) = self.model.weights.layers[layer].ffn.at(expert) else { return };
        let form = ffn.form(self.model.config.activation);
        let mut hidden = if gate.is_empty() { up } else { gate }.to_vec();
        self.cpu.activate(form, &mut hidden, (!gate.is_empty()).then_some(up));
        self.layers[layer].push(HiddenBlock { expert, factor: *factor, hidden });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probability_is_that_of_a_softmax() {
        assert!((probability(&[0.0, 2f32.ln(), 0.0], 1) - 0.5).abs() < 1e-6);
    }
}
