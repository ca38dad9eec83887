//! Products `y = W x` of a matrix on the device.

use thermocline_shaders::{WeightType, params};

use super::{
    Buffer, CooperativeTile, Gpu, GpuMatrix, Op, Recorder,
    activations::{ActivationScales, QuantisedActivations},
    grid, pitch,
    tune::KernelShape,
};
use thermocline_base::error::Result;

/// Rows per workgroup of `gemv`.
pub(super) const ROWS: u32 = 4;
/// Most tokens in a pass for which each token's sums have the order of a pass of one token.
pub const FEW_TOKENS: usize = 8;
/// Most tokens for `gemv`. With more tokens `gemm` is faster. Its tiles always have 64 tokens,
/// while `gemv` reads the weights once per [`shared_by`] tokens.
const MOST_FLOATS: usize = 16;
/// Invocations per workgroup of `gemm`.
pub(super) const GEMM_WORKGROUP: u32 = 128;
/// Tokens per workgroup of `gemm`.
const GEMM_TOKENS: u32 = 64;

/// Last step of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Epilogue {
    /// Stores the product.
    #[default]
    Store,
    /// Stores the positive part of the product.
    Relu,
    /// Adds the product to the output buffer.
    Accumulate,
}

/// Destination of a product: element `row * pitch + offset + column` of `buffer`.
#[derive(Debug, Clone)]
pub struct MatmulOutput<'a> {
    /// Output buffer.
    pub buffer: &'a Buffer,
    /// Elements from one token to the next.
    pub pitch: usize,
    /// Elements of a token's row before the product.
    pub offset: usize,
    /// Last step of the product.
    pub epilogue: Epilogue,
}

/// `y[t, y_offset + r] = W[r] . x[t] (+ bias[r])`, prepared for any number of tokens.
#[derive(Debug, Clone)]
pub struct Matmul {
    /// Rounds few tokens' activations to eight bits for integer products.
    quantise: Option<QuantisedActivations>,
    /// Scales many tokens' activations for 16-bit float products.
    half_scale: Option<ActivationScales>,
    parts: Vec<ProductPart>,
    /// Rows per workgroup for one token, and for many tokens.
    rows: u32,
    many_rows: u32,
    /// Tokens per workgroup for few tokens.
    few_shared: u32,
    /// Most tokens for the kernel for few tokens.
    most_few: usize,
    max_groups: u32,
}

#[derive(Debug, Clone)]
struct ProductPart {
    /// Parameters. Recording fills in the number of tokens.
    params: params::Matmul,
    one: Op,
    /// The kernel of `one` with several tokens per workgroup. It has as many invocations, so that a
    /// token's sums have the same order.
    few: Op,
    many: Op,
}

impl Matmul {
    /// Prepares the product of `matrix` and `x`, with `bias` (one number per row of the matrix).
    /// Rows of `x` are [`pitch`]`(cols)` apart. The product of a token is written to `y` from
    /// element `y_offset` of its row, and rows of `y` are `y_pitch` apart. `x` and `y` must be
    /// different buffers.
    ///
    /// # Errors
    /// [`thermocline_base::error::Error::Gpu`] if the device is lost or a kernel does not compile.
    /// [`thermocline_base::error::Error::Memory`] if a buffer is larger than a binding.
    pub fn new(
        gpu: &Gpu,
        matrix: &GpuMatrix,
        x: &Buffer,
        bias: Option<&Buffer>,
        y: &Buffer,
        y_pitch: usize,
        y_offset: usize,
    ) -> Result<Self> {
        let output = MatmulOutput { buffer: y, pitch: y_pitch, offset: y_offset, epilogue: Epilogue::Store };
        Self::with(gpu, matrix, x, bias, &output)
    }

    /// Like [`Matmul::new`], with an [`Epilogue`].
    ///
    /// # Errors
    /// As [`Matmul::new`].
    pub fn with(
        gpu: &Gpu,
        matrix: &GpuMatrix,
        x: &Buffer,
        bias: Option<&Buffer>,
        output: &MatmulOutput<'_>,
    ) -> Result<Self> {
        Self::shaped(gpu, matrix, x, bias, output, gpu.shape(matrix.ty())?)
    }

    /// Like [`Matmul::with`], for several tokens at a time, without the scratch memory and the
    /// tuning for a single token.
    ///
    /// # Errors
    /// As [`Matmul::new`].
    pub fn of_several(
        gpu: &Gpu,
        matrix: &GpuMatrix,
        x: &Buffer,
        bias: Option<&Buffer>,
        output: &MatmulOutput<'_>,
    ) -> Result<Self> {
        let shape = KernelShape { cooperative: gpu.shape(matrix.ty())?.cooperative, ..KernelShape::DEFAULT };
        Self::shaped(gpu, matrix, x, bias, output, shape)
    }

