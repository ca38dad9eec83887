//! Scales of gates: the worth of a neuron whose activated gate is 1.
//!
//! Neuron `j` adds `g_j u_j d_j` to the FFN's output. `g_j` is its activated gate, `u_j` its up
//! value and `d_j` its down vector. `u_j` is unknown until its row has been read, so its root mean
//! square `r_j` on a calibration text replaces it. Without the neuron, the expected error is
//! `|g_j| r_j |d_j|`. The scale is `r_j |d_j| / o`, where `o` is the mean norm of the FFN's
//! outputs, so that scaled gates of different layers compare.

use std::collections::BTreeMap;

use super::{
    data::{BLOCK, LayerData},
    metrics::down_norms,
};
use thermocline_base::error::Result;
use thermocline_cpu::Cpu;
use thermocline_model::FfnWeights;

/// Most tokens that scales are measured on.
const MAX_TOKENS: usize = 512;
/// Tokens whose outputs have norms this many octaves above the median do not count. The first
/// tokens of a text often have such outputs.
const OUTLIER_OCTAVES: i32 = 3;

/// Sums over tokens that give an FFN's scales.
#[derive(Debug, Clone)]
pub(crate) struct WorthSums {
    n_ff: usize,
    /// Sums over the tokens whose outputs have norms of one octave, by the octave.
    octaves: BTreeMap<i32, OctaveSums>,
}

/// Sums over tokens whose outputs have similar norms.
#[derive(Debug, Clone)]
struct OctaveSums {
    /// Squares of the up values, `[n_ff]`.
    squares: Vec<f64>,
    /// Norms of the outputs.
    outputs: f64,
    tokens: u64,
}

impl OctaveSums {
    fn new(n_ff: usize) -> Self {
        OctaveSums { squares: vec![0.0; n_ff], outputs: 0.0, tokens: 0 }
    }

    fn add(&mut self, squares: impl Iterator<Item = f64>, outputs: f64, tokens: u64) {
        self.squares.iter_mut().zip(squares).for_each(|(sum, square)| *sum += square);
        self.outputs += outputs;
        self.tokens += tokens;
    }
}

impl WorthSums {
    /// Starts without tokens, for `n_ff` neurons.
    pub fn new(n_ff: usize) -> Self {
        WorthSums { n_ff, octaves: BTreeMap::new() }
    }

    /// Adds a token's up values, `[n_ff]`, and the norm of its output.
    pub fn add(&mut self, up: &[f32], output: f32) {
        let sums = self.octaves.entry(output.log2().floor() as i32).or_insert_with(|| OctaveSums::new(self.n_ff));
        sums.add(up.iter().map(|up| f64::from(*up) * f64::from(*up)), f64::from(output), 1);
    }

    /// Returns the scales of the gates of `ffn`, `[n_ff]`.
    pub fn scales(&self, ffn: &FfnWeights) -> Vec<f32> {
        let all: u64 = self.octaves.values().map(|of| of.tokens).sum();
        let mut below = 0;
        let median = self.octaves.iter().find(|(_, of)| {
            below += of.tokens;
            2 * below >= all
        });
        let most = median.map_or(0, |(octave, _)| octave.saturating_add(OUTLIER_OCTAVES));
        let mut usual = OctaveSums::new(self.n_ff);
        for of in self.octaves.range(..most).map(|(_, of)| of) {
            usual.add(of.squares.iter().copied(), of.outputs, of.tokens);
        }
        let tokens = usual.tokens.max(1) as f64;
        let output = (usual.outputs / tokens).max(f64::MIN_POSITIVE);
        let scale = |(sum, norm): (&f64, f32)| ((sum / tokens).sqrt() * f64::from(norm) / output) as f32;
        let finite = |scale: f32| if scale.is_finite() { scale } else { 1.0 };
        usual.squares.iter().zip(down_norms(ffn)).map(scale).map(finite).collect()
    }
}

/// Returns the Euclidean norm of a vector.
pub(crate) fn norm(values: &[f32]) -> f32 {
    values.iter().map(|value| f64::from(*value) * f64::from(*value)).sum::<f64>().sqrt() as f32
}

/// Measures the scales of the gates of a layer, `[n_ff]`, on tokens that are spread evenly over the
/// part of the text that trains predictors.
///
/// # Errors
/// [`Error::Invalid`](thermocline_base::error::Error::Invalid) without tokens.
pub fn gate_scales(cpu: &Cpu, data: &LayerData<'_>) -> Result<Vec<f32>> {
    let (range, ffn) = (data.split()?.train, data.ffn());
    let (d, n_ff, outputs) = (data.d().max(1), data.n_ff().max(1), ffn.down.outputs().max(1));
    let count = range.len().min(MAX_TOKENS);
    let tokens: Vec<usize> = (0..count).map(|at| at * range.len() / count).collect();
    let (mut x, mut up, mut out) = (vec![0.0; BLOCK * d], vec![0.0; BLOCK * n_ff], vec![0.0; BLOCK * outputs]);
    let (mut hidden, mut other, mut sums) = (Vec::new(), Vec::new(), WorthSums::new(data.n_ff()));
    for tokens in tokens.chunks(BLOCK) {
        let n = tokens.len();
        let (x, up, out) = (&mut x[..n * d], &mut up[..n * n_ff], &mut out[..n * outputs]);
        data.gather(range.start, tokens, x);
        cpu.matmul(&mut [ffn.up.job(&mut *up)], x, n);
        data.hidden(cpu, x, &mut hidden, &mut other);
        ffn.down.product(cpu, None, &hidden, n, out);
        up.chunks_exact(n_ff).zip(out.chunks_exact(outputs)).for_each(|(up, out)| sums.add(up, norm(out)));
    }
    Ok(sums.scales(ffn))
}
