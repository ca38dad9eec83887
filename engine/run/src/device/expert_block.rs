//! An expert block: resident experts of one layer in matrices of their own, loaded and freed
//! together.

use std::ops::Range;

use thermocline_shaders::{WeightType, limits::ROUTE_EXPERTS};

use super::{GpuLoader, elementwise::overrides, expert_buffers::ExpertBuffers, product::Product};
use thermocline_base::error::{Error, Result};
use thermocline_formats::format::Matrix;
use thermocline_gpu::{
    Buffer, Epilogue, ExpertGateUp, ExpertInput, ExpertMatmul, GateFirst, Gpu, GpuMatrix, MatmulOutput, MatrixLayout,
    MemoryUse, Purpose, Recorder, Usage, pitch,
};
use thermocline_model::{ExpertWeights, Linear};

/// One product of all experts, with the matrices stacked.
struct Stack<'a> {
    /// Matrices of every expert.
    experts: Vec<Vec<&'a Linear>>,
    ty: WeightType,
    /// Rows of an expert.
    rows: usize,
    cols: usize,
}

impl<'a> Stack<'a> {
    /// Returns `None` if the experts differ in size or type.
    fn new(experts: Vec<Vec<&'a Linear>>) -> Option<Self> {
        let first = experts.first()?.first()?;
        let (ty, cols) = (first.weight.ty().device_type(), first.weight.cols());
        let rows_of = |stack: &[&Linear]| stack.iter().map(|linear| linear.weight.rows()).sum::<usize>();
        let rows = rows_of(&experts[0]);
        let alike = |linear: &&Linear| linear.weight.ty().device_type() == ty && linear.weight.cols() == cols;
        let all = experts.iter().all(|stack| rows_of(stack) == rows && stack.iter().all(alike));
        all.then_some(Stack { experts, ty, rows, cols })
    }

    /// Returns the matrix of row `at` of an expert's stack, and the row within that matrix.
    fn row(&self, expert: usize, mut at: usize) -> Option<(&'a Matrix, usize)> {
        for linear in self.experts.get(expert)? {
            if at < linear.weight.rows() {
                return Some((&linear.weight, at));
            }
            at -= linear.weight.rows();
        }
        None
    }

    fn has_bias(&self) -> bool {
        self.experts.iter().flatten().any(|linear| linear.bias.is_some())
    }
}

/// The matrices of an MoE layer's experts in their device layout: gates and ups in one or two
/// stacks, then downs.
pub(crate) struct ExpertMatrices<'a> {
    stacks: Vec<Stack<'a>>,
}

impl<'a> ExpertMatrices<'a> {
    /// Returns `None` if experts cannot be resident one by one. That is so if only some have gates,
    /// if an expert has only a neuron-major down projection, or if shapes or types differ. It is
    /// also so if there are more experts than the device can route.
    pub fn of(gpu: &Gpu, weights: &'a ExpertWeights) -> Option<Self> {
        let roles = roles(weights)?;
        let down = roles.first()?.len() - 1;
        let together = roles.iter().map(|of| of[..down].to_vec()).collect();
        let one = |role: usize| Stack::new(roles.iter().map(|of| vec![of[role]]).collect());
        // An expert is never split.
        let caps = gpu.caps();
        let most = caps.max_binding.min(caps.max_buffer).min(1 << 31).saturating_sub(caps.binding_alignment.max(16));
        let fits = |stack: &Stack<'_>| (stack.rows * stack.ty.device_row_bytes(stack.cols)) as u64 <= most;
        let mut stacks = match Stack::new(together).filter(fits) {
            Some(together) => vec![together],
            None => (0..down).map(one).collect::<Option<_>>()?,
        };
        stacks.push(one(down)?);
        Some(ExpertMatrices { stacks })
    }

    /// True if [`ExpertMatrices::of`] returns matrices on a device without limits.
    pub fn exist(weights: &ExpertWeights) -> bool {
        let same =
            |role: usize, roles: &[Vec<&Linear>]| Stack::new(roles.iter().map(|of| vec![of[role]]).collect()).is_some();
        roles(weights).is_some_and(|roles| (0..roles.first().map_or(0, Vec::len)).all(|role| same(role, &roles)))
    }

    /// Number of experts.
    pub fn count(&self) -> usize {
        self.stacks.first().map_or(0, |stack| stack.experts.len())
    }

    /// Rows of an expert's stacks.
    fn rows(&self) -> usize {
        self.stacks.iter().map(|stack| stack.rows).sum()
    }
}

/// The gate (if there is one), up and down matrices of every expert.
fn roles(weights: &ExpertWeights) -> Option<Vec<Vec<&Linear>>> {
    let roles = weights.experts.iter().enumerate().map(|(at, expert)| {
        let mut of: Vec<&Linear> = expert.gate.iter().chain([&expert.up]).collect();
        of.push(weights.output_major(at)?);
        (expert.gate.is_some() == weights.gated()).then_some(of)
    });
    roles.collect::<Option<_>>().filter(|_| weights.experts.len() <= ROUTE_EXPERTS as usize)
}

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
    /// Makes room for experts of `matrices` in these slots of the layer. The experts read the first
    /// `used` elements of each row of `from`, and write to `buffers`.
    pub fn new(
        loader: &mut GpuLoader<'_, '_>,
        buffers: &ExpertBuffers,
        matrices: &ExpertMatrices<'_>,
        slots: Range<usize>,
        from: &Buffer,
        used: usize,
    ) -> Result<Self> {
        let count = slots.len();
        let gpu = loader.gpu;
        let ffn = &buffers.ffn;
        let last = matrices.stacks.len() - 1;
        let products = matrices.stacks.iter().enumerate().map(|(at, stack)| {
            let layout =
                MatrixLayout { ty: stack.ty, rows: count * stack.rows, cols: stack.cols, rows_together: stack.rows };
            let what = MemoryUse { purpose: Purpose::Ffn, what: "experts" };
            let matrix = loader.uploader.room(what, layout)?;
            let bias = stack.has_bias().then(|| {
                let bytes = (count * stack.rows * 4) as u64;
                gpu.arena().buffer(Purpose::Vectors, "biases of experts", bytes, Usage::Storage)
            });
            let bias = bias.transpose()?;
            let (places, groups, bias_of) = (&buffers.slots, &buffers.groups, bias.as_ref());
            let (x, pairs_per_row) = if at == last { (&ffn.hidden, 1) } else { (from, used) };
            let (buffer, row, offset) = match at == last {
                true => (&buffers.outputs, buffers.row, 0),
                false => (&ffn.gate_up, ffn.gate_up_pitch, at * stack.rows),
            };
            let input = ExpertInput { x, x_pitch: pitch(stack.cols), pairs_per_row, places, groups, bias: bias_of };
            let output = MatmulOutput { buffer, pitch: row, offset, epilogue: Epilogue::Store };
            let product = ExpertMatmul::new(gpu, &matrix, slots.clone(), &input, &output)?;
            Ok(Stacked { matrix, bias, product })
        });
        let products: Vec<Stacked> = products.collect::<Result<_>>()?;
        let gate_first = match products.get(last.wrapping_sub(1)) {
            Some(Stacked { matrix, bias, .. }) if ffn.gated => {
                let input = GateFirst {
                    x: from,
                    x_pitch: pitch(matrix.cols()),
                    pairs_per_row: used,
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
                let mut bias = Product::stacked_bias(&stack.experts[expert]).unwrap_or_default();
                bias.resize(stack.rows, 0.0);
                let offset = (at * stack.rows * 4) as u64;
                loader.uploader.bytes(buffer, offset, bytemuck::cast_slice(&bias))?;
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
