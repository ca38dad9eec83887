//! Cuts for models whose activations are never exactly zero. A neuron whose gate comes out small adds little, whatever its
//! up row says: below a layer's cut on `|f(gate)|` it is skipped. The cut is a percentile of what the gates of held-out
//! text did (CATS, Lee et al. 2024), chosen for a share of neurons to skip or for the error the FFN's output may have.

use serde::{Deserialize, Serialize};

use super::{
    data::{BLOCK, LayerData},
    metrics::{Mean, down_norms, output_error},
};
use crate::{
    cpu::{Cpu, MatmulJob},
    error::{Error, Result},
    model::{Down, Linear, PredictorInput},
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
    let (CutGoal::Sparsity(wanted) | CutGoal::OutputError(wanted)) = goal;
    if !(0.0..1.0).contains(&wanted) {
        return Err(Error::invalid("goal of a cut", "a share from 0 to below 1", wanted));
    }
    let Some(gate) = &data.ffn().gate else {
        return Err(Error::Unsupported {
            what: "sparsity mode",
            got: "threshold, for a layer without a gate".to_owned(),
            supported: "layers with a gate".to_owned(),
        });
    };
    let split = data.split()?;
    let tokens = |range: std::ops::Range<usize>| range.start..range.end.min(range.start + MOST_TOKENS);
    let mut sample = Sample::new(cpu, data, gate, tokens(split.set))?;
    let chosen = match goal {
        CutGoal::Sparsity(share) => sample.percentile(share),
        CutGoal::OutputError(error) => {
            // The error grows with the share that is skipped.
            let (mut low, mut high) = (0.0, 1.0);
            for _ in 0..STEPS {
                let middle = 0.5 * (low + high);
                let cut = sample.percentile(middle);
                if sample.judge(cpu, data, cut)?.output_error <= error { low = middle } else { high = middle }
            }
            sample.percentile(low)
        }
    };
    Sample::new(cpu, data, gate, tokens(split.test))?.judge(cpu, data, chosen)
}

/// What some tokens do in a layer.
struct Sample {
    tokens: usize,
    /// `|f(gate)|`, `[tokens, n_ff]`
    gates: Vec<f32>,
    /// Hidden activations, `[tokens, n_ff]`
    hidden: Vec<f32>,
    /// The FFN's output without its bias, `[tokens, d]`
    output: Vec<f32>,
    /// `[n_ff]`
    norms: Vec<f32>,
    /// `gates` in ascending order, made when first asked for.
    sorted: Vec<f32>,
}

impl Sample {
    fn new(cpu: &Cpu, data: &LayerData<'_>, gate: &Linear, range: std::ops::Range<usize>) -> Result<Self> {
        let (n_ff, tokens) = (data.n_ff(), range.len());
        let mut sample = Sample {
            tokens,
            gates: vec![0.0; tokens * n_ff],
            hidden: Vec::with_capacity(tokens * n_ff),
            output: vec![0.0; tokens * data.d()],
            norms: down_norms(data.ffn()),
            sorted: Vec::new(),
        };
        let (mut x, mut hidden, mut other) = (Vec::new(), Vec::new(), Vec::new());
        for start in range.clone().step_by(BLOCK) {
            let block = start..range.end.min(start + BLOCK);
            data.copy(PredictorInput::Normed, block.clone(), &mut x)?;
            data.hidden(cpu, &x, &mut hidden, &mut other);
            sample.hidden.extend_from_slice(&hidden);
            let out = &mut sample.gates[(start - range.start) * n_ff..][..block.len() * n_ff];
            let mut job = [MatmulJob { weight: &gate.weight, bias: gate.bias.as_deref(), out: &mut *out }];
            cpu.matmul(&mut job, &x, block.len());
            cpu.activate(data.activation().into(), out, None);
        }
        sample.gates.iter_mut().for_each(|gate| *gate = gate.abs());
        sample.output = down(cpu, data, &sample.hidden, tokens);
        Ok(sample)
    }

    /// The value that the share `share` of the gates is at most.
    fn percentile(&mut self, share: f64) -> f32 {
        if self.sorted.is_empty() {
            self.sorted.clone_from(&self.gates);
            self.sorted.sort_unstable_by(f32::total_cmp);
        }
        let below = (share * self.sorted.len() as f64) as usize;
        match below.min(self.sorted.len()) {
            0 => 0.0,
            n => self.sorted[n - 1],
        }
    }

    fn judge(&self, cpu: &Cpu, data: &LayerData<'_>, cut: f32) -> Result<Cut> {
        let n_ff = data.n_ff();
        let mut kept = self.hidden.clone();
        let mut skipped = 0u64;
        for (kept, gate) in kept.iter_mut().zip(&self.gates) {
            if *gate <= cut {
                (*kept, skipped) = (0.0, skipped + 1);
            }
        }
        let mass =
            |hidden: &[f32]| -> f64 { hidden.iter().zip(&self.norms).map(|(a, norm)| f64::from(a.abs() * norm)).sum() };
        let (mut masses, mut errors) = (Mean::default(), Mean::default());
        for (kept, whole) in kept.chunks_exact(n_ff.max(1)).zip(self.hidden.chunks_exact(n_ff.max(1))) {
            let whole = mass(whole);
            masses.add((whole > 0.0).then(|| mass(kept) / whole));
        }
        let output = down(cpu, data, &kept, self.tokens);
        let d = data.d().max(1);
        for (y, approximation) in self.output.chunks_exact(d).zip(output.chunks_exact(d)) {
            errors.add(output_error(y, approximation));
        }
        Ok(Cut {
            cut,
            sparsity: skipped as f64 / self.gates.len().max(1) as f64,
            mass: masses.get().unwrap_or(1.0),
            output_error: errors.get().unwrap_or(0.0),
            tokens: self.tokens as u64,
        })
    }
}

/// The FFN's output without its bias.
fn down(cpu: &Cpu, data: &LayerData<'_>, hidden: &[f32], tokens: usize) -> Vec<f32> {
    let mut out = vec![0.0; tokens * data.d()];
    match &data.ffn().down {
        Down::Outputs(down) => {
            cpu.matmul(&mut [MatmulJob { weight: &down.weight, bias: None, out: &mut out }], hidden, tokens);
        }
        Down::Neurons(down) => {
            cpu.matmul_neurons(&down.weight, None, hidden, tokens, &mut out);
        }
    }
    out
}
