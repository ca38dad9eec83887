//! A task for the CPU: the FFNs, or parts of FFNs, to compute, and the work of computing them.

use super::{TokenInputs, products::Few};
use crate::runtime::Sparsity;
use thermocline_formats::format::Matrix;
use thermocline_model::{Activation, FfnWeights, Predictor, SkipRule, SkippedInputs, Skips};

/// Fraction of a matrix's rows from which all rows are read in order, because sequential reads are
/// faster than scattered ones.
const MOST_ROWS: f64 = 0.6;

/// An FFN (in an MoE layer, one expert), or some of its neurons.
#[derive(Debug, Clone, Copy)]
pub struct FfnBlock<'a> {
    /// Weights of the FFN.
    pub ffn: &'a FfnWeights,
    /// Factor of the FFN's output in the sum: its router weight, or 1 for a dense FFN.
    pub factor: f32,
    /// The neurons to compute, ascending; `None` for all.
    pub neurons: Option<&'a [u32]>,
    /// See [`LayerWeights::gate_deviations`](thermocline_model::LayerWeights::gate_deviations).
    /// Requires a single FFN, all of whose neurons are computed.
    pub gate_deviations: Option<f32>,
    /// Norm of the hidden values before the down projection. Requires a single FFN; the norm counts
    /// silent neurons as zeros.
    pub hidden_norm: Option<HiddenNorm<'a>>,
    /// Small inputs to skip. Requires a single FFN, all of whose neurons are computed. The FFN is
    /// then dense except for these inputs.
    pub skipped: Option<&'a SkippedInputs>,
}

/// Norm of an FFN's hidden values: `x / sqrt(mean(x^2) + eps) * weight`. The mean is over all
/// neurons.
#[derive(Debug, Clone, Copy)]
pub struct HiddenNorm<'a> {
    /// `[n_ff]`
    pub weight: &'a [f32],
    /// Added under the square root.
    pub eps: f32,
}

impl HiddenNorm<'_> {
    /// Norms one token's values of the neurons `listed`. The values of all other neurons must be
    /// zero.
    pub(super) fn apply_listed(&self, listed: &[u32], values: &mut [f32]) {
        let sum: f64 = values.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
        let scale = 1.0 / (sum / self.weight.len().max(1) as f64 + f64::from(self.eps)).sqrt();
        for (x, at) in values.iter_mut().zip(listed) {
            *x *= scale as f32 * self.weight[*at as usize];
        }
    }
}

impl<'a> FfnBlock<'a> {
    /// The whole `ffn`, with factor 1.
    pub fn whole(ffn: &'a FfnWeights) -> Self {
        FfnBlock { ffn, factor: 1.0, neurons: None, gate_deviations: None, hidden_norm: None, skipped: None }
    }
}

/// FFNs that read the same inputs `[tokens, d]`, and whose outputs `[tokens, d]` are summed.
#[derive(Debug, Clone, Copy)]
pub struct FfnTask<'a> {
    /// The FFNs. They are computed together so that all threads are busy even if each FFN is small.
    pub blocks: &'a [FfnBlock<'a>],
    /// Activation of all FFNs.
    pub activation: Activation,
    /// Sparsity mode, for a single token or separate tokens.
    pub sparsity: Sparsity,
    /// True if each token is computed as if it were alone, with the same bits.
    pub separate: bool,
    /// Prediction of the neurons of a single FFN that fire, for [`Sparsity::Predicted`].
    pub prediction: Option<PredictionSource<'a>>,
    /// True to compare the prediction with the firing neurons and otherwise ignore it.
    pub recall_check: bool,
    /// The activation threshold of [`Sparsity::Threshold`].
    pub activation_threshold: Option<f32>,
    /// Inputs, `[tokens, d]`.
    pub x: &'a [f32],
    /// Number of inputs.
    pub tokens: usize,
    /// True if the neurons that fired are wanted afterwards
    /// ([`CpuFfn::fired`](super::CpuFfn::fired)), which costs some modes extra work.
    pub observed: bool,
}

/// The source of a prediction of firing neurons.
#[derive(Debug, Clone, Copy)]
pub enum PredictionSource<'a> {
    /// A [`mask`](thermocline_model::mask) of all neurons, predicted elsewhere.
    Mask(&'a [u32]),
    /// A predictor whose scores are computed with the task.
    Predictor {
        /// The predictor.
        predictor: &'a Predictor,
        /// Its input, `[d]`.
        x: &'a [f32],
        /// Shift added to the predictor's threshold.
        shift: f32,
    },
}

