//! Experts of an MoE layer: sizes and weights of the routed experts, of a latent around them, and
//! of a shared expert.

use super::{Down, FfnWeights, Linear, Norm, Router};
use crate::load::{LayerTensors, Loader};
use thermocline_base::{error::Result, telemetry::neurons::LayerNeurons};
use thermocline_formats::format::Matrix;

/// Sizes of the experts of an MoE model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Experts {
    /// Number of experts per layer.
    pub count: usize,
    /// Number of experts that a token uses.
    pub used: usize,
    /// Rule for choosing and weighting experts.
    pub router: Router,
    /// Number of neurons per expert.
    pub n_ff: usize,
}

/// Weights of a mixture-of-experts (MoE) layer.
#[derive(Debug, Clone)]
pub struct ExpertWeights {
    /// Router, `[experts, d]`.
    pub router: Linear,
    /// Norm of the residual stream that the router reads. Without it, the router reads the experts'
    /// input.
    pub router_norm: Option<Norm>,
    /// Factors on the weights of chosen experts, `[experts]` (Gemma 4).
    pub scale: Option<Vec<f32>>,
    /// Bias on the router's scores for choosing experts, `[experts]`. The experts' weights do not
    /// include it.
    pub selection_bias: Option<Vec<f32>>,
    /// Maps between the widths of the residual stream and of the routed experts, if the experts are
    /// narrower.
    pub latent: Option<Box<ExpertLatent>>,
    /// One FFN per expert.
    pub experts: Vec<FfnWeights>,
    /// Shared expert, which every token uses (Qwen2-MoE). Several in parallel are stored as one of
    /// their total width.
    pub shared: Option<Box<SharedExpert>>,
    /// Output-major down projections of the experts, `[d, n_ff]` each, for GPUs. Empty unless
    /// `experts` has neuron-major down projections.
    pub file_down: Vec<Linear>,
}

impl ExpertWeights {
    /// Iterates over the matrices that every token reads: of the router, the latent, and the shared
    /// expert with its gate.
    pub fn always_read(&self) -> impl Iterator<Item = &Linear> {
        let latent = self.latent.iter().flat_map(|latent| [&latent.down, &latent.up]);
        let shared = self.shared.iter().flat_map(|shared| shared.gate.iter().chain(shared.ffn.linears()));
        [&self.router].into_iter().chain(latent).chain(shared)
    }

    /// Returns number and grouping of the experts' neurons.
    pub fn neurons(&self) -> LayerNeurons {
        let rows = |ffn: &FfnWeights| ffn.up.weight.rows();
        LayerNeurons::Experts {
            experts: self.experts.len(),
            width: self.experts.first().map_or(0, rows),
            shared: self.shared.as_ref().map_or(0, |shared| rows(&shared.ffn)),
        }
    }

    /// True if the routed experts have gates.
    pub fn gated(&self) -> bool {
        self.experts.iter().any(|expert| expert.gate.is_some())
    }

    /// Iterates over the routed experts, then the shared expert.
    pub fn ffns(&self) -> impl Iterator<Item = &FfnWeights> {
        self.experts.iter().chain(self.shared.iter().map(|shared| &shared.ffn))
    }

    /// Iterates over the down projections, in the order of [`ExpertWeights::ffns`].
    pub fn downs(&self) -> impl Iterator<Item = &Down> {
        self.ffns().map(|ffn| &ffn.down)
    }

    /// Returns the output-major down projection of a routed expert, if it is available.
    pub fn output_major(&self, expert: usize) -> Option<&Linear> {
        match &self.experts.get(expert)?.down {
            Down::Outputs(down) => Some(down),
            Down::Neurons(_) => self.file_down.get(expert),
        }
    }

