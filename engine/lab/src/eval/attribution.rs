//! Direct logit attribution: what each neuron adds directly to a token's logit, through its down
//! projection, the final norm and the head (Elhage et al. 2021, "A Mathematical Framework for
//! Transformer Circuits"). Effects through later layers do not count. Norms after the neuron are
//! treated as linear maps, fixed at their values for this token.
//!
//! Let `x` be the residual stream before the final norm and `r` its root mean square. The logit of
//! token `t` is `u . x + bias` with `u = w * head[t] / r`. Neuron `n` adds `a_n (down_n . u)`.

use std::{ops::ControlFlow, sync::Arc};

use serde::Serialize;

use thermocline_base::{
    error::{Error, Result},
    telemetry::neurons::Strength,
};
use thermocline_cpu::{Cpu, CpuOptions, InputPrecision, MatmulJob};
use thermocline_formats::format::Matrix;
use thermocline_model::{Down, Ffn, FfnWeights, Model, NeuronIndex, Norm, NormKind, Register, Step};
use thermocline_run::runtime::{
    CallInputs, ExpertHidden, Forward, KvCache, KvType, LayerFiring, Outputs, Probe, check_logits,
};

/// A neuron's direct part of a logit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct NeuronEffect {
    /// The neuron.
    #[serde(flatten)]
    pub place: NeuronIndex,
    /// Activation, before its expert's router weight is applied.
    pub activation: f32,
    /// Part of the logit.
    pub logit: f32,
}

/// A token's logit, split into parts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Attribution {
    /// Id of the token.
    pub token: u32,
    /// Logit after the context, before a soft cap: the sum of `layers` and `residual`.
    pub logit: f32,
    /// Probability among all tokens.
    pub probability: f32,
    /// Neurons with the largest effects, by descending magnitude.
    pub neurons: Vec<NeuronEffect>,
    /// Sum over all neurons of each layer, `[layers]`.
    pub layers: Vec<f32>,
    /// Rest of the logit: embedding, attention and biases.
    pub residual: f32,
}

/// Splits the logit of `token` after `context` into parts, with the `top` neurons of the largest
/// effects. The context may have pictures. Computes densely with the instruction set, workers and
/// precision of `cpu`; computes the parts in floats. Calls `proceed` between layers.
///
/// # Errors
/// [`Error::Invalid`] for an empty context or an id outside the vocabulary. [`Error::Unsupported`]
/// if the model adds FFN outputs to the residual stream in another way than a sum (several streams,
/// a dense FFN beside experts). [`Error::Cancelled`], and errors of the forward pass.
pub fn attribution<'t>(
    model: &Arc<Model>,
    cpu: &Cpu,
    context: impl Into<CallInputs<'t>>,
    token: u32,
    top: usize,
    proceed: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Attribution> {
    let SplitContext { last, before } = SplitContext::new(model, context.into(), token)?;
    let outputs: Vec<FfnOutput<'_>> =
        (0..model.config.n_layer()).map(|layer| FfnOutput::of(model, layer)).collect::<Result<_>>()?;
    let (mut forward, mut kv) = forward_after(model, cpu, before, 1, proceed)?;
    let cpu = beside(cpu, InputPrecision::Float)?;
    let last_layer = FinalResidual::new(model, proceed);
    let mut recorder = AttributionProbe { model, cpu: &cpu, last_layer, layers: vec![Vec::new(); outputs.len()] };
    let logits = forward.run(last, &mut kv, Outputs::Last, &mut recorder)?;
    check_logits(logits)?;
    let probability = probability(logits, token);
    let AttributionProbe { layers: recorded, last_layer, .. } = recorder;
    let x = last_layer.residual();
    let (mut u, bias) = direction(model, x, token);
    let logit = dot(&u, x) + bias;

    let (mut neurons, mut layers) = (Vec::new(), vec![0.0; outputs.len()]);
    // Layers are visited from last to first: a factor on a layer's output stream also scales what
    // the layer added.
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

/// Returns the greedy continuation of `context` by up to `tokens` tokens, computed like
/// [`attribution`].
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
    let mut forward = forward_beside(model, cpu, context.into())?;
    let mut kv = forward.kv_cache(context.len() + tokens, KvType::F32)?;
    let mut continued: Vec<u32> = Vec::new();
    while continued.len() < tokens {
        let next = continued.last().map_or(context, std::slice::from_ref);
        let best = forward.top(next, &mut kv, 1, &mut Until(&mut *proceed))?;
        continued.extend(best.ids.first());
    }
    Ok(continued)
}

