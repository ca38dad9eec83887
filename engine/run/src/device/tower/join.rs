//! Joins squares of patches on a device.

use std::ops::Range;

use super::{
    super::{
        elementwise::{ActivationOp, GateUpRows, WORKGROUP, flat_grid},
        norm::NormOp,
        segment::Segment,
    },
    attention::{TowerAttention, TowerAttentionWeights},
    buffers::{PictureBuffers, PictureSize},
    part::TowerLoader,
    products::product,
};
use thermocline_base::error::Result;
use thermocline_gpu::{BufferRows, Gpu, Matmul, Op, Purpose, WorkKind, params, pitch, work_of};
use thermocline_model::{Activation, ActivationForm, PatchJoin};

/// A [`PatchJoin`], prepared.
#[derive(Debug)]
pub(super) struct JoinOps {
    attention: TowerAttention,
    norm: NormOp,
    up: Matmul,
    activation: ActivationOp,
    /// Hidden values of a square.
    hidden: usize,
    down: Matmul,
    average: SquareAverage,
    /// Patches of each square, which attend to each other.
    squares: Vec<Range<usize>>,
    /// The patches of a square.
    each: usize,
    /// Multiply-adds per square.
    work: u64,
}

/// Adds the average of each square's patches to a row. It is the sum of a token's experts, with the
/// patches of a square as experts of equal weight.
#[derive(Debug)]
struct SquareAverage {
    gpu: Gpu,
    op: Op,
    params: params::Combine,
}

impl JoinOps {
    /// Uploads `join`.
    ///
    /// # Errors
    /// As [`TowerAttention::new`].
    pub fn new(loader: &mut TowerLoader<'_, '_>, buffers: &PictureBuffers, join: &PatchJoin) -> Result<Self> {
        let (gpu, config, size) = (loader.gpu, loader.config, loader.size);
        let (width, each) = (config.width, config.first_merge.pow(2));
        let attention = TowerAttentionWeights {
            norm: &join.attention_norm,
            qkv: &join.qkv,
            head_norms: None,
            output: &join.output,
            post_norm: None,
        };
        let attention = TowerAttention::new(loader, buffers, attention)?;
        // The patches of a square follow each other.
        let square = BufferRows { pitch: each * width, ..buffers.normed() };
        let norm = loader.norm(&join.norm, &buffers.stream.part, square.buffer)?.with_pitch(square.pitch);
        let hidden = join.up.weight.rows();
        let [before, after] =
            [&buffers.gate_up, &buffers.hidden].map(|buffer| BufferRows { buffer, pitch: pitch(hidden) });
        let up = product(loader, &join.up, square, before, 0)?;
        let form = ActivationForm { activation: Activation::GeluTanh, limit: None };
        let rows = GateUpRows { buffer: before.buffer, gated: false, interleaved: false };
        let activation = ActivationOp::new(gpu, form, rows, after.buffer, after.pitch)?;
        let down = product(loader, &join.down, after, buffers.out(), 0)?;
        let average = SquareAverage::new(loader, buffers, each)?;
        let squares = (0..size.patches).step_by(each).map(|first| first..first + each).collect();
        let work = [&join.up, &join.down].map(|linear| (linear.weight.rows() * linear.weight.cols()) as u64);
        let work = work.iter().sum();
        Ok(JoinOps { attention, norm, up, activation, hidden, down, average, squares, each, work })
    }

    /// Records the join of all patches of a picture of this size. The joined patches take the first
    /// places of the residual stream.
    ///
    /// # Errors
    /// [`Error::Gpu`](thermocline_base::error::Error::Gpu) if the device is lost.
    pub fn record(&self, segment: &mut Segment, buffers: &PictureBuffers, size: PictureSize) -> Result<()> {
        for chunk in size.chunks() {
            self.attention.record_inputs(segment, buffers, &chunk)?;
            segment.worked()?;
        }
        for chunk in size.chunks() {
            self.attention.record_outputs(segment, buffers, &chunk, &self.squares)?;
            let rows = chunk.len() / self.each;
            segment.expect(WorkKind::of(rows), work_of(self.work, rows))?;
            let recorder = segment.recorder();
            self.norm.record(recorder, rows, false);
            self.up.record(recorder, rows);
            self.activation.record(recorder, rows, self.hidden, None);
            self.down.record(recorder, rows);
            let out = buffers.out();
            let SquareAverage { gpu, op, params } = &self.average;
            let (groups, stride) = flat_grid(gpu, rows * out.pitch, op.pipeline().workgroup());
            recorder.dispatch(op, &params::Combine { tokens: rows as u32, stride, ..*params }, groups);
            recorder.copy(out.buffer, 0, &buffers.stream.part, 0, (rows * out.pitch * size_of::<f32>()) as u64);
            // Joined patches end before the squares of the next chunk begin.
            buffers.stream.store(recorder, &(chunk.start / self.each..chunk.end / self.each));
            segment.worked()?;
        }
        Ok(())
    }
}

impl SquareAverage {
    fn new(loader: &mut TowerLoader<'_, '_>, buffers: &PictureBuffers, each: usize) -> Result<Self> {
        let (gpu, chunk) = (loader.gpu, loader.size.chunk);
        let mut of_patches =
            |value: f32| loader.uploader.vector(Purpose::Vectors, "weights of an average", &vec![value; chunk]);
        // Place 0 has the same bits as 0.0.
        let (weights, places) = (of_patches(1.0 / each as f32)?, of_patches(0.0)?);
        let (nothing, out) = (gpu.nothing(), buffers.out());
        let of = [&buffers.stream.part, &weights, &places, nothing, nothing, out.buffer];
        let op = Op::of(gpu, "combine", WORKGROUP, &[("SHARED", 0.0), ("GATED", 0.0)], &of)?;
        let [cols, used] = [out.pitch, each].map(|size| size as u32);
        let params = params::Combine { cols, pitch: cols, used, resident: 1, add: 1, ..params::Combine::default() };
        Ok(SquareAverage { gpu: gpu.clone(), op, params })
    }
}
