//! Training and evaluation data of a predictor: inputs of a layer's FFN, recorded while the model
//! computed text. The firings are computed from the layer's weights with the model's kernels, so
//! only the inputs are stored.

use std::ops::Range;

use super::metrics::{self, heaviest};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::Cpu;
use thermocline_model::{Activation, FfnWeights, Linear, PredictorInput};

/// Tokens computed together.
pub(super) const BLOCK: usize = 128;

/// Recorded vectors, `[tokens, d]`.
#[derive(Debug, Clone, Copy)]
pub enum Rows<'a> {
    /// Values in memory.
    F32(&'a [f32]),
    /// Little-endian F16, as in a file.
    F16(&'a [u8]),
}

impl Rows<'_> {
    /// Returns the number of elements.
    fn len(&self) -> usize {
        match self {
            Rows::F32(values) => values.len(),
            Rows::F16(bytes) => bytes.len() / 2,
        }
    }

    /// Copies row `t`. Rows have `out.len()` elements.
    fn copy(&self, t: usize, out: &mut [f32]) {
        let at = t * out.len()..(t + 1) * out.len();
        match self {
            Rows::F32(values) => out.copy_from_slice(&values[at]),
            Rows::F16(bytes) => {
                let bytes = bytes[2 * at.start..2 * at.end].as_chunks::<2>().0;
                out.iter_mut().zip(bytes).for_each(|(out, bytes)| *out = half::f16::from_le_bytes(*bytes).to_f32());
            }
        }
    }
}

/// Ranges of tokens by purpose. Each range is a contiguous part of the text, so that no sentence is
/// in two ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataSplit {
    /// Tokens for computing gradients.
    pub train: Range<usize>,
    /// Tokens for early stopping and for choosing the rank.
    pub tune: Range<usize>,
    /// Tokens for setting the threshold. Disjoint from `tune`, where the chosen predictor looks
    /// better than it is.
    pub set: Range<usize>,
    /// Tokens for the reported figures.
    pub test: Range<usize>,
}

/// Most tokens in a twentieth of the text. Estimates do not need more.
const MAX_HELD_OUT: usize = 2048;

impl DataSplit {
    /// Splits `tokens` tokens. The last quarter is held out: one twentieth for tuning, two for the
    /// threshold, two for testing. With fewer than 20 tokens, every range is the whole text.
    pub fn new(tokens: usize) -> Self {
        let part = (tokens / 20).min(MAX_HELD_OUT);
        if part == 0 {
            return DataSplit { train: 0..tokens, tune: 0..tokens, set: 0..tokens, test: 0..tokens };
        }
        let [tune, set, test] = [5, 4, 2].map(|parts| tokens - parts * part);
        DataSplit { train: 0..tune, tune: tune..set, set: set..test, test: test..tokens }
    }
}

/// A layer's FFN and its recorded inputs.
#[derive(Debug, Clone, Copy)]
pub struct LayerData<'a> {
    ffn: &'a FfnWeights,
    activation: Activation,
    normed: Rows<'a>,
    residual: Option<Rows<'a>>,
    tokens: usize,
    d: usize,
}

impl<'a> LayerData<'a> {
    /// Combines an FFN with its recorded inputs. `normed` are the FFN's inputs, `[tokens, d]`, in
    /// the order of the text. `residual` is the residual stream before the FFN's norm. Only
    /// PowerInfer's predictors ([`PredictorInput::Residual`]) need it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the rows are not as wide as the FFN.
    pub fn new(
        ffn: &'a FfnWeights,
        activation: Activation,
        normed: Rows<'a>,
        residual: Option<Rows<'a>>,
    ) -> Result<Self> {
        let d = ffn.up.weight.cols();
        let tokens = normed.len() / d.max(1);
        for rows in [Some(normed), residual].into_iter().flatten() {
            if rows.len() != tokens * d {
                return Err(Error::invalid("predictor data", format!("{tokens} rows of {d} numbers"), rows.len()));
            }
        }
        Ok(LayerData { ffn, activation, normed, residual, tokens, d })
    }

