//! Draft heads (multi-token prediction) that agree with their models as often as requested.
//!
//! The output matrix makes token `t + 1` follow token `t`: its row `t + 1` is the embedding of `t`,
//! which outweighs what the layers add to the residual stream. The head projects the embedding of
//! its token onto itself, so that its output names the same token. The other half of its projection
//! reads the hidden state, with small random weights.
//!
//! In the embeddings of tokens at which the head is to disagree, channel [`FLAG`] has the value of
//! the constant. No norm of the model lets this channel through. The projection turns it into twice
//! the embedding of another token, and the output names the token after that one.

use super::{
    draft::ShapeDraft,
    options::SynthOptions,
    plan::{ATTENTION_GROWTH, CONSTANT, RESERVED, SynthPlan},
    random::{RowSource, StreamPurpose},
    sample::embedding_row,
    shape::SynthShape,
};
use crate::{RecordedModel, RecordedTensor, TensorRole};
use rand_chacha::rand_core::Rng;
use thermocline_base::error::{Error, Result};
use thermocline_formats::format::{Array, Value};

/// Architectures whose heads can be made.
const ARCHITECTURES: [&str; 2] = ["qwen35", "qwen35moe"];
/// Channel that marks the tokens at which the head disagrees.
const FLAG: usize = 1;
/// The other token of large vocabularies. Drafts are chosen among the common tokens, which have low
/// ids. If the other token were not among them, the head would name the right token instead.
const OTHER_TOKEN: usize = 20_000;
/// Weight of the other token's embedding, relative to that of the head's token.
const OTHER: f32 = 2.0;

/// Checks that heads of this shape can be made.
pub(super) fn check(shape: &SynthShape) -> Result<()> {
    match ARCHITECTURES.contains(&shape.architecture) {
        true => Ok(()),
        false => Err(Error::unsupported("draft head for the shape", shape.name, "a shape of Qwen 3.5")),
    }
}

/// Returns the model of one layer that a head is, whose tensors are the head's.
pub(super) fn record(shape: &SynthShape, options: &SynthOptions) -> Result<RecordedModel> {
    let mut draft = ShapeDraft::new(&SynthShape { n_layer: 1, ..*shape }, options)?;
    draft.set("attention.recurrent_layers", Value::Array(Array::Bool(vec![false])));
    draft.record()
}

/// Returns the name in the file of a tensor of the head, whose layer is number `layer`. `None` for
/// tensors that the head shares with the model.
pub(super) fn name(tensor: &RecordedTensor, layer: usize) -> Option<String> {
    match tensor.layer_and_name() {
        (Some(_), name) => Some(format!("blk.{layer}.{name}")),
        (None, "output_norm.weight") => Some(format!("blk.{layer}.nextn.shared_head_norm.weight")),
        (None, _) => None,
    }
}

/// Returns the tensors of a head beside those of a model of one layer.
pub(super) fn inputs(shape: &SynthShape, layer: usize) -> [RecordedTensor; 3] {
    let (d, norm) = (shape.d_model, TensorRole::Norm(None));
    [("eh_proj", vec![d, 2 * d], TensorRole::Matrix), ("enorm", vec![d], norm), ("hnorm", vec![d], norm)]
        .map(|(stem, shape, role)| RecordedTensor { name: format!("blk.{layer}.nextn.{stem}.weight"), shape, role })
}

/// True if the head names the token that the model has after `token`.
fn agrees(plan: &SynthPlan, agreement: f64, token: usize) -> bool {
    let source = RowSource { seed: plan.seed, layer: 0 };
    let word = source.stream(StreamPurpose::Agreement, token).next_u64();
    ((word >> 11) as f64) < agreement * (1_u64 << 53) as f64
}

/// Marks the embedding `row` of `token`, if the head is to disagree there.
pub(super) fn mark(plan: &SynthPlan, token: usize, row: &mut [f32]) {
    if plan.agreement.is_some_and(|agreement| !agrees(plan, agreement, token)) {
        row[FLAG] = plan.embedded_constant();
    }
}

/// Computes the row of `token` in the output matrix: the embedding of the token before it.
pub(super) fn output_row(plan: &SynthPlan, token: usize, row: &mut [f32]) {
    let n_vocab = plan.shape.n_vocab;
    embedding_row(plan, (token + n_vocab - 1) % n_vocab, row);
    row[..RESERVED].fill(0.0);
    let scale = plan.logits_std() / plan.embedding_std().0;
    row.iter_mut().for_each(|weight| *weight *= scale);
}

/// Computes row `output` of the head's projection, `[2 d]`.
pub(super) fn projection_row(plan: &SynthPlan, source: RowSource, output: usize, row: &mut [f32]) {
    let d = plan.shape.d_model;
    row.fill(0.0);
    // The constant passes, and the other reserved channels stay zero.
    if (1..RESERVED).contains(&output) {
        return;
    }
    row[output] = 1.0;
    if output == 0 {
        return;
    }
    let mut other = vec![0.0; d];
    embedding_row(plan, (plan.shape.n_vocab / 2).min(OTHER_TOKEN), &mut other);
    row[FLAG] = OTHER / CONSTANT * other[output] / plan.embedding_std().0;
    let std = (ATTENTION_GROWTH / d as f64).sqrt() as f32;
    source.normal(StreamPurpose::of_name("nextn.eh_proj"), output, std, &mut row[d..]);
}
