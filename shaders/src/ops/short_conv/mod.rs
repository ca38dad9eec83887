//! Short causal convolution per channel, before delta nets and Mamba-2: from inputs `x`
//! `[tokens, channels]` and those of `taps - 1` earlier tokens, which are the state,
//! `y[t, c] = silu(bias[c] + sum_j weight[j, c] * x[t - taps + 1 + j, c])`. Bias and SiLU are
//! optional. A gated convolution (LFM2) multiplies inputs and outputs by gates from the same rows.

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{CaseRequest, KernelCase, has, noise, sigmoid, sizes, wide},
    params::params,
};

params! {
    /// `short_conv`, grid (channels in groups of a workgroup's invocations; runs of `span` tokens)
    ShortConv {
        /// Channels.
        channels: u32,
        /// Taps, at least 1.
        taps: u32,
        /// Tokens of the chunk.
        tokens: u32,
        /// Elements from one token's inputs to the next's.
        x_pitch: u32,
        /// Elements from one token's outputs to the next's.
        y_pitch: u32,
        /// Tokens of a run.
        span: u32,
        /// 1 if the state is advanced past the tokens, which needs a grid of one run; else 0.
        save: u32,
        /// First row of this sequence's tokens in the buffers that sequences share.
        row: u32,
    }
}

/// The kernel `short_conv`.
pub(crate) const KERNEL: Kernel =
    Kernel::new::<ShortConv>("short_conv", &[Read, Read, Read, Write, Write], include_str!("short_conv.wgsl"), cases);

/// Outputs of a channel. Before the inputs of all tokens, `inputs` has those of `taps.len() - 1`
/// earlier tokens.
fn oracle(inputs: &[f64], taps: &[f64], bias: f64, activate: bool) -> Vec<f64> {
    let products = |inputs: &[f64]| inputs.iter().zip(taps).map(|(x, weight)| x * weight).sum::<f64>();
    let sums = inputs.windows(taps.len()).map(|inputs| bias + products(inputs));
    sums.map(|sum| if activate { sum * sigmoid(sum) } else { sum }).collect()
}

/// One run, several runs, and runs of no tokens, which only advance the state.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let shapes =
        [[37, 4, 9, 9], [37, 4, 1, 1], [70, 4, 23, 5], [70, 4, 23, 0], [5, 1, 3, 2], [5, 1, 3, 0], [40, 7, 4, 4]];
    let forms = ["ACTIVATE HAS_BIAS", "GATED", "ACTIVATE", "HAS_BIAS"];
    let shapes = request.pick(&shapes, 1).iter();
    shapes.flat_map(|shape| request.pick(&forms, 2).iter().map(|options| case(*shape, options))).collect()
}

fn case([channels, taps, tokens, span]: [usize; 4], options: &str) -> KernelCase {
    let [activate, biased, gated] = ["ACTIVATE", "HAS_BIAS", "GATED"].map(|name| has(options, name));
    // Another sequence's row precedes the tokens.
    let (row, history, save) = (1, taps - 1, span == 0 || span >= tokens);
    let (x_pitch, y_pitch, runs) = (3 * channels + 11, channels + 3, if save { 1 } else { tokens.div_ceil(span) });
    let (x, weight, bias) = (noise((row + tokens) * x_pitch, 1), noise(taps * channels, 2), noise(channels, 3));
    let (before, y) = (noise(history * channels, 4), vec![7.0_f32; (row + tokens) * y_pitch]);
    let (mut after, mut outputs) = (wide(&before), wide(&y));
    for c in 0..channels {
        // Parts of a row: inputs, input gates, output gates.
        let part = |t: usize, part: usize| f64::from(x[(row + t) * x_pitch + part * channels + c]);
        let gate = |t: usize, gates: usize| if gated { part(t, gates) } else { 1.0 };
        let earlier = (0..history).map(|i| f64::from(before[i * channels + c]));
        let inputs: Vec<f64> = earlier.chain((0..tokens).map(|t| part(t, 0) * gate(t, 1))).collect();
        let taps: Vec<f64> = (0..taps).map(|tap| weight[tap * channels + c].into()).collect();
        let sums = oracle(&inputs, &taps, if biased { bias[c].into() } else { 0.0 }, activate);
        for (t, sum) in sums.iter().enumerate().filter(|_| span > 0) {
            outputs[(row + t) * y_pitch + c] = sum * gate(t, 2);
        }
        for (i, input) in inputs[tokens..].iter().enumerate().filter(|_| save) {
            after[i * channels + c] = *input;
        }
    }
    let name = format!("{channels} channels, {taps} taps, {tokens} tokens, runs of {span}, {options}");
    let [channels, taps, tokens, x_pitch, y_pitch, span, runs] =
        sizes([channels, taps, tokens, x_pitch, y_pitch, span, runs]);
    let params = ShortConv { channels, taps, tokens, x_pitch, y_pitch, span, save: save.into(), row: row as u32 };
    KernelCase::new("short_conv", 32, params, [channels.div_ceil(32), runs, 1])
        .named(name)
        .switches(&["ACTIVATE", "HAS_BIAS", "GATED"], options)
        .input(&x)
        .input(&weight)
        .input(&bias)
        .input(&before)
        .becomes(&after, 1e-6)
        .input(&y)
        .becomes(&outputs, 1e-5)
}
