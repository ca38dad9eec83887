//! Thresholds of product inputs, layer by layer. For each site of a layer, the error of the layer's
//! output is measured while only this site skips more and more of its inputs. Then the number of
//! skipped weights grows from zero in small steps, each at the site with the lowest cost. This is
//! TEAL's greedy rule, with the errors of sites added up. Finally, whole passes are compared at a
//! few levels.

use std::sync::Arc;

use super::workspace::Workspace;
use thermocline_base::error::Result;
use thermocline_cpu::{Cpu, CpuOptions, ThreadPool};
use thermocline_model::{
    Down, Ffn, InputCurves, InputFigures, InputSite, Linear, Model, SiteCurve, SiteThreshold, SkippedInputs,
};
use thermocline_run::runtime::{
    CpuProcessor, Forward, KvCache, KvType, Outputs, Pass, Processor, Sequences, compute_layer,
};

/// Levels with thresholds. Level `n` skips `n * STEPS` percent of a layer's weights.
const LEVELS: std::ops::RangeInclusive<usize> = 1..=15;
/// Steps of one percent between levels.
const STEPS: usize = 5;
/// Levels whose cost is measured in whole passes.
const MEASURED: [f32; 3] = [0.25, 0.4, 0.5];
/// Number of measured fractions of a site's inputs: 1 to `GRID` tenths.
const GRID: usize = 9;
/// Tokens for finding thresholds. The other tokens are for measuring.
const TOKENS: usize = 256;

/// Finds the thresholds of every layer of `model` on one half of `samples`, and measures the cost
/// of levels on the other half. Calls `progress` with the fraction done and the layer.
pub(super) fn find(
    model: &Model,
    options: &CpuOptions,
    workers: Arc<ThreadPool>,
    samples: &[Vec<u32>],
    workspace: &Workspace,
    progress: &mut dyn FnMut(f64, usize) -> Result<()>,
) -> Result<(Vec<Option<InputCurves>>, Vec<InputFigures>)> {
    let cpu = || Cpu::with_workers(options, Arc::clone(&workers));
    let mut model = model.clone();
    let (mut chunks, mut tokens) = (Vec::new(), 0);
    for text in samples.iter().step_by(2).filter(|text| !text.is_empty()) {
        if tokens < TOKENS {
            tokens += text.len();
            chunks.push(CalibrationText::new(&model, cpu()?, text)?);
        }
    }
    let n_layer = model.config.n_layer();
    for layer in 0..n_layer {
        progress(layer as f64 / (n_layer + MEASURED.len()) as f64, layer)?;
        let known = workspace.inputs(layer);
        let wanted = known.is_none() && has_sites(&model, layer) && !chunks.is_empty();
        let recorded = pass(&model, layer, &mut chunks, wanted)?;
        let curves = match known {
            Some(curves) => curves,
            None => {
                let curves = match wanted {
                    true => Some(curves(&mut model, layer, &cpu()?, &mut chunks, &recorded)?),
                    false => None,
                };
                workspace.keep_inputs(layer, &curves)?;
                curves
            }
        };
        model.weights.layers[layer].input_curves = curves;
        chunks.iter_mut().for_each(CalibrationText::keep_output);
    }
    let found: Vec<Option<InputCurves>> = model.weights.layers.iter().map(|layer| layer.input_curves.clone()).collect();
    let others: Vec<&[u32]> = samples.iter().skip(1).step_by(2).map(Vec::as_slice).collect();
    let others = if others.is_empty() { samples.iter().map(Vec::as_slice).collect() } else { others };
    let mut figures = Vec::new();
    if found.iter().any(Option::is_some) {
        let dense = logits(&mut dense_pass(&model, cpu()?), &others)?;
        for (at, level) in MEASURED.into_iter().enumerate() {
            progress((n_layer + at) as f64 / (n_layer + MEASURED.len()) as f64, n_layer.saturating_sub(1))?;
            let copies = model.skip_inputs(level)?;
            let got = logits(&mut dense_pass(&model, cpu()?), &others)?;
            let skippable = copies.skippable as f64 / (copies.weights as f64).max(1.0);
            figures.push(compare(level, &others, &dense, &got, 1.0 - f64::from(level) * skippable));
        }
    }
    Ok((found, figures))
}

/// True if the layer can skip small inputs and can be computed repeatedly.
fn has_sites(model: &Model, layer: usize) -> bool {
    let (config, weights) = (&model.config.layers[layer], &model.weights.layers[layer]);
    config.state().is_none() && InputSite::ALL.iter().any(|site| site.inputs(weights) > 0)
}

/// A text and its state before a layer.
struct CalibrationText<'t> {
    processor: CpuProcessor,
    kv: KvCache,
    tokens: &'t [u32],
    /// Input and output of the layer, `[tokens, d_model]`.
    input: Vec<f32>,
    output: Vec<f32>,
}

