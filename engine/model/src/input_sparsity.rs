//! Input sparsity: a product treats small inputs as zero and does not read their weights (TEAL, Liu
//! et al. 2024). An input is small if its magnitude times the norm of its weight column is small
//! (WINA, Chen et al. 2025).

use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use super::{Down, Ffn, FfnWeights, LayerWeights, Linear, Model};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::{Cpu, InputMajor};
use thermocline_formats::format::Matrix;

/// Input of a layer that several matrices may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputSite {
    /// Input of the query, key and value projections, `[d]`.
    Attention,
    /// Outputs of the heads, the input of attention's output projection, `[n_head * head_dim]`.
    Heads,
    /// Input of a dense FFN's gate and up matrices, `[d]`.
    Ffn,
    /// Hidden values, the input of a dense FFN's down projection, `[n_ff]`.
    Hidden,
}

impl InputSite {
    /// Every site, in the order of computation.
    pub const ALL: [InputSite; 4] = [InputSite::Attention, InputSite::Heads, InputSite::Ffn, InputSite::Hidden];

    /// Returns the name of the site in files and tables.
    pub const fn name(self) -> &'static str {
        match self {
            InputSite::Attention => "attention",
            InputSite::Heads => "heads",
            InputSite::Ffn => "ffn",
            InputSite::Hidden => "hidden",
        }
    }

    /// Returns the matrices of a layer that read this input. Empty if the layer has no such
    /// product, or another kind of it.
    pub fn linears(self, layer: &LayerWeights) -> Vec<&Linear> {
        let attention = layer.attention.as_ref().filter(|of| of.latent.is_none() && layer.altup.is_none());
        let ffn = match &layer.ffn {
            Ffn::Dense(ffn) if layer.altup.is_none() => Some(ffn),
            _ => None,
        };
        match self {
            InputSite::Attention => attention.map(|of| of.inputs().collect()).unwrap_or_default(),
            InputSite::Heads => attention.map(|of| vec![&of.output]).unwrap_or_default(),
            InputSite::Ffn => ffn.map(|ffn| ffn.gate.iter().chain([&ffn.up]).collect()).unwrap_or_default(),
            InputSite::Hidden => ffn.map(|ffn| vec![ffn.down.linear()]).unwrap_or_default(),
        }
    }

    /// Returns the number of inputs; 0 if [`InputSite::linears`] is empty.
    pub fn inputs(self, layer: &LayerWeights) -> usize {
        let linears = self.linears(layer);
        match (&layer.ffn, self) {
            (Ffn::Dense(ffn), InputSite::Hidden) if !linears.is_empty() => ffn.up.weight.rows(),
            _ => linears.first().map_or(0, |linear| linear.weight.cols()),
        }
    }
}

/// Importances of a site's inputs, and the site's threshold at every level of [`InputCurves`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SiteCurve {
    /// Factor on the magnitude of each input, `[inputs]`.
    pub importance: Vec<f32>,
    /// One threshold per level, ascending. Inputs whose magnitude times importance is not above it
    /// are skipped.
    pub thresholds: Vec<f32>,
}

/// Thresholds of a layer by level.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InputCurves {
    /// Levels: fractions of the layer's weights that are skipped. Ascending, above 0 and below 1.
    pub levels: Vec<f32>,
    /// Curves by [`InputSite`]; `None` if no input of the site is skipped.
    pub sites: [Option<SiteCurve>; 4],
}

impl InputCurves {
    /// Interpolates the thresholds at `level` between those of the two nearest levels.
    fn at(&self, level: f32) -> [Option<SiteThreshold>; 4] {
        self.sites.each_ref().map(|site| {
            let SiteCurve { importance, thresholds } = site.as_ref()?;
            let (mut before, mut threshold) = ((0.0, 0.0), None);
            for point in self.levels.iter().copied().zip(thresholds.iter().copied()) {
                if level <= point.0 {
                    let part = (level - before.0) / (point.0 - before.0);
                    threshold = Some(before.1 + part * (point.1 - before.1));
                    break;
                }
                before = point;
            }
            let threshold = threshold.unwrap_or(before.1);
            Some(SiteThreshold { importance: importance.as_slice().into(), threshold })
        })
    }
}