    /// Replaces down projections by neuron-major ones, `[n_ff, d]` each, in the order of
    /// [`ExpertWeights::downs`]. `None` leaves a projection unchanged. Biases stay.
    pub fn set_neuron_major(&mut self, downs: impl IntoIterator<Item = Option<Matrix>>) {
        let file: Option<Vec<Linear>> =
            (0..self.experts.len()).map(|expert| self.output_major(expert).cloned()).collect();
        let shared = self.shared.iter_mut().map(|shared| &mut shared.ffn);
        for (ffn, down) in self.experts.iter_mut().chain(shared).zip(downs) {
            if let Some(weight) = down {
                ffn.down.set_neuron_major(weight);
            }
        }
        let neuron_major = self.experts.iter().any(|ffn| matches!(ffn.down, Down::Neurons(_)));
        self.file_down = file.filter(|_| neuron_major).unwrap_or_default();
    }

    /// Loads the experts of layer `n`. Newer files stack them, with gate and up separate
    /// (`ffn_gate_exps`, `ffn_up_exps`) or joined (`ffn_gate_up_exps`). Older files have one tensor
    /// per expert (`ffn_up.3`). Experts without a gate have only `ffn_up`.
    pub(crate) fn load(at: &LayerTensors<'_>, experts: &Experts) -> Result<Self> {
        let LayerTensors { loader, n, d_model: d, .. } = *at;
        let (n_ff, count) = (experts.n_ff, experts.count);
        let router = loader.linear(&format!("blk.{n}.ffn_gate_inp"), count, d)?;
        let latent = expert_latent(loader, d, n)?;
        let width = latent.as_ref().map_or(d, |latent| latent.down.weight.rows());
        let shape = StackShape { count, rows: n_ff, cols: width };
        let (gates, ups) = match gates_and_ups(loader, shape, n)? {
            Some([gates, ups]) => (Some(gates), ups),
            None => {
                let first = |stem: &str| format!("blk.{n}.{stem}");
                let gated = loader.has(&first("ffn_gate_exps.weight")) || loader.has(&first("ffn_gate.0.weight"));
                let gates = gated.then(|| linears(loader, "ffn_gate", shape, n)).transpose()?;
                (gates, linears(loader, "ffn_up", shape, n)?)
            }
        };
        // Files of Hy3 name the bias without a suffix.
        let bias = format!("blk.{n}.exp_probs_b");
        let bias = if loader.has(&bias) { bias } else { format!("{bias}.bias") };
        let selection_bias = loader.optional_vector(&bias, count)?;
        let downs = linears(loader, "ffn_down", StackShape { count, rows: width, cols: n_ff }, n)?;
        let mut gates = gates.into_iter().flatten();
        let ffn = |(up, down)| FfnWeights {
            gate: gates.next(),
            up,
            down: Down::Outputs(down),
            bundled_gate: None,
            limit: None,
            gate_scales: None,
        };
        Ok(ExpertWeights {
            router,
            router_norm: None,
            scale: None,
            selection_bias,
            latent: latent.map(Box::new),
            experts: ups.into_iter().zip(downs).map(ffn).collect(),
            shared: shared_expert(loader, d, n)?.map(Box::new),
            file_down: Vec::new(),
        })
    }
}

/// Maps of the routed experts into a latent and out of it: `up (sum of experts(down x))` (Nemotron
/// 3 Super). Router and shared expert read `x` itself.
#[derive(Debug, Clone)]
pub struct ExpertLatent {
    /// `[latent, d]`
    pub down: Linear,
    /// `[d, latent]`, without a bias, because parts of the sum are mapped separately.
    pub up: Linear,
}

/// Shared expert, computed for every token. `sigmoid(gate x) * ffn(x)`, or `ffn(x)` without a gate,
/// is added to the sum of the routed experts.
#[derive(Debug, Clone)]
pub struct SharedExpert {
    /// `[1, d]`
    pub gate: Option<Linear>,
    /// FFN of the shared expert. Its width may differ from that of the routed experts.
    pub ffn: FfnWeights,
}

/// Shape of one linear map of a layer's experts: the number of experts, and rows and columns per
/// expert.
#[derive(Clone, Copy)]
struct StackShape {
    count: usize,
    rows: usize,
    cols: usize,
}