    /// Like [`Matmul::with`], in a given kernel shape.
    pub(super) fn shaped(
        gpu: &Gpu,
        matrix: &GpuMatrix,
        x: &Buffer,
        bias: Option<&Buffer>,
        output: &MatmulOutput<'_>,
        shape: KernelShape,
    ) -> Result<Self> {
        let switch = |on: bool| f64::from(u8::from(on));
        let ends = [
            ("HAS_BIAS", switch(bias.is_some())),
            ("RELU", switch(output.epilogue == Epilogue::Relu)),
            ("ACCUMULATE", switch(output.epilogue == Epilogue::Accumulate)),
        ];
        let kernel = |name, workgroup, numbers: &[(&'static str, u32)]| {
            let numbers = numbers.iter().map(|(name, value)| (*name, f64::from(*value)));
            let overrides: Vec<_> = ends.into_iter().chain(numbers).collect();
            gpu.pipelines().get(name, Some(matrix.ty()), workgroup, &overrides)
        };
        // The hardware kernel works with subgroups of any size. `gemm` has half as many rows as
        // invocations.
        let tile = gpu.caps().cooperative.unwrap_or(CooperativeTile::Sixteen);
        let (many, many_rows) = if shape.cooperative {
            (kernel(tile.kernel(), gpu.caps().subgroups.1 * tile.subgroups(), &[])?, 64)
        } else {
            let gemm = kernel("gemm", GEMM_WORKGROUP, &[])?;
            let rows = gemm.workgroup() / 2;
            (gemm, rows)
        };
        let narrow = gemv_workgroup((matrix.chunks() * 4).div_ceil(matrix.ty().parts()));
        let workgroup = if narrow < KernelShape::DEFAULT.workgroup { narrow } else { shape.workgroup };
        let (gemv, most_few) = if shape.packed { ("gemv_dot", FEW_TOKENS) } else { ("gemv", MOST_FLOATS) };
        let one = kernel(gemv, workgroup, &[("ROWS", shape.rows), ("TOKENS", 1)])?;
        let few_shared = shared_by(matrix.ty(), shape.packed);
        let few = kernel(gemv, workgroup, &[("ROWS", ROWS), ("TOKENS", few_shared)])?;
        let quantise = if shape.packed { Some(QuantisedActivations::new(gpu, matrix, x)?) } else { None };
        let half_scale = if shape.cooperative { Some(ActivationScales::new(gpu, matrix.chunks(), x)?) } else { None };
        let parts = matrix.parts().iter().map(|part| {
            let bindings = |x: &Buffer| {
                let bias = bias.unwrap_or(gpu.nothing());
                [part.main(), part.aux(gpu.nothing()), x.into(), bias.into(), output.buffer.into()]
            };
            let mut of_many = bindings(x).to_vec();
            of_many.extend(half_scale.as_ref().map(|it| (&it.scales).into()));
            let rows = part.rows();
            let params = params::Matmul {
                rows: rows.len() as u32,
                chunks: matrix.chunks() as u32,
                tokens: 0,
                x_pitch: pitch(matrix.cols()) as u32,
                y_pitch: output.pitch as u32,
                y_offset: (output.offset + rows.start) as u32,
                bias_offset: rows.start as u32,
                stride: 0,
            };
            let one = Op::new(gpu, &one, &bindings(quantise.as_ref().map_or(x, |quantise| &quantise.to)))?;
            Ok(ProductPart { params, few: one.variant(&few), one, many: Op::new(gpu, &many, &of_many)? })
        });
        let (parts, max_groups) = (parts.collect::<Result<_>>()?, gpu.caps().max_groups);
        Ok(Matmul { quantise, half_scale, parts, rows: shape.rows, many_rows, few_shared, most_few, max_groups })
    }

    /// Sets the elements from one row of `x` to the next, a multiple of 4. The elements after a
    /// row's columns, up to a multiple of 32, must be finite.
    pub fn set_x_pitch(&mut self, pitch: usize) {
        self.parts.iter_mut().for_each(|part| part.params.x_pitch = pitch as u32);
    }

    /// Records the product for the first `tokens` rows of `x`.
    pub fn record(&self, recorder: &mut Recorder, tokens: usize) {
        self.record_rows(recorder, tokens, usize::MAX);
    }

    /// Records the product of only the first `rows` rows of the matrix.
    pub fn record_rows(&self, recorder: &mut Recorder, tokens: usize, rows: usize) {
        let Some(x_pitch) = self.parts.first().map(|part| part.params.x_pitch) else { return };
        let few = tokens <= self.most_few;
        if let Some(quantise) = self.quantise.as_ref().filter(|_| few) {
            quantise.record(recorder, tokens, x_pitch);
        }
        if let Some(half_scale) = self.half_scale.as_ref().filter(|_| !few) {
            half_scale.record(recorder, tokens, x_pitch);
        }
        let tokens32 = tokens as u32;
        for part in &self.parts {
            // Each part writes its rows at their index in the whole matrix.
            let before = (part.params.bias_offset as usize).min(rows);
            let wanted = (rows - before).min(part.params.rows as usize);
            if wanted == 0 {
                break;
            }
            // Rows and tokens per workgroup.
            let (op, at_once, shared) = match tokens {
                1 => (&part.one, self.rows, 1),
                _ if few => (&part.few, ROWS, self.few_shared),
                _ => (&part.many, self.many_rows, GEMM_TOKENS),
            };
            let [a, b] = grid(wanted.div_ceil(at_once as usize), self.max_groups);
            let params = params::Matmul { rows: wanted as u32, tokens: tokens32, stride: a, ..part.params };
            // Neighbouring workgroups share weights.
            recorder.dispatch(op, &params, [tokens32.div_ceil(shared), a, b]);
        }
    }
}

/// Returns the invocations per workgroup for rows that `readers` invocations can read. More
/// invocations would be idle.
pub(super) fn gemv_workgroup(readers: usize) -> u32 {
    if readers > 64 { 128 } else { 64 }
}

/// Returns the tokens per workgroup for few tokens. The activations of four tokens of 32 columns
/// each need 200 registers, so that half as many workgroups run at a time. Rounded activations and
/// fewer columns at a time need at most 128.
fn shared_by(ty: WeightType, packed: bool) -> u32 {
    if ty.parts() == 4 && !packed { 2 } else { 4 }
}

#[cfg(test)]
mod tests;