impl<'t> CalibrationText<'t> {
    fn new(model: &Model, cpu: Cpu, text: &'t [u32]) -> Result<Self> {
        let mut processor = CpuProcessor::new(cpu);
        processor.calibration().in_chunks = true;
        let mut kv = KvCache::for_passes(&model.config, text.len(), KvType::F16, text.len())?;
        let mut unobserved = ();
        let pass = &Pass::new(model, text, &mut unobserved);
        processor.begin(pass, &Sequences::one(&mut kv, text.len()))?;
        let input = processor.current_residual(pass).to_vec();
        Ok(CalibrationText { processor, kv, tokens: text, input, output: Vec::new() })
    }

    /// Computes the layer from the processor's current state.
    fn go_on(&mut self, model: &Model, layer: usize) -> Result<&[f32]> {
        let (mut unobserved, mut sequence) = ((), Sequences::one(&mut self.kv, self.tokens.len()));
        let mut pass = Pass::new(model, self.tokens, &mut unobserved);
        compute_layer(&mut self.processor, &mut pass, layer, &mut sequence)?;
        Ok(self.processor.current_residual(&pass))
    }

    /// Computes the layer from `input`.
    fn compute(&mut self, model: &Model, layer: usize) -> Result<&[f32]> {
        self.processor.take_residual(model, &self.input, self.tokens.len())?;
        self.go_on(model, layer)
    }

    /// Makes the whole layer's output the next layer's input. Later trials do not affect it.
    fn keep_output(&mut self) {
        std::mem::swap(&mut self.input, &mut self.output);
    }
}

