//! Thresholds of skipped neurons from histograms of their scores on a calibration text.

use std::sync::Arc;

use super::{Control, SkipScore, SkipSetup};
use crate::sparsity::predictor::{WorthSums, norm};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::Cpu;
use thermocline_model::{Ffn, FfnWeights, Model};
use thermocline_run::runtime::{Forward, Outputs, Probe, Sparsity};

/// Tokens at the beginning of a context that are not calibrated on. Their activations are unusual.
const FIRST_TOKENS: usize = 4;
/// Fraction of the gates that are silent when firings are counted for the hot half.
const SILENT: f64 = 0.4;
/// Bins of a histogram per power of two.
const BINS_PER_OCTAVE: f64 = 32.0;
/// Smallest power of two of a histogram.
const FIRST_OCTAVE: f64 = -40.0;
/// Bins of a histogram.
const BINS: usize = 64 * BINS_PER_OCTAVE as usize;

/// Counts of scores, by their logarithm.
#[derive(Debug, Clone)]
struct ScoreHistogram(Vec<u64>);

impl ScoreHistogram {
    fn new() -> Self {
        ScoreHistogram(vec![0; BINS])
    }

    fn add(&mut self, score: f32) {
        let bin = (f64::from(score).log2() - FIRST_OCTAVE) * BINS_PER_OCTAVE;
        self.0[bin.clamp(0.0, (BINS - 1) as f64) as usize] += 1;
    }

    /// Number of scores of at most `threshold`, about.
    fn below(&self, threshold: f64) -> u64 {
        let bins = (threshold.log2() - FIRST_OCTAVE) * BINS_PER_OCTAVE;
        self.0[..bins.clamp(0.0, BINS as f64) as usize].iter().sum()
    }

    fn count(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// Histograms of one layer: of neurons in VRAM and of neurons in RAM.
type SideHistograms = [ScoreHistogram; 2];

/// The threshold for neurons in RAM at which `share` of the scores are at most the thresholds of
/// their sides, by bisection. The threshold in VRAM is lower by `factor`.
fn threshold(layers: &[SideHistograms], share: f64, factor: f64) -> f64 {
    let all: u64 = layers.iter().flatten().map(ScoreHistogram::count).sum();
    let (mut low, mut high) = (FIRST_OCTAVE, -FIRST_OCTAVE);
    for _ in 0..60 {
        let middle: f64 = 0.5 * (low + high);
        let in_ram = middle.exp2();
        let skipped: u64 = layers.iter().map(|[hot, cold]| hot.below(in_ram / factor) + cold.below(in_ram)).sum();
        if (skipped as f64) < share * all as f64 { low = middle } else { high = middle }
    }
    high.exp2()
}

/// Worths and scores of all layers, measured on the calibration text.
pub(super) struct CalibratedSkips {
    /// Worth of a gate's activation of 1, per layer, `[n_ff]`.
    worths: Vec<Vec<f32>>,
    /// True for neurons in VRAM, per layer, `[n_ff]`.
    pub hot: Vec<Vec<bool>>,
    /// Per layer, of the gates' magnitudes and of the worths.
    gates: Vec<SideHistograms>,
    scores: Vec<SideHistograms>,
    /// Ratio of the thresholds in RAM to the thresholds in VRAM.
    factor: f64,
}

impl CalibratedSkips {
    pub fn new(
        forward: &mut Forward,
        cpu: &Cpu,
        ffns: &[&FfnWeights],
        setup: &SkipSetup<'_>,
        control: &mut dyn Control,
    ) -> Result<Self> {
        let width = |ffn: &&FfnWeights| ffn.up.weight.rows();
        let both = || vec![[ScoreHistogram::new(), ScoreHistogram::new()]; ffns.len()];
        let mut sums: Vec<WorthSums> = ffns.iter().map(|ffn| WorthSums::new(width(ffn))).collect();
        let mut gates = both();
        read(forward, cpu, setup, control, &mut |at, row: &NeuronRow<'_>| {
            row.gates.iter().for_each(|gate| gates[at][1].add(gate.abs()));
            let mut out = vec![0.0; ffns[at].down.outputs()];
            ffns[at].down.product(cpu, None, &row.hidden(), 1, &mut out);
            sums[at].add(row.up, norm(&out));
        })?;
        let worths: Vec<Vec<f32>> = ffns.iter().zip(&sums).map(|(ffn, sums)| sums.scales(ffn)).collect();
        let silent: Vec<f32> = gates.iter().map(|of| threshold(std::slice::from_ref(of), SILENT, 1.0) as f32).collect();
        let mut firings: Vec<Vec<u32>> = ffns.iter().map(|ffn| vec![0; width(ffn)]).collect();
        read(forward, cpu, setup, control, &mut |at, row| {
            let fires = row.gates.iter().map(|gate| u32::from(gate.abs() > silent[at]));
            firings[at].iter_mut().zip(fires).for_each(|(count, fires)| *count += fires);
        })?;
        let hot: Vec<Vec<bool>> = firings.iter().map(|counts| hottest_half(counts)).collect();
        let (mut gates, mut scores) = (both(), both());
        read(forward, cpu, setup, control, &mut |at, row| {
            for (j, gate) in row.gates.iter().enumerate() {
                let side = usize::from(!hot[at][j]);
                gates[at][side].add(gate.abs());
                scores[at][side].add(gate.abs() * worths[at][j]);
            }
        })?;
        Ok(CalibratedSkips { worths, hot, gates, scores, factor: setup.ratio.sqrt() })
    }

    /// Returns `model` with the thresholds that skip `share` of the rows by `score`.
    pub fn apply(&self, model: &Model, score: SkipScore, share: f64) -> Model {
        let histograms = if score.worth { &self.scores } else { &self.gates };
        let factor = if score.sides { self.factor } else { 1.0 };
        let of_all = threshold(histograms, share, factor);
        let mut model = model.clone();
        for (at, layer) in model.weights.layers.iter_mut().enumerate() {
            let own = if score.by_layer { threshold(&histograms[at..=at], share, factor) } else { of_all };
            layer.activation_threshold = Some(own as f32);
            let scale = |(worth, hot): (&f32, &bool)| {
                let side = if *hot { factor as f32 } else { 1.0 };
                if score.worth { worth * side } else { side }
            };
            let scales = self.worths[at].iter().zip(&self.hot[at]).map(scale).collect();
            layer.ffn.ffns_mut().for_each(|ffn| ffn.gate_scales = Some(Arc::clone(&scales)));
        }
        model
    }
}

/// The half of the neurons with the most firings.
fn hottest_half(counts: &[u32]) -> Vec<bool> {
    let mut order: Vec<usize> = (0..counts.len()).collect();
    order.sort_by_key(|neuron| std::cmp::Reverse(counts[*neuron]));
    let mut hot = vec![false; counts.len()];
    order[..counts.len() / 2].iter().for_each(|neuron| hot[*neuron] = true);
    hot
}

/// The neurons of a layer for one token.
struct NeuronRow<'a> {
    /// Activated gates, `[n_ff]`.
    gates: &'a [f32],
    /// Up values, `[n_ff]`.
    up: &'a [f32],
}

