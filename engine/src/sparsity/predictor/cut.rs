//! Cuts for models whose activations are never exactly zero. A neuron whose gate comes out small adds little, whatever its
//! up row says: below a layer's cut on `|f(gate)|` it is skipped. The cut is a percentile of what the gates of held-out
//! text did (CATS, Lee et al. 2024), chosen for a share of neurons to skip or for the error the FFN's output may have.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{
    data::{BLOCK, LayerData, Rows, Split},
    metrics::{Mean, down_norms, output_error},
};
use crate::{
    cpu::{Cpu, MatmulJob},
    error::{Error, Result},
    model::{Activation, Down, ExpertWeights, Experts, FfnWeights, PredictorInput, Routing},
};

/// What a cut is chosen for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CutGoal {
    /// Skip this share of the neurons, below 1.
    Sparsity(f64),
    /// Skip as many as the mean relative error of the FFN's output, `|y - y'| / |y|`, allows.
    OutputError(f64),
}

/// A layer's cut and what it does to text that did not choose it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cut {
    /// Neurons are skipped where `|f(gate)|` is at most this.
    pub cut: f32,
    /// Share of the neurons that is skipped.
    pub sparsity: f64,
    /// Share of the mass `|a_i| |d_i|` that is kept, mean over tokens.
    pub mass: f64,
    /// `|y - y'| / |y|` of the FFN's output, mean over tokens.
    pub output_error: f64,
    /// Tokens looked at.
    pub tokens: u64,
}

/// Most tokens a cut is chosen by and judged on.
const MOST_TOKENS: usize = 512;
/// Steps of the search for a cut with a given error.
const STEPS: usize = 10;

/// The cut of a gated layer.
///
/// # Errors
/// [`Error::Unsupported`] for a layer without a gate, [`Error::Invalid`] without tokens or for a goal out of range.
pub fn cut(cpu: &Cpu, data: &LayerData<'_>, goal: CutGoal) -> Result<Cut> {
    find(cpu, data.split()?, goal, &mut |range| {
        let members = (0..range.len()).map(|t| (t, 1.0)).collect();
        let mut sample = Sample::new(range.len(), data.d());
        sample.add(cpu, data.ffn(), (data, range), members)?;
        Ok(sample)
    })
}

/// The cut of a mixture that was given `normed`, `[tokens, d]`: one for the neurons of all its experts, each of which sees the tokens
/// that its router sends it.
///
/// # Errors
/// As [`cut`].
pub fn cut_experts(
    cpu: &Cpu,
    (mixture, experts): (&ExpertWeights, &Experts),
    activation: Activation,
    normed: Rows<'_>,
    goal: CutGoal,
) -> Result<Cut> {
    let Some(first) = mixture.experts.first() else {
        return Err(Error::invalid("mixture", "at least one expert", 0));
    };
    let all = LayerData::new(first, activation, normed, None)?;
    let d = all.d();
    find(cpu, all.split()?, goal, &mut |range| {
        let (mut x, mut routing, tokens) = (Vec::new(), Routing::default(), range.len());
        all.copy(PredictorInput::Normed, range, &mut x)?;
        routing.ask(cpu, experts, mixture, &x, tokens)?;
        let mut sample = Sample::new(tokens, d);
        for (at, ffn) in mixture.ffns().enumerate() {
            let members: Vec<(usize, f32)> = match at < mixture.experts.len() {
                true => routing.members(at, tokens).collect(),
                false => routing.gates().iter().copied().take(tokens).enumerate().collect(),
            };
            let rows: Vec<f32> = members.iter().flat_map(|(t, _)| &x[t * d..][..d]).copied().collect();
            let data = LayerData::new(ffn, activation, Rows::F32(&rows), None)?;
            sample.add(cpu, ffn, (&data, 0..members.len()), members)?;
        }
        Ok(sample)
    })
}

/// Finds the cut in what `sample` says of some of the tokens, and judges it by others.
fn find<'a>(
    cpu: &Cpu,
    split: Split,
    goal: CutGoal,
    sample: &mut dyn FnMut(Range<usize>) -> Result<Sample<'a>>,
) -> Result<Cut> {
    let (CutGoal::Sparsity(wanted) | CutGoal::OutputError(wanted)) = goal;
    if !(0.0..1.0).contains(&wanted) {
        return Err(Error::invalid("goal of a cut", "a share from 0 to below 1", wanted));
    }
    let tokens = |range: Range<usize>| range.start..range.end.min(range.start + MOST_TOKENS);
    let mut set = sample(tokens(split.set))?;
    let chosen = match goal {
        CutGoal::Sparsity(share) => set.percentile(share),
        CutGoal::OutputError(error) => {
            // The error grows with the share that is skipped.
            let (mut low, mut high) = (0.0, 1.0);
            for _ in 0..STEPS {
                let middle = 0.5 * (low + high);
                let cut = set.percentile(middle);
                if set.judge(cpu, cut).output_error <= error { low = middle } else { high = middle }
            }
            set.percentile(low)
        }
    };
    Ok(sample(tokens(split.test))?.judge(cpu, chosen))
}