/// A context in two parts.
pub(super) struct SplitContext<'t> {
    /// The last token.
    pub last: CallInputs<'t>,
    /// The tokens before it.
    pub before: CallInputs<'t>,
}

impl<'t> SplitContext<'t> {
    /// Splits `context`. Fails if it is empty or `token` is outside the vocabulary.
    pub fn new(model: &Model, context: CallInputs<'t>, token: u32) -> Result<Self> {
        let Some(before) = context.tokens.len().checked_sub(1) else {
            return Err(Error::invalid("context", "at least one token", "no tokens"));
        };
        if token as usize >= model.config.n_vocab {
            return Err(Error::invalid("token id", format!("an id below {}", model.config.n_vocab), token));
        }
        let (before, last) = context.tokens.split_at(before);
        Ok(SplitContext { last: context.with_tokens(last), before: context.with_tokens(before) })
    }
}

/// Creates a forward pass like [`forward_beside`], and its cache with the tokens `before` and room
/// for `more` tokens.
pub(super) fn forward_after(
    model: &Arc<Model>,
    cpu: &Cpu,
    before: CallInputs<'_>,
    more: usize,
    proceed: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<(Forward, KvCache)> {
    let mut forward = forward_beside(model, cpu, before)?;
    let mut kv = forward.kv_cache(before.tokens.len() + more, KvType::F32)?;
    if !before.tokens.is_empty() {
        forward.run(before, &mut kv, Outputs::None, &mut Until(proceed))?;
    }
    Ok((forward, kv))
}

/// Creates a forward pass of `model` over tokens of `context`, with the instruction set, workers
/// and precision of `cpu`.
pub(super) fn forward_beside(model: &Arc<Model>, cpu: &Cpu, context: CallInputs<'_>) -> Result<Forward> {
    let mut forward = Forward::new(Arc::clone(model), beside(cpu, cpu.activations())?);
    // Only a picture whose tokens attend to all of it must be computed in one chunk.
    if model.config.attentions().any(|of| of.whole_pictures) {
        let largest = context.pictures.iter().map(|picture| picture.grid.tokens()).max().unwrap_or(0);
        forward.set_chunk(forward.chunk().max(largest));
    }
    Ok(forward)
}

/// Creates a CPU of precision `activations` with the instruction set and workers of `cpu`.
fn beside(cpu: &Cpu, activations: InputPrecision) -> Result<Cpu> {
    let options = CpuOptions { isa: Some(cpu.isa()), activations, ..CpuOptions::default() };
    Cpu::with_workers(&options, cpu.workers())
}

/// How an FFN's output reaches the residual stream: through an optional norm and a factor.
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
                "layer program in an attribution",
                format!("{step:?} in layer {layer}"),
                "FFNs whose outputs are added to the residual stream after at most a norm",
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
    /// Index of the expert. 0 for a dense FFN; the number of routed experts for the shared expert.
    expert: usize,
    /// Router weight of the expert.
    factor: f32,
    /// `[n_ff]` hidden values.
    hidden: Vec<f32>,
}

/// Appends the effects of a layer's neurons to `neurons` and returns their sum. `u` maps the
/// residual stream after the layer to the logit.
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