impl<'a> FfnTask<'a> {
    /// A task of `blocks` that skips nothing and is not observed.
    pub fn dense(
        blocks: &'a [FfnBlock<'a>],
        activation: Activation,
        TokenInputs { x, tokens }: TokenInputs<'a>,
    ) -> Self {
        FfnTask {
            blocks,
            activation,
            sparsity: Sparsity::Dense,
            separate: false,
            prediction: None,
            recall_check: false,
            activation_threshold: None,
            x,
            tokens,
            observed: false,
        }
    }

    /// The neurons to skip. `shows`: an observer sees hidden values. Separate tokens have their own
    /// neurons only in a single FFN.
    pub(crate) fn skips(&self, shows: bool) -> Skips {
        let single = self.blocks.len() == 1;
        let rule = SkipRule {
            sparse_activation: self.activation.is_sparse(),
            silences_gates: self.gate_deviations().is_some(),
            gated: self.gated(),
            has_predictor: self.prediction.is_some() && single,
            threshold: self.activation_threshold,
            fires_above: self.activation_threshold,
            skips_inputs: self.skipped().is_some(),
        };
        rule.skips(self.sparsity, self.tokens == 1 || (self.separate && single), shows)
    }

    /// The matrices that a single FFN reads whole before any neuron is known to be silent.
    pub(crate) fn first_read(&self) -> Few<&'a Matrix> {
        let &[FfnBlock { ffn, neurons: None, .. }] = self.blocks else {
            return Few::new();
        };
        if self.skipped().is_some() {
            return Few::new();
        }
        match (self.skips(false), self.prediction, ffn.gate_beside_up()) {
            (Skips::NotPredicted, Some(PredictionSource::Mask(_)), _) => Few::new(),
            (Skips::NotPredicted, Some(PredictionSource::Predictor { predictor, .. }), _) => {
                [predictor.first()].into_iter().collect()
            }
            (Skips::Nothing, _, Some(gate)) => [&gate.weight, &ffn.up.weight].into_iter().collect(),
            _ => [&ffn.firing_rows(false).weight].into_iter().collect(),
        }
    }

    /// Number of standard deviations above the mean of all gates that a gate of a single FFN must
    /// exceed.
    pub(crate) fn gate_deviations(&self) -> Option<f32> {
        match self.blocks {
            [FfnBlock { ffn: FfnWeights { gate: Some(_), .. }, neurons: None, gate_deviations, .. }] => {
                *gate_deviations
            }
            _ => None,
        }
    }

    /// The small inputs that a single FFN skips.
    pub(crate) fn skipped(&self) -> Option<&'a SkippedInputs> {
        match self.blocks {
            [FfnBlock { neurons: None, skipped, .. }] => *skipped,
            _ => None,
        }
    }

    /// The norm of a single FFN's hidden values.
    pub(crate) fn hidden_norm(&self) -> Option<HiddenNorm<'a>> {
        match self.blocks {
            [block] => block.hidden_norm,
            _ => None,
        }
    }

    /// True if the FFNs have gates: all or none of them have.
    pub(crate) fn gated(&self) -> bool {
        self.blocks.iter().any(|block| block.ffn.gate.is_some())
    }
}

/// The work of a task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FfnWork {
    /// Neurons that contribute to the output of any token.
    pub active: usize,
    /// Bytes of weights read one after the other.
    pub sequential: u64,
    /// Bytes of weights read as scattered rows.
    pub scattered: u64,
}

impl FfnWork {
    /// All bytes of weights read.
    pub fn bytes(&self) -> u64 {
        self.sequential + self.scattered
    }

    /// Adds the work of another task.
    pub(crate) fn add(&mut self, other: FfnWork) {
        self.active += other.active;
        self.sequential += other.sequential;
        self.scattered += other.scattered;
    }

    pub(crate) fn read_all(&mut self, matrix: &Matrix) {
        self.sequential += matrix.byte_len() as u64;
    }

    pub(crate) fn read_rows(&mut self, matrix: &Matrix, rows: usize) {
        let bytes = (rows * matrix.row_bytes()) as u64;
        match is_most(rows, matrix) {
            true => self.sequential += bytes,
            false => self.scattered += bytes,
        }
    }
}

/// Number of tokens that a row can be multiplied with in little more time than reading the row from
/// memory.
const FREE_TOKENS: f64 = 4.0;

/// True if computing only each token's own rows is faster than computing all `rows` rows for all
/// tokens. `union` rows are read and `wanted` products computed. The slower of reading (slower for
/// scattered rows) and computing counts.
pub(crate) fn lists_pay(union: usize, wanted: usize, tokens: usize, rows: usize) -> bool {
    let [union, wanted, tokens, rows] = [union, wanted, tokens, rows].map(|n| n as f64);
    let listed = (union / MOST_ROWS).max(wanted / (MOST_ROWS * FREE_TOKENS));
    listed <= rows.max(tokens * rows / FREE_TOKENS)
}