impl NeuronRow<'_> {
    fn hidden(&self) -> Vec<f32> {
        self.gates.iter().zip(self.up).map(|(gate, up)| gate * up).collect()
    }
}

/// Computes the calibration text densely, and calls `each` with the neurons of every layer and
/// token.
fn read(
    forward: &mut Forward,
    cpu: &Cpu,
    setup: &SkipSetup<'_>,
    control: &mut dyn Control,
    each: &mut dyn FnMut(usize, &NeuronRow<'_>),
) -> Result<()> {
    let model = Arc::clone(forward.model());
    forward.set_sparsity(Sparsity::Dense);
    let mut kv = forward.kv_cache(setup.calibration.longest(), setup.kv_type)?;
    for passage in &setup.calibration.passages {
        kv.truncate(0);
        let positions = vec![0; model.config.n_layer()];
        let mut probe = NeuronProbe { cpu, model: &model, positions, gates: Vec::new(), each: &mut *each };
        let tokens = &passage.tokens[..passage.computed()];
        forward.run(tokens, &mut kv, Outputs::None, &mut probe)?;
        if control.cancelled() {
            return Err(Error::Cancelled);
        }
        control.computed(tokens.len() as u64);
    }
    Ok(())
}

/// Activates gates and passes the neurons on, except those of the first tokens.
struct NeuronProbe<'a> {
    cpu: &'a Cpu,
    model: &'a Model,
    /// Tokens seen so far, per layer.
    positions: Vec<usize>,
    gates: Vec<f32>,
    each: &'a mut dyn FnMut(usize, &NeuronRow<'_>),
}

impl Probe for NeuronProbe<'_> {
    fn wants_ffn_hidden(&mut self) -> bool {
        true
    }

    fn ffn_hidden(&mut self, layer: usize, tokens: usize, gate: &[f32], up: &[f32]) {
        let Ffn::Dense(ffn) = &self.model.weights.layers[layer].ffn else { return };
        self.gates.clear();
        self.gates.extend_from_slice(gate);
        self.cpu.activate(ffn.form(self.model.config.activation), &mut self.gates, None);
        let n = (gate.len() / tokens.max(1)).max(1);
        let first = FIRST_TOKENS.saturating_sub(self.positions[layer]);
        for (gates, up) in self.gates.chunks_exact(n).zip(up.chunks_exact(n)).skip(first) {
            (self.each)(layer, &NeuronRow { gates, up });
        }
        self.positions[layer] += tokens;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_skip_the_requested_share_on_both_sides_together() {
        let mut histograms = [ScoreHistogram::new(), ScoreHistogram::new()];
        // Scores of 0 to 1 in VRAM, and of 0 to 0.5 in RAM.
        for i in 1..=10_000 {
            histograms[0].add(i as f32 / 10_000.0);
            histograms[1].add(i as f32 / 20_000.0);
        }
        for (factor, in_ram) in [(1.0, 0.25), (2.0, 0.3), (4.0, 0.333)] {
            // Below t / factor in VRAM and 2 t in RAM, of two.
            let found = threshold(std::slice::from_ref(&histograms), (in_ram / factor + 2.0 * in_ram) / 2.0, factor);
            assert!((found / in_ram - 1.0).abs() < 0.05, "{factor}: {found}");
        }
        let none = threshold(std::slice::from_ref(&histograms), 0.0, 1.0);
        assert!(none < 1e-6, "{none}");
        assert_eq!(hottest_half(&[3, 9, 1, 9, 5]), [false, true, false, true, false]);
    }
}