/// Returns the product of `matrix` and a vector `x`, `[rows]`.
pub(super) fn product(cpu: &Cpu, matrix: &Matrix, x: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; matrix.rows()];
    cpu.matmul(&mut [MatmulJob { weight: matrix, bias: None, out: &mut out }], x, 1);
    out
}

/// Returns the products of all neurons' down columns with `u`, `[n_ff]`.
pub(super) fn products_with_down(cpu: &Cpu, down: &Down, u: &[f32]) -> Vec<f32> {
    match down {
        Down::Neurons(rows) => product(cpu, &rows.weight, u),
        // The product with the transpose is a weighted sum of the rows.
        Down::Outputs(rows) => {
            let mut products = vec![0.0; rows.weight.cols()];
            cpu.matmul_neurons(&rows.weight, None, u, 1, &mut products);
            products
        }
    }
}

/// Returns the FFN of a block, and true if the FFN belongs to an expert.
fn ffn_of(ffn: &Ffn, expert: usize) -> Option<(&FfnWeights, bool)> {
    match ffn {
        Ffn::Dense(weights) => Some((weights, false)),
        Ffn::Experts(moe) => moe.ffns().nth(expert).map(|weights| (weights, true)),
        Ffn::None => None,
    }
}

/// True if the expert reads and writes a latent vector.
pub(super) fn is_latent(ffn: &Ffn, expert: usize) -> bool {
    matches!(ffn, Ffn::Experts(moe) if moe.latent.is_some() && expert < moe.experts.len())
}

/// Maps `u` to the latent space of the experts' outputs.
pub(super) fn latent_direction(cpu: &Cpu, ffn: &Ffn, u: &[f32]) -> Option<Vec<f32>> {
    let Ffn::Experts(moe) = ffn else { return None };
    let up = &moe.latent.as_ref()?.up.weight;
    let mut latent = vec![0.0; up.cols()];
    cpu.matmul_neurons(up, None, u, 1, &mut latent);
    Some(latent)
}

/// Returns the sum of the blocks' outputs, including biases, `[d]`.
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

/// Returns the logit of `token` before a soft cap. `x` `[d_model]` is the residual stream before
/// the final norm.
pub(super) fn logit_of(model: &Model, x: &[f32], token: u32) -> f32 {
    let (u, bias) = direction(model, x, token);
    dot(&u, x) + bias
}

/// Returns `u` and `bias` of `logit = u . x + bias`, for the norm of `x` `[d_model]`.
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

/// Subtracts the mean from the elements of `x`, as a layer norm does.
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

/// Probe that stops a pass when its caller requests it.
pub struct Until<'a>(pub &'a mut dyn FnMut() -> ControlFlow<()>);

impl Probe for Until<'_> {
    fn cancelled(&mut self) -> bool {
        (self.0)().is_break()
    }
}

/// Probe that keeps the residual stream before the final norm.
pub(super) struct FinalResidual<'a> {
    layers: usize,
    proceed: &'a mut dyn FnMut() -> ControlFlow<()>,
    x: Vec<f32>,
}

impl<'a> FinalResidual<'a> {
    pub fn new(model: &Model, proceed: &'a mut dyn FnMut() -> ControlFlow<()>) -> Self {
        FinalResidual { layers: model.config.n_layer(), proceed, x: Vec::new() }
    }

    /// Returns the residual stream of each token of the last chunk, `[d_model]` each.
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

/// Probe that records the hidden values and the final residual stream of one token.
struct AttributionProbe<'a> {
    model: &'a Model,
    cpu: &'a Cpu,
    last_layer: FinalResidual<'a>,
    layers: Vec<Vec<HiddenBlock>>,
}

impl Probe for AttributionProbe<'_> {
    fn cancelled(&mut self) -> bool {
        self.last_layer.cancelled()
    }

    fn wants_layer_output(&mut self) -> bool {
        true
    }

    fn layer_output(&mut self, layer: usize, x: &[f32]) {
        self.last_layer.layer_output(layer, x);
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

    // The values of an MoE layer arrive per expert, with router weights, in `expert_hidden`.
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