/// True if `rows` rows are so many that all rows of the matrix are read in order instead.
pub(crate) fn is_most(rows: usize, matrix: &Matrix) -> bool {
    rows as f64 > MOST_ROWS * matrix.rows() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::cpu::{
        CpuFfn,
        tests::{D, ffn, linear, noise},
    };
    use thermocline_cpu::{Cpu, CpuOptions};
    use thermocline_model::{PredictorInput, PredictorKind};

    #[test]
    fn lists_pay_until_most_rows_are_wanted_by_most_tokens() {
        // With two tokens, the time to read the weights still determines the speed.
        assert!(lists_pay(100, 120, 2, 1000) && lists_pay(590, 800, 2, 1000) && !lists_pay(700, 800, 2, 1000));
        // With sixteen tokens nearly all rows are read either way, but each token needs few.
        assert!(lists_pay(990, 3000, 16, 1000) && !lists_pay(1000, 15_000, 16, 1000));
    }

    /// In every mode, a prefetch covers exactly the first read of a task.
    #[test]
    fn first_read_matches_the_sparsity_mode() {
        let mut seed = 9;
        let (gated, plain) = (ffn(true, 16, &mut seed), ffn(false, 16, &mut seed));
        let gate = &gated.gate.as_ref().unwrap().weight;
        let kind = PredictorKind::Rows { rows: linear(16, D, &mut seed).weight, bias: None };
        let predictor = Predictor {
            kind,
            input: PredictorInput::Normed,
            threshold: 0.0,
            quality: None,
            by_input: Default::default(),
        };
        let (asked, mask) =
            (PredictionSource::Predictor { predictor: &predictor, x: &[], shift: 0.0 }, PredictionSource::Mask(&[0]));
        let both = [gate, &gated.up.weight];
        let cases: [(&FfnWeights, _, _, _, _, &[&Matrix]); 10] = [
            (&gated, Activation::Relu, Sparsity::Dense, Some(asked), None, &both),
            (&gated, Activation::Relu, Sparsity::Exact, Some(asked), None, &[gate]),
            (&gated, Activation::Relu, Sparsity::Predicted, Some(asked), None, &[predictor.first()]),
            (&gated, Activation::Relu, Sparsity::Predicted, Some(mask), None, &[]),
            (&gated, Activation::Relu, Sparsity::Predicted, None, None, &[gate]),
            (&gated, Activation::Silu, Sparsity::Exact, None, None, &both),
            (&gated, Activation::Silu, Sparsity::Threshold, None, Some(0.1), &[gate]),
            (&gated, Activation::Silu, Sparsity::Threshold, None, None, &both),
            (&plain, Activation::Relu, Sparsity::Exact, None, None, &[&plain.up.weight]),
            (&plain, Activation::Relu, Sparsity::Dense, None, None, &[&plain.up.weight]),
        ];
        let cpu = Cpu::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
        let x: Vec<f32> = (0..D).map(|_| noise(&mut seed)).collect();
        fn dense<'a>(blocks: &'a [FfnBlock<'a>], activation: Activation) -> FfnTask<'a> {
            FfnTask::dense(blocks, activation, TokenInputs { x: &[], tokens: 1 })
        }
        for (ffn, activation, sparsity, prediction, activation_threshold, wanted) in cases {
            let blocks = [FfnBlock::whole(ffn)];
            let task = FfnTask { sparsity, prediction, activation_threshold, ..dense(&blocks, activation) };
            let at = |matrix: &&Matrix| matrix.data().as_ptr();
            let read = task.first_read();
            assert_eq!(
                read.iter().map(at).collect::<Vec<_>>(),
                wanted.iter().map(at).collect::<Vec<_>>(),
                "{sparsity}"
            );
            let Some(PredictionSource::Predictor { .. }) = prediction else { continue };
            // At least the prefetched bytes are read.
            let prediction = Some(PredictionSource::Predictor { predictor: &predictor, x: &x, shift: 0.0 });
            let work = CpuFfn::default().partial(&cpu, &FfnTask { prediction, x: &x, ..task }, &mut [0.0; D]).unwrap();
            assert!(work.sequential >= read.iter().map(|matrix| matrix.data().len() as u64).sum());
        }
        let some = [FfnBlock { neurons: Some(&[1, 3]), ..FfnBlock::whole(&gated) }];
        let two = [FfnBlock::whole(&gated), FfnBlock::whole(&gated)];
        for blocks in [&some[..], &two] {
            assert!(dense(blocks, Activation::Relu).first_read().is_empty());
        }
    }
}
