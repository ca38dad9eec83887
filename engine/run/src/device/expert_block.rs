//! An expert block: resident experts of one layer in matrices of their own, loaded and freed
//! together.

use std::ops::Range;

use super::{
    GpuLoader,
    elementwise::overrides,
    expert_buffers::{ExpertBuffers, PlacedExperts},
    expert_matrices::ExpertMatrices,
};
use thermocline_base::error::{Error, Result};
use thermocline_gpu::{
    Buffer, ExpertGateUp, ExpertMatmul, GateFirst, GpuMatrix, MemoryUse, Purpose, Recorder, Usage, pitch,
};

/// An expert whose upload has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpertUpload {
    pub expert: u32,
    pub slot: usize,
    /// Rows of the expert's stacks that have been uploaded.
    pub rows: usize,
}

/// The weights of an MoE layer's experts in one block of slots.
#[derive(Debug)]
pub(crate) struct ExpertBlock {
    /// Gate and up products, then the down product.
    products: Vec<Stacked>,
    /// Gate, up and activation of one token, for experts with gates.
    gate_first: Option<ExpertGateUp>,
}

#[derive(Debug)]
struct Stacked {
    matrix: GpuMatrix,
    bias: Option<Buffer>,
    product: ExpertMatmul,
}

impl ExpertBlock {
    /// Makes room for experts of `matrices` in these slots of the layer. The experts read `from`,
    /// and write to `buffers`.
    pub fn new(
        loader: &mut GpuLoader<'_, '_>,
        buffers: &ExpertBuffers,
        matrices: &ExpertMatrices<'_>,
        slots: Range<usize>,
        from: &Buffer,
    ) -> Result<Self> {
        let (gpu, ffn) = (loader.gpu, &buffers.ffn);
        let last = matrices.stacks.len() - 1;
        let products = matrices.stacks.iter().enumerate().map(|(at, stack)| {
            let layout = stack.layout(slots.len());
            let what = MemoryUse { purpose: Purpose::Ffn, what: "experts" };
            let matrix = loader.uploader.room(what, layout)?;
            let bias = stack.has_bias().then(|| {
                let bytes = (layout.rows * 4) as u64;
                gpu.arena().buffer(Purpose::Vectors, "biases of experts", bytes, Usage::Storage)
            });
            let bias = bias.transpose()?;
            let placed = PlacedExperts { matrix: &matrix, places: slots.clone(), bias: bias.as_ref(), from };
            let product = buffers.product(gpu, matrices, at, &placed)?;
            Ok(Stacked { matrix, bias, product })
        });
        let products: Vec<Stacked> = products.collect::<Result<_>>()?;
        let gate_first = match products.get(last.wrapping_sub(1)) {
            Some(Stacked { matrix, bias, .. }) if ffn.gated => {
                let input = GateFirst {
                    x: from,
                    x_pitch: pitch(matrix.cols()),
                    pairs_per_row: buffers.experts.used,
                    places: &buffers.slots,
                    bias: bias.as_ref(),
                    activation: overrides(ffn.form),
                    neurons: ffn.n_ff,
                    // Gates and ups have separate stacks if one stack would be too large.
                    gates: (last == 2).then_some((&ffn.gate_up, ffn.gate_up_pitch)),
                    hidden: (&ffn.hidden, pitch(ffn.n_ff)),
                };
                Some(ExpertGateUp::new(gpu, matrix, slots.clone(), &input)?)
            }
            _ => None,
        };
        Ok(ExpertBlock { products, gate_first })
    }

    /// Uploads about `bytes` more of an expert to slot `at` of this block, or all that is left.
    /// Returns true if the expert is then complete.
    pub fn upload(
        &self,
        loader: &mut GpuLoader<'_, '_>,
        matrices: &ExpertMatrices<'_>,
        upload: &mut ExpertUpload,
        at: usize,
        bytes: u64,
    ) -> Result<bool> {
        let expert = upload.expert as usize;
        let goal = loader.uploader.done().saturating_add(bytes);
        let mut before = 0;
        for (stacked, stack) in self.products.iter().zip(&matrices.stacks) {
            let (first, end) = (at * stack.rows, before + stack.rows);
            while upload.rows < end {
                let done = upload.rows - before;
                let Some((matrix, _)) = stack.row(expert, done) else {
                    return Err(Error::invalid("expert", format!("an expert below {}", matrices.count()), expert));
                };
                let left = goal.saturating_sub(loader.uploader.done()) / matrix.row_bytes().max(1) as u64;
                let rows = (stack.rows - done).min(usize::try_from(left).unwrap_or(usize::MAX).max(1));
                let row = |row: usize| stack.row(expert, row - first);
                loader.uploader.rewrite(&stacked.matrix, first + done..first + done + rows, &row)?;
                upload.rows += rows;
                if loader.uploader.done() >= goal && upload.rows < matrices.rows() {
                    return Ok(false);
                }
            }
            before = end;
        }
        for (stacked, stack) in self.products.iter().zip(&matrices.stacks) {
            if let Some(buffer) = &stacked.bias {
                let offset = (at * stack.rows * 4) as u64;
                loader.uploader.bytes(buffer, offset, bytemuck::cast_slice(&stack.bias(expert)))?;
            }
        }
        Ok(true)
    }

    /// Records gate and up of this block's chosen experts, for the first `pairs` pairs.
    pub fn record_gate_up(&self, recorder: &mut Recorder, pairs: usize, grouped: bool) {
        let (_, gate_up) = self.products.split_last().unzip();
        gate_up.into_iter().flatten().for_each(|stacked: &Stacked| stacked.product.record(recorder, pairs, grouped));
    }

    /// Records gate, up and activation of this block's chosen experts, for the first `pairs` pairs.
    /// Up rows are read only for neurons whose gate's activation is above `threshold`. The experts
    /// must have gates.
    pub fn record_firing(&self, recorder: &mut Recorder, pairs: usize, threshold: f32) {
        let Some(gate_first) = &self.gate_first else { return };
        if let [gate, _, _] = &self.products[..] {
            gate.product.record(recorder, pairs, false);
        }
        gate_first.record(recorder, pairs, threshold);
    }

    /// Records the down projections of this block's chosen experts.
    pub fn record_down(&self, recorder: &mut Recorder, pairs: usize, grouped: bool) {
        self.products.last().into_iter().for_each(|stacked| stacked.product.record(recorder, pairs, grouped));
    }
}