/// Computes a layer for all chunks, without skipping. Returns the inputs of its sites if they are
/// `wanted`.
fn pass(model: &Model, layer: usize, chunks: &mut [CalibrationText<'_>], wanted: bool) -> Result<[Vec<f32>; 4]> {
    let mut recorded = Box::<[Vec<f32>; 4]>::default();
    for chunk in chunks {
        chunk.processor.calibration().recorded = wanted.then(|| std::mem::take(&mut recorded));
        // Several streams do not fit into one residual, so these layers continue from the
        // processor's state.
        if model.config.streams() > 1 {
            chunk.output = chunk.go_on(model, layer)?.to_vec();
        } else {
            chunk.output = chunk.compute(model, layer)?.to_vec();
        }
        if let Some(back) = chunk.processor.calibration().recorded.take() {
            recorded = back;
        }
    }
    Ok(*recorded)
}

/// Ascending importances of a site's inputs on the calibration text.
struct SortedImportances(Vec<f32>);

impl SortedImportances {
    fn new(inputs: &[f32], importance: &[f32]) -> Self {
        let rows = inputs.chunks_exact(importance.len().max(1));
        let mut all: Vec<f32> = rows.flat_map(|row| row.iter().zip(importance).map(|(x, of)| x.abs() * of)).collect();
        all.sort_unstable_by(f32::total_cmp);
        SortedImportances(all)
    }

    /// Returns the importance that the fraction `part` does not exceed.
    fn below(&self, part: f64) -> f32 {
        match (part * self.0.len() as f64) as usize {
            0 => 0.0,
            n => self.0[n.min(self.0.len()) - 1],
        }
    }
}

/// Finds the thresholds of one layer. `recorded` are the inputs of its sites.
fn curves(
    model: &mut Model,
    layer: usize,
    cpu: &Cpu,
    chunks: &mut [CalibrationText<'_>],
    recorded: &[Vec<f32>; 4],
) -> Result<InputCurves> {
    let weights = &model.weights.layers[layer];
    let sites: Vec<(InputSite, Arc<[f32]>, usize, SortedImportances)> = InputSite::ALL
        .into_iter()
        .filter(|site| site.inputs(weights) > 0 && !recorded[*site as usize].is_empty())
        .map(|site| {
            let linears = site.linears(weights);
            let by_neuron = matches!(&weights.ffn, Ffn::Dense(ffn) if matches!(ffn.down, Down::Neurons(_)));
            let importance: Arc<[f32]> = norms(cpu, &linears, by_neuron && site == InputSite::Hidden).into();
            let size = linears.iter().map(|linear| linear.weight.rows() * linear.weight.cols()).sum();
            let sorted = SortedImportances::new(&recorded[site as usize], &importance);
            (site, importance, size, sorted)
        })
        .collect();
    // Squared errors of the layer's output, by site and by skipped fraction of its inputs.
    let mut errors = vec![[0.0; GRID + 1]; sites.len()];
    for ((site, importance, _, sorted), errors) in sites.iter().zip(&mut errors) {
        for (part, error) in errors.iter_mut().enumerate().skip(1) {
            let threshold = sorted.below(part as f64 / (GRID + 1) as f64);
            let mut trial: [Option<SiteThreshold>; 4] = Default::default();
            trial[*site as usize] = Some(SiteThreshold { importance: Arc::clone(importance), threshold });
            model.weights.layers[layer].skipped_inputs = Some(Box::new(SkippedInputs::new(trial)));
            for chunk in &mut *chunks {
                let output = std::mem::take(&mut chunk.output);
                let got = chunk.compute(model, layer)?;
                *error += got.iter().zip(&output).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
                chunk.output = output;
            }
        }
    }
    model.weights.layers[layer].skipped_inputs = None;
    let sizes: Vec<usize> = sites.iter().map(|(_, _, size, _)| *size).collect();
    let levels: Vec<f32> = LEVELS.map(|at| (at * STEPS) as f32 / 100.0).collect();
    let parts = raise(&sizes, &errors, levels.len());
    let mut curves = InputCurves { levels, sites: Default::default() };
    for (at, (site, importance, _, sorted)) in sites.iter().enumerate() {
        let thresholds = parts.iter().map(|parts| sorted.below(parts[at])).collect();
        curves.sites[*site as usize] = Some(SiteCurve { importance: importance.to_vec(), thresholds });
    }
    Ok(curves)
}

/// Returns the fraction of each site's inputs to skip at every level. `sizes` are the sites'
/// weights, and `errors` their errors at tenths of their inputs.
fn raise(sizes: &[usize], errors: &[[f64; GRID + 1]], levels: usize) -> Vec<Vec<f64>> {
    let total: usize = sizes.iter().sum();
    let most = GRID as f64 / (GRID + 1) as f64;
    let error = |site: usize, part: f64| {
        let at = part * (GRID + 1) as f64;
        let below = (at as usize).min(GRID - 1);
        let (a, b) = (errors[site][below], errors[site][below + 1]);
        a + (at - below as f64) * (b - a)
    };
    let mut parts = vec![0.0; sizes.len()];
    let mut found = Vec::with_capacity(levels);
    for _ in 0..levels {
        // If the best site has no room for a whole step, another site takes the rest of the step.
        let mut left = STEPS as f64 / 100.0 * total as f64;
        while left > 1e-9 * total as f64 {
            let step = left.min(0.01 * total as f64);
            let to = |site: usize| (parts[site] + step / sizes[site] as f64).min(most);
            let best = (0..sizes.len()).filter(|site| parts[*site] < most).min_by(|a, b| {
                let cost = |site: usize| {
                    let gain = (to(site) - parts[site]) * sizes[site] as f64;
                    (error(site, to(site)) - error(site, parts[site])) / gain
                };
                cost(*a).total_cmp(&cost(*b))
            });
            let Some(best) = best else { break };
            let next = to(best);
            left -= ((next - parts[best]) * sizes[best] as f64).max(1e-9 * total as f64);
            parts[best] = next;
        }
        found.push(parts.clone());
    }
    found
}

/// Returns the norms of the columns of `linears`, stacked, divided by their mean. With `by_row`,
/// returns the norms of the rows, for a matrix with one row per input.
fn norms(cpu: &Cpu, linears: &[&Linear], by_row: bool) -> Vec<f32> {
    let inputs = linears.first().map_or(0, |of| if by_row { of.weight.rows() } else { of.weight.cols() });
    let parts = cpu.pool().threads();
    let mut sums = vec![(0, vec![0f64; inputs]); parts];
    sums.iter_mut().enumerate().for_each(|(at, (part, _))| *part = at);
    cpu.pool().for_each(&mut sums, |_, (part, sums)| {
        for linear in linears {
            let mut values = vec![0.0; linear.weight.cols()];
            for row in (*part..linear.weight.rows()).step_by(parts) {
                linear.weight.dequantise_row(row, &mut values);
                match by_row {
                    true => sums[row] += values.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>(),
                    false => sums.iter_mut().zip(&values).for_each(|(sum, w)| *sum += f64::from(*w).powi(2)),
                }
            }
        }
    });
    let norms: Vec<f64> = (0..inputs).map(|at| sums.iter().map(|(_, sums)| sums[at]).sum::<f64>().sqrt()).collect();
    let mean = norms.iter().sum::<f64>() / inputs.max(1) as f64;
    // Inputs without weights have no weights to skip.
    norms.iter().map(|norm| if mean > 0.0 { (norm / mean) as f32 } else { 1.0 }).collect()
}

/// Creates a forward pass that skips inputs in chunks as it would for generated tokens.
fn dense_pass(model: &Model, cpu: Cpu) -> Forward {
    let mut processor = CpuProcessor::new(cpu);
    processor.calibration().in_chunks = true;
    Forward::on(Arc::new(model.clone()), Box::new(processor))
}

/// Returns the log-probabilities after every token of each text except the last, `[tokens,
/// n_vocab]`.
fn logits(forward: &mut Forward, texts: &[&[u32]]) -> Result<Vec<Vec<f32>>> {
    let n_vocab = forward.model().config.n_vocab;
    let mut all = Vec::new();
    for text in texts.iter().filter(|text| text.len() > 1) {
        let mut kv = forward.kv_cache(text.len(), KvType::F16)?;
        let rows = forward.run(&text[..text.len() - 1], &mut kv, Outputs::All, &mut ())?;
        all.extend(rows.chunks_exact(n_vocab).map(|row| {
            let most = row.iter().copied().fold(f32::MIN, f32::max);
            let sum: f64 = row.iter().map(|x| f64::from(x - most).exp()).sum();
            row.iter().map(|x| x - most - sum.ln() as f32).collect()
        }));
    }
    Ok(all)
}

/// Compares a level with the dense model. `read` is the fraction of the layers' bytes that the
/// level reads.
fn compare(level: f32, texts: &[&[u32]], dense: &[Vec<f32>], got: &[Vec<f32>], read: f64) -> InputFigures {
    let next = texts.iter().filter(|text| text.len() > 1).flat_map(|text| &text[1..]);
    let top = |row: &[f32]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
    let (mut nats, mut sum, mut squares, mut same) = ([0.0; 2], 0.0, 0.0, 0u64);
    for ((dense, got), next) in dense.iter().zip(got).zip(next) {
        for (nats, row) in nats.iter_mut().zip([dense, got]) {
            *nats -= f64::from(row[*next as usize]);
        }
        let kl: f64 = dense.iter().zip(got).map(|(p, q)| f64::from(*p).exp() * f64::from(p - q)).sum();
        (sum, squares) = (sum + kl, squares + kl * kl);
        same += u64::from(top(dense) == top(got));
    }
    let n = (dense.len() as f64).max(1.0);
    let kl = sum / n;
    InputFigures {
        level: (f64::from(level) * 1e3).round() / 1e3,
        dense_perplexity: (nats[0] / n).exp(),
        perplexity: (nats[1] / n).exp(),
        kl,
        kl_error: ((squares / n - kl * kl).max(0.0) / n).sqrt(),
        same_top: same as f64 / n,
        read,
        tokens: dense.len() as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns errors that grow with the square of the skipped fraction, times a site's factor.
    fn squares(factor: f64) -> [f64; GRID + 1] {
        std::array::from_fn(|at| factor * (at as f64 / (GRID + 1) as f64).powi(2))
    }

    #[test]
    fn parts_are_raised_where_they_cost_least_and_reach_every_level() {
        let sizes = [100, 100, 300];
        let parts = raise(&sizes, &[squares(1.0), squares(8.0), squares(1.5)], 15);
        for (at, parts) in parts.iter().enumerate() {
            let skipped: f64 = parts.iter().zip(sizes).map(|(part, size)| part * size as f64).sum();
            let wanted = (at + 1) as f64 * 0.05 * 500.0;
            assert!((skipped - wanted).abs() < 1e-3, "level {at}: {skipped} of {wanted}");
            assert!(parts.iter().all(|part| (0.0..=0.9 + 1e-9).contains(part)));
        }
        // The site with the smallest error for its size skips the most inputs, the site with the
        // largest the fewest.
        let at_half = &parts[9];
        assert!(at_half[2] > at_half[0] && at_half[0] > at_half[1], "{at_half:?}");
        for pair in parts.windows(2) {
            assert!(pair[0].iter().zip(&pair[1]).all(|(a, b)| a <= b), "{pair:?}");
        }
    }

    #[test]
    fn quantiles_skip_the_asked_part() {
        let sorted = SortedImportances::new(&[1.0, -2.0, 3.0, -4.0, 0.5, 6.0, 7.0, 8.0, 9.0, 10.0], &[1.0, 1.0]);
        let below = |part: f64| sorted.0.iter().filter(|x| **x <= sorted.below(part)).count();
        assert_eq!([0.0, 0.1, 0.5, 0.9].map(below), [0, 1, 5, 9]);
    }

    #[test]
    fn equal_logits_cost_nothing() {
        let row = vec![0.25f32.ln(); 4];
        let figures = compare(0.4, &[&[0, 1, 2]], &[row.clone(), row.clone()], &[row.clone(), row], 0.7);
        assert_eq!((figures.kl, figures.same_top, figures.tokens), (0.0, 1.0, 2));
        assert!((figures.perplexity - 4.0).abs() < 1e-5 && figures.perplexity == figures.dense_perplexity);
        assert_eq!(figures.level, 0.4);
    }
}