/// Cost of a level of input sparsity on held-out text. All tokens are computed as generated tokens
/// are.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct InputFigures {
    /// Level: the fraction of the layers' weights that is not multiplied.
    pub level: f64,
    /// Perplexity of the dense model.
    pub dense_perplexity: f64,
    /// Perplexity at this level.
    pub perplexity: f64,
    /// Mean Kullback-Leibler divergence from the dense model's probabilities, in nats per token.
    pub kl: f64,
    /// Standard error of `kl`.
    pub kl_error: f64,
    /// Fraction of tokens with the same most likely token as the dense model.
    pub same_top: f64,
    /// Bytes of the layers' weights that a token reads, relative to the dense model. Scales are
    /// always read.
    pub read: f64,
    /// Number of tokens measured.
    pub tokens: u64,
}

/// Rule by which one site skips inputs.
#[derive(Debug, Clone)]
pub struct SiteThreshold {
    /// Importances, as [`SiteCurve::importance`].
    pub importance: Arc<[f32]>,
    /// Threshold at the chosen level, as in [`SiteCurve::thresholds`].
    pub threshold: f32,
}

impl InputFigures {
    /// Describes the cost in words, without a full stop.
    pub fn cost(&self) -> String {
        format!(
            "at {:.0} % perplexity {:.3} instead of {:.3}, KL {:.4} ± {:.4} nats, the same most likely token {:.1} % of the time, {:.0} % \
             of the layers' bytes read ({} tokens)",
            100.0 * self.level,
            self.perplexity,
            self.dense_perplexity,
            self.kl,
            self.kl_error,
            100.0 * self.same_top,
            100.0 * self.read,
            self.tokens
        )
    }
}

impl SiteThreshold {
    /// `out = x`, with zeros for inputs whose magnitude times importance is not above the
    /// threshold. Both are `[tokens, inputs]`.
    pub fn keep_large(&self, x: &[f32], out: &mut [f32]) {
        let n = self.importance.len().max(1);
        for (x, out) in x.chunks_exact(n).zip(out.chunks_exact_mut(n)) {
            for ((out, x), importance) in out.iter_mut().zip(x).zip(&*self.importance) {
                *out = if x.abs() * importance > self.threshold { *x } else { 0.0 };
            }
        }
    }
}

/// Largest number of matrices that read one input.
const MATRICES: usize = 3;

/// The inputs that a layer skips at the chosen level, and its matrices in input-major order.
#[derive(Debug, Default)]
pub struct SkippedInputs {
    /// Thresholds by [`InputSite`].
    pub sites: [Option<SiteThreshold>; 4],
    /// Input-major copies by site, in the order of [`InputSite::linears`]. The first single-token
    /// product makes each copy.
    copies: [[OnceLock<Option<InputMajor>>; MATRICES]; 4],
}

/// A clone has no copies, because the matrices of a cloned model may change.
impl Clone for SkippedInputs {
    fn clone(&self) -> Self {
        SkippedInputs::new(self.sites.clone())
    }
}

impl SkippedInputs {
    /// Creates the skipped inputs with these thresholds, still without copies.
    pub fn new(sites: [Option<SiteThreshold>; 4]) -> Self {
        SkippedInputs { sites, ..Self::default() }
    }

    /// Returns the rule by which `site` skips inputs.
    pub fn site(&self, site: InputSite) -> Option<&SiteThreshold> {
        self.sites[site as usize].as_ref()
    }

    /// Returns the input-major copy of `weight`, matrix `at` of `site`. `None` if its type or shape
    /// has no input-major form, or if memory is short.
    pub fn copy(&self, cpu: &Cpu, site: InputSite, at: usize, weight: &Matrix) -> Option<&InputMajor> {
        let cell = self.copies[site as usize].get(at).filter(|_| cpu.takes_inputs())?;
        let copy = cell.get_or_init(|| {
            InputMajor::new(cpu.pool(), weight).unwrap_or_else(|error| {
                tracing::warn!(%error, "a matrix is read whole because its input-major copy failed");
                None
            })
        });
        copy.as_ref()
    }
}

/// Sizes of the input-major copies of a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InputCopies {
    /// Bytes that the copies take in addition to the file's weights.
    pub bytes: u64,
    /// Bytes of all matrices whose inputs are skipped, including matrices without a copy.
    pub weights: u64,
    /// Bytes among `weights` that belong to single inputs. They are not read if their input is
    /// skipped.
    pub skippable: u64,
}