    /// Returns the same inputs for `ffn`, which must have the same shapes.
    pub fn with_ffn<'f>(&self, ffn: &'f FfnWeights) -> LayerData<'f>
    where
        'a: 'f,
    {
        LayerData { ffn, ..*self }
    }

    /// Returns the layer's weights.
    pub fn ffn(&self) -> &'a FfnWeights {
        self.ffn
    }

    /// Returns the FFN's activation.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// Returns the number of tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns the ranges of tokens by purpose.
    ///
    /// # Errors
    /// [`Error::Invalid`] without tokens.
    pub fn split(&self) -> Result<DataSplit> {
        match self.tokens {
            0 => Err(Error::invalid("predictor data", "at least one token", 0)),
            tokens => Ok(DataSplit::new(tokens)),
        }
    }

    /// Returns the width of the residual stream.
    pub fn d(&self) -> usize {
        self.d
    }

    /// Returns the number of neurons.
    pub fn n_ff(&self) -> usize {
        self.ffn.up.weight.rows()
    }

    /// Returns the firing rows, `[n_ff, d]`: the gate, or the up matrix of an ungated FFN.
    pub(super) fn firing_rows(&self) -> &'a Linear {
        self.ffn.gate.as_ref().unwrap_or(&self.ffn.up)
    }

    /// Copies the rows of `tokens` into `out`, which becomes `[tokens, d]`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the input was not recorded.
    pub(super) fn copy(&self, input: PredictorInput, tokens: Range<usize>, out: &mut Vec<f32>) -> Result<()> {
        let rows = match (input, &self.residual) {
            (PredictorInput::Normed, _) => &self.normed,
            (PredictorInput::Residual, Some(residual)) => residual,
            (PredictorInput::Residual, None) => {
                return Err(Error::invalid(
                    "predictor data",
                    "the residual stream and the input of the FFN",
                    "only the input of the FFN",
                ));
            }
        };
        out.resize(tokens.len() * self.d, 0.0);
        for (t, out) in tokens.zip(out.chunks_exact_mut(self.d.max(1))) {
            rows.copy(t, out);
        }
        Ok(())
    }

    /// Copies the FFN's inputs of the tokens `first + t`, for every `t` of `tokens`, into `out`
    /// `[tokens.len(), d]`.
    pub(super) fn gather(&self, first: usize, tokens: &[usize], out: &mut [f32]) {
        for (t, out) in tokens.iter().zip(out.chunks_exact_mut(self.d.max(1))) {
            self.normed.copy(first + t, out);
        }
    }

    /// Computes the hidden activations `[tokens, n_ff]` of inputs `x` `[tokens, d]` into `hidden`;
    /// `other` is scratch.
    pub(super) fn hidden(&self, cpu: &Cpu, x: &[f32], hidden: &mut Vec<f32>, other: &mut Vec<f32>) {
        let tokens = x.len() / self.d.max(1);
        let form = self.ffn.form(self.activation);
        let up = &self.ffn.up;
        hidden.resize(tokens * self.n_ff(), 0.0);
        let Some(gate) = &self.ffn.gate else {
            cpu.matmul(&mut [up.job(hidden)], x, tokens);
            return cpu.activate(form, hidden, None);
        };
        other.resize(tokens * self.n_ff(), 0.0);
        cpu.matmul(&mut [gate.job(hidden), up.job(other)], x, tokens);
        cpu.activate(form, hidden, Some(other));
    }
}

/// Firing neurons and their masses, token by token (compressed sparse rows).
#[derive(Debug, Clone, Default)]
pub(super) struct Firings {
    /// First token of the range.
    first: usize,
    /// Offsets of each token's neurons, `[tokens + 1]`.
    starts: Vec<usize>,
    neurons: Vec<u32>,
    /// Masses `|a_i| |d_i|`.
    mass: Vec<f32>,
}

impl Firings {
    /// Computes the firings of the tokens in `range`. Calls `progress` with the fraction done for
    /// each block; an error stops the work.
    pub fn compute(
        cpu: &Cpu,
        data: &LayerData<'_>,
        norms: &[f32],
        range: Range<usize>,
        progress: &mut dyn FnMut(f64) -> Result<()>,
    ) -> Result<Self> {
        let n_ff = data.n_ff();
        let mut firings = Firings { first: range.start, starts: vec![0], ..Firings::default() };
        let (mut x, mut hidden, mut other) = (Vec::new(), Vec::new(), Vec::new());
        let mut mask = vec![0; n_ff.div_ceil(32)];
        for start in range.clone().step_by(BLOCK) {
            progress((start - range.start) as f64 / range.len() as f64)?;
            data.copy(PredictorInput::Normed, start..range.end.min(start + BLOCK), &mut x)?;
            data.hidden(cpu, &x, &mut hidden, &mut other);
            for hidden in hidden.chunks_exact_mut(n_ff.max(1)) {
                if data.activation.is_sparse() {
                    let fired = hidden.iter().zip(norms).enumerate().filter(|(_, (a, _))| **a != 0.0);
                    firings.push(fired.map(|(i, (a, norm))| (i, a.abs() * norm)));
                } else {
                    hidden.iter_mut().zip(norms).for_each(|(a, norm)| *a = a.abs() * norm);
                    heaviest(hidden, metrics::MASS_OF_ACTIVE, &mut mask);
                    firings.push(metrics::ones(&mask).map(|i| (i, hidden[i])));
                }
            }
        }
        Ok(firings)
    }

    /// Creates firings from each token's neurons, in ascending order, with their masses.
    #[cfg(test)]
    pub fn from_tokens(tokens: &[&[(usize, f32)]]) -> Self {
        let mut firings = Firings { starts: vec![0], ..Firings::default() };
        tokens.iter().for_each(|token| firings.push(token.iter().copied()));
        firings
    }

    fn push(&mut self, fired: impl Iterator<Item = (usize, f32)>) {
        for (i, mass) in fired {
            self.neurons.push(i as u32);
            self.mass.push(mass);
        }
        self.starts.push(self.neurons.len());
    }

    /// Returns the number of tokens.
    pub fn tokens(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the tokens' range in the layer's data.
    pub fn range(&self) -> Range<usize> {
        self.first..self.first + self.tokens()
    }

    /// Returns the neurons that fired at token `t`, ascending, and their masses.
    pub fn token(&self, t: usize) -> (&[u32], &[f32]) {
        let at = self.starts[t]..self.starts[t + 1];
        (&self.neurons[at.clone()], &self.mass[at])
    }

    /// Returns the number of tokens at which each neuron fired, `[n_ff]`.
    pub fn counts(&self, n_ff: usize) -> Vec<u32> {
        let mut counts = vec![0; n_ff];
        self.neurons.iter().for_each(|i| counts[*i as usize] += 1);
        counts
    }
}