/// What some tokens do in a layer.
struct Sample<'a> {
    tokens: usize,
    d: usize,
    parts: Vec<Part<'a>>,
    /// The layer's output without biases, `[tokens, d]`
    output: Vec<f32>,
    /// All gates in ascending order, made when first asked for.
    sorted: Vec<f32>,
}

/// What tokens do in one of the layer's FFNs.
struct Part<'a> {
    ffn: &'a FfnWeights,
    /// Which tokens, and what it counts for each.
    members: Vec<(usize, f32)>,
    /// `|f(gate)|`, `[members, n_ff]`
    gates: Vec<f32>,
    /// Hidden activations, `[members, n_ff]`
    hidden: Vec<f32>,
    /// `[n_ff]`
    norms: Vec<f32>,
}

impl<'a> Sample<'a> {
    fn new(tokens: usize, d: usize) -> Self {
        Sample { tokens, d, parts: Vec::new(), output: vec![0.0; tokens * d], sorted: Vec::new() }
    }

    /// Has the tokens in a range of `data` go through its FFN, `ffn`.
    fn add(
        &mut self,
        cpu: &Cpu,
        ffn: &'a FfnWeights,
        (data, range): (&LayerData<'_>, Range<usize>),
        members: Vec<(usize, f32)>,
    ) -> Result<()> {
        let Some(gate) = &ffn.gate else {
            return Err(Error::Unsupported {
                what: "sparsity mode",
                got: "threshold, for a layer without a gate".to_owned(),
                supported: "layers with a gate".to_owned(),
            });
        };
        let n_ff = data.n_ff();
        let mut part = Part {
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
            let mut job = [MatmulJob { weight: &gate.weight, bias: gate.bias.as_deref(), out: &mut *out }];
            cpu.matmul(&mut job, &x, block.len());
            cpu.activate(data.activation().into(), out, None);
        }
        part.gates.iter_mut().for_each(|gate| *gate = gate.abs());
        part.down(cpu, &part.hidden, self.d, &mut self.output);
        self.parts.push(part);
        Ok(())
    }

    /// The value that the share `share` of the gates is at most.
    fn percentile(&mut self, share: f64) -> f32 {
        if self.sorted.is_empty() {
            self.sorted.extend(self.parts.iter().flat_map(|part| &part.gates));
            self.sorted.sort_unstable_by(f32::total_cmp);
        }
        let below = (share * self.sorted.len() as f64) as usize;
        match below.min(self.sorted.len()) {
            0 => 0.0,
            n => self.sorted[n - 1],
        }
    }

    fn judge(&self, cpu: &Cpu, cut: f32) -> Cut {
        let (mut skipped, mut looked) = (0u64, 0usize);
        let (mut kept_mass, mut mass) = (vec![0.0; self.tokens], vec![0.0; self.tokens]);
        let mut output = vec![0.0; self.output.len()];
        for part in &self.parts {
            let mut kept = part.hidden.clone();
            for (kept, gate) in kept.iter_mut().zip(&part.gates) {
                if *gate <= cut {
                    (*kept, skipped) = (0.0, skipped + 1);
                }
            }
            looked += part.gates.len();
            part.add_mass(&part.hidden, &mut mass);
            part.add_mass(&kept, &mut kept_mass);
            part.down(cpu, &kept, self.d, &mut output);
        }
        let (mut masses, mut errors) = (Mean::default(), Mean::default());
        kept_mass.iter().zip(&mass).for_each(|(kept, whole)| masses.add((*whole > 0.0).then(|| kept / whole)));
        let d = self.d.max(1);
        for (y, approximation) in self.output.chunks_exact(d).zip(output.chunks_exact(d)) {
            errors.add(output_error(y, approximation));
        }
        Cut {
            cut,
            sparsity: skipped as f64 / looked.max(1) as f64,
            mass: masses.get().unwrap_or(1.0),
            output_error: errors.get().unwrap_or(0.0),
            tokens: self.tokens as u64,
        }
    }
}

impl Part<'_> {
    /// Adds `|a_i| |d_i|` of hidden activations to the masses of their tokens.
    fn add_mass(&self, hidden: &[f32], masses: &mut [f64]) {
        for (hidden, (t, share)) in hidden.chunks_exact(self.norms.len().max(1)).zip(&self.members) {
            let mass: f64 = hidden.iter().zip(&self.norms).map(|(a, norm)| f64::from(a.abs() * norm)).sum();
            masses[*t] += f64::from(*share) * mass;
        }
    }

    /// Adds what the FFN says of hidden activations, without its bias, to the outputs of their tokens.
    fn down(&self, cpu: &Cpu, hidden: &[f32], d: usize, outputs: &mut [f32]) {
        let tokens = self.members.len();
        let mut out = vec![0.0; tokens * d];
        match &self.ffn.down {
            Down::Outputs(down) => {
                cpu.matmul(&mut [MatmulJob { weight: &down.weight, bias: None, out: &mut out }], hidden, tokens);
            }
            Down::Neurons(down) => {
                cpu.matmul_neurons(&down.weight, None, hidden, tokens, &mut out);
            }
        }
        for (out, (t, share)) in out.chunks_exact(d.max(1)).zip(&self.members) {
            cpu.add_scaled(&mut outputs[t * d..][..d], out, *share);
        }
    }
}