impl Model {
    /// Makes products skip inputs that are small at `level`, in every sparsity mode but
    /// [`Sparsity::Dense`](super::Sparsity::Dense). Attention skips inputs in all these modes, a
    /// dense FFN only with [`Sparsity::Threshold`](super::Sparsity::Threshold). A gate then no
    /// longer skips its neuron. Copies are made when they are first needed.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a level out of range, or for a model without thresholds.
    pub fn skip_inputs(&mut self, level: f32) -> Result<InputCopies> {
        let known = self.weights.layers.iter().filter_map(|layer| layer.input_curves.as_ref());
        let Some(most) = known.filter_map(|curves| curves.levels.last().copied()).reduce(f32::min) else {
            let got = "no input thresholds (`thermocline prepare` measures them)";
            return Err(Error::invalid("level of input sparsity", "a model with input thresholds", got));
        };
        if !(level > 0.0 && level <= most) {
            return Err(Error::invalid(
                "level of input sparsity",
                format!("a number above 0 and at most {most}"),
                level,
            ));
        }
        for layer in &mut self.weights.layers {
            let sites = layer.input_curves.as_ref().map(|curves| curves.at(level));
            // Skipped inputs replace skipped neurons, also on a device.
            layer.activation_threshold = None;
            layer.skipped_inputs = sites.map(|sites| Box::new(SkippedInputs::new(sites)));
        }
        self.weights.input_level = Some(level);
        Ok(self.input_copies(true))
    }

    /// True if some layer has thresholds for inputs.
    pub fn has_input_thresholds(&self) -> bool {
        self.weights.layers.iter().any(|layer| layer.input_curves.is_some())
    }

    /// Returns the figures of the measured level nearest to `level`.
    pub fn figures_of_level(&self, level: f32) -> Option<&InputFigures> {
        let off = |of: &InputFigures| (of.level - f64::from(level)).abs();
        self.weights.input_figures.iter().min_by(|a, b| off(a).total_cmp(&off(b)))
    }

    /// Returns the sizes of the copies for skipped inputs, including those of dense FFNs if `ffn`
    /// is true.
    pub fn input_copies(&self, ffn: bool) -> InputCopies {
        let mut copies = InputCopies::default();
        for layer in &self.weights.layers {
            let Some(skipped) = &layer.skipped_inputs else { continue };
            for site in InputSite::ALL {
                let of_ffn = matches!(site, InputSite::Ffn | InputSite::Hidden);
                if skipped.site(site).is_none() || (of_ffn && !ffn) {
                    continue;
                }
                let by_neuron = matches!(&layer.ffn, Ffn::Dense(FfnWeights { down: Down::Neurons(_), .. }));
                for linear in site.linears(layer) {
                    copies.weights += linear.weight.byte_len() as u64;
                    // A neuron-major down projection needs no copy: each of its rows already
                    // belongs to one input.
                    if by_neuron && site == InputSite::Hidden {
                        copies.skippable += linear.weight.byte_len() as u64;
                    } else if let Some(bytes) = InputMajor::bytes(&linear.weight) {
                        copies.bytes += bytes;
                        copies.skippable += InputMajor::bytes_of_inputs(&linear.weight);
                    }
                }
            }
        }
        copies
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_lie_between_those_of_the_nearest_levels() {
        let curve = SiteCurve { importance: vec![1.0, 2.0], thresholds: vec![0.2, 0.6] };
        let curves = InputCurves { levels: vec![0.25, 0.5], sites: [Some(curve), None, None, None] };
        let at = |level: f32| curves.at(level)[0].as_ref().unwrap().threshold;
        for (level, wanted) in [(0.125, 0.1), (0.25, 0.2), (0.375, 0.4), (0.5, 0.6), (0.9, 0.6)] {
            assert!((at(level) - wanted).abs() < 1e-6, "{level}: {}", at(level));
        }
        assert!(curves.at(0.3)[1].is_none());
    }

    #[test]
    fn inputs_are_kept_by_magnitude_times_importance() {
        let site = SiteThreshold { importance: [1.0, 10.0, 1.0].as_slice().into(), threshold: 0.5 };
        let mut out = [f32::NAN; 6];
        site.keep_large(&[0.4, 0.1, -0.6, -0.5, -0.04, 9.0], &mut out);
        assert_eq!(out, [0.0, 0.1, -0.6, 0.0, 0.0, 9.0]);
    }
}
