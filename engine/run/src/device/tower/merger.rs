//! Merges the patches of tokens on a device.

use std::ops::Range;

use bytemuck::pod_collect_to_vec;

use super::{
    super::{
        elementwise::{ActivationOp, GateUpRows},
        norm::NormOp,
        segment::Segment,
    },
    buffers::PictureBuffers,
    part::TowerLoader,
    products::product,
};
use thermocline_base::error::Result;
use thermocline_gpu::{BufferRows, Matmul, WorkKind, pitch, work_of};
use thermocline_model::{Activation, ActivationForm, Linear, Merger};

/// A [`Merger`], prepared.
#[derive(Debug)]
pub(super) struct MergerOps {
    /// Norms, one after another.
    norms: Vec<MergerNorm>,
    join: Option<Matmul>,
    first: Matmul,
    activation: ActivationOp,
    /// Hidden values of a token, and the length of its result.
    hidden: usize,
    d_model: usize,
    second: Matmul,
    /// Multiply-adds per token.
    work: u64,
    /// Patches of a token.
    each: usize,
}

/// A norm of a merger.
#[derive(Debug)]
struct MergerNorm {
    op: NormOp,
    /// Patches that are normed together.
    patches: usize,
}

impl MergerOps {
    pub fn new(loader: &mut TowerLoader<'_, '_>, buffers: &PictureBuffers, merger: &Merger) -> Result<Self> {
        let (width, each) = (loader.config.width, loader.size.each);
        let stream = BufferRows { buffer: &buffers.stream.part, pitch: width };
        let (mut from, mut norms) = (stream, Vec::new());
        for norm in merger.patches.iter().chain(&merger.norm) {
            let patches = (norm.weight.len() / width).max(1);
            let op = loader.norm(norm, from.buffer, buffers.normed().buffer)?.with_pitch(patches * width);
            norms.push(MergerNorm { op, patches });
            from = buffers.normed();
        }
        // The patches of a token follow each other.
        let joined = BufferRows { buffer: from.buffer, pitch: each * width };
        let (join, inputs) = match &merger.join {
            Some(join) => (Some(product(loader, join, joined, buffers.out(), 0)?), buffers.out()),
            None => (None, joined),
        };
        let hidden = merger.first.weight.rows();
        let [before, after] =
            [&buffers.gate_up, &buffers.hidden].map(|buffer| BufferRows { buffer, pitch: pitch(hidden) });
        let first = product(loader, &merger.first, inputs, before, 0)?;
        let form = ActivationForm { activation: Activation::GeluErf, limit: None };
        let rows = GateUpRows { buffer: before.buffer, gated: false, interleaved: false };
        let activation = ActivationOp::new(loader.gpu, form, rows, after.buffer, after.pitch)?;
        let d_model = loader.config.d_model;
        let results = BufferRows { buffer: &buffers.results, pitch: d_model };
        let second = product(loader, &merger.second, after, results, 0)?;
        let work = merger.maps().map(|Linear { weight, .. }| (weight.rows() * weight.cols()) as u64).sum();
        Ok(MergerOps { norms, join, first, activation, hidden, d_model, second, work, each })
    }

    /// Merges the patches of `chunk`, and appends the rows of their tokens to `results`.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost.
    pub fn read(
        &self,
        segment: &mut Segment,
        buffers: &PictureBuffers,
        chunk: &Range<usize>,
        results: &mut Vec<f32>,
    ) -> Result<()> {
        let (patches, tokens) = (chunk.len(), chunk.len() / self.each);
        segment.expect(WorkKind::of(tokens), work_of(self.work, tokens))?;
        let recorder = segment.recorder();
        buffers.stream.load(recorder, chunk);
        for MergerNorm { op, patches: each } in &self.norms {
            op.record(recorder, patches / each, false);
        }
        if let Some(join) = &self.join {
            join.record(recorder, tokens);
        }
        self.first.record(recorder, tokens);
        self.activation.record(recorder, tokens, self.hidden, None);
        self.second.record(recorder, tokens);
        let bytes = (tokens * self.d_model * size_of::<f32>()) as u64;
        segment.read(&[(&buffers.results, 0, bytes)], |read| results.extend(pod_collect_to_vec::<u8, f32>(read)))
    }
}