/// Loads the maps of the routed experts into a latent and out of it, if layer `n` has them. Their
/// shapes determine the latent's width.
fn expert_latent(loader: &Loader<'_>, d: usize, n: usize) -> Result<Option<ExpertLatent>> {
    let [down, up] = ["down", "up"].map(|which| format!("blk.{n}.ffn_latent_{which}"));
    let Some(width) = loader.rows(&format!("{down}.weight")) else { return Ok(None) };
    let latent = ExpertLatent { down: loader.linear(&down, width, d)?, up: loader.linear(&up, d, width)? };
    match &latent.up.bias {
        Some(bias) => {
            Err(loader.tensor_error(&format!("{up}.bias"), "no bias, because the experts have a latent", bias.len()))
        }
        None => Ok(Some(latent)),
    }
}

/// Loads one linear map of every expert, with its biases if it has any.
fn linears(loader: &Loader<'_>, stem: &str, shape: StackShape, n: usize) -> Result<Vec<Linear>> {
    let StackShape { count, rows, cols } = shape;
    let stacked = format!("blk.{n}.{stem}_exps");
    let single = |e: usize| format!("blk.{n}.{stem}.{e}");
    let Some(weights) = loader.stacked(&format!("{stacked}.weight"), count, rows, cols)? else {
        if !loader.has(&format!("{}.weight", single(0))) {
            return Err(loader.missing_tensor(&format!("{stacked}.weight"), format!("shape [{count}, {rows}, {cols}]")));
        }
        return (0..count).map(|e| loader.linear(&single(e), rows, cols)).collect();
    };
    let biases = loader.stacked_vectors(&format!("{stacked}.bias"), count, rows)?;
    Ok(with_biases(weights, biases))
}

fn with_biases(weights: Vec<Matrix>, biases: Option<Vec<Vec<f32>>>) -> Vec<Linear> {
    let mut biases = biases.into_iter().flatten();
    weights.into_iter().map(|weight| Linear { weight, bias: biases.next() }).collect()
}

/// Loads gates and ups of the experts of layer `n` from one tensor, if it exists. The gate's rows
/// precede the up's.
fn gates_and_ups(loader: &Loader<'_>, gate: StackShape, n: usize) -> Result<Option<[Vec<Linear>; 2]>> {
    let StackShape { count, rows: n_ff, cols: d } = gate;
    let stem = format!("blk.{n}.ffn_gate_up_exps");
    let name = format!("{stem}.weight");
    let Some(both) = loader.stacked(&name, count, n_ff.saturating_mul(2), d)? else { return Ok(None) };
    let biases = loader.stacked_vectors(&format!("{stem}.bias"), count, 2 * n_ff)?;
    let half = |start: usize| {
        let weights = both.iter().map(|both| loader.slice(both, &name, start, n_ff)).collect::<Result<Vec<_>>>()?;
        let biases = biases.as_ref().map(|all| all.iter().map(|bias| bias[start..start + n_ff].to_vec()).collect());
        Ok(with_biases(weights, biases))
    };
    Ok(Some([half(0)?, half(n_ff)?]))
}

/// Loads the shared expert of layer `n`, if it has one. Its gate is a row, stored with or without
/// its unit dimension.
fn shared_expert(loader: &Loader<'_>, d: usize, n: usize) -> Result<Option<SharedExpert>> {
    let stem = |role: &str| format!("blk.{n}.ffn_{role}_shexp");
    let Some(n_ff) = loader.rows(&format!("{}.weight", stem("up"))) else { return Ok(None) };
    let gated = loader.has(&format!("{}.weight", stem("gate")));
    let gate_row = loader.optional_row(&format!("{}.weight", stem("gate_inp")), d)?;
    Ok(Some(SharedExpert {
        gate: gate_row.map(|weight| Linear { weight, bias: None }),
        ffn: FfnWeights {
            gate: gated.then(|| loader.linear(&stem("gate"), n_ff, d)).transpose()?,
            up: loader.linear(&stem("up"), n_ff, d)?,
            down: Down::Outputs(loader.linear(&stem("down"), d, n_ff)?),
            bundled_gate: None,
            limit: None,
            gate_scales: None,
        },
    }))
}
