//! Bits of the neurons to compute, or of the neurons that fired: bit `i` of row `t` is 1 if
//! `scores[t, i] >= threshold` (test 0) or `|scores[t, i]| > threshold` (test 1). NaN never passes.
//! A row of the mask is a whole number of words.

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{CaseRequest, KernelCase, OUTLIER, noise, sizes},
    params::params,
};

params! {
    /// `active_mask`
    ActiveMask {
        /// Neurons of the layer.
        neurons: u32,
        /// Elements from one token's scores to the next's; a multiple of 4.
        pitch: u32,
        /// Least score of a neuron that fires.
        threshold: f32,
    }
}

/// The kernel `active_mask`.
pub(crate) const KERNEL: Kernel =
    Kernel::new::<ActiveMask>("active_mask", &[Read, Write], include_str!("active_mask.wgsl"), cases);

/// The mask of one row: bit `i % 32` of word `i / 32` tells whether neuron `i` passes.
pub(crate) fn oracle(passes: &[bool]) -> Vec<u32> {
    let word = |bits: &[bool]| bits.iter().enumerate().map(|(i, bit)| u32::from(*bit) << i).sum();
    passes.chunks(32).map(word).collect()
}

/// A test of scores.
struct ActiveMaskForm {
    test: u32,
    threshold: f32,
    workgroup: u32,
}

/// Layers of whole words and of partial ones.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let forms = [(0, -0.5, 64), (0, 0.0, 96), (1, 0.0, 256), (1, 0.5, 32)];
    let forms = forms.map(|(test, threshold, workgroup)| ActiveMaskForm { test, threshold, workgroup });
    let layers = request.pick(&[1000, 1, 31, 64, 33_000], 1).iter();
    layers.flat_map(|neurons| request.pick(&forms, 1).iter().map(|form| case(*neurons, form))).collect()
}

/// Scores at, above and below the threshold, zeros of both signs, an outlier and NaN.
fn case(neurons: usize, form: &ActiveMaskForm) -> KernelCase {
    let ActiveMaskForm { test, threshold, workgroup } = *form;
    let (tokens, pitch) = (3, neurons.next_multiple_of(32));
    let mut scores: Vec<f32> = noise(tokens * pitch, 1).iter().map(|score| (score * 8.0).round() / 4.0).collect();
    scores.iter_mut().step_by(11).for_each(|score| *score = -0.0);
    scores.iter_mut().step_by(17).for_each(|score| *score = f32::NAN);
    scores[5] = OUTLIER;
    let passes = |score: &f32| if test == 1 { score.abs() > threshold } else { *score >= threshold };
    let rows = scores.chunks_exact(pitch);
    let mut mask: Vec<u32> =
        rows.flat_map(|row| oracle(&row[..neurons].iter().map(passes).collect::<Vec<_>>())).collect();
    // The word after the last row is not changed.
    mask.push(u32::MAX);
    let [neurons32, pitch32, tokens32] = sizes([neurons, pitch, tokens]);
    let params = ActiveMask { neurons: neurons32, pitch: pitch32, threshold };
    let groups = [neurons32.div_ceil(32 * workgroup), tokens32, 1];
    KernelCase::new("active_mask", workgroup, params, groups)
        .named(format!("{neurons} neurons, test {test} at {threshold}"))
        .set("TEST", test)
        .input(&scores)
        .input(&vec![u32::MAX; mask.len()])
        .becomes_words(&mask)
}
