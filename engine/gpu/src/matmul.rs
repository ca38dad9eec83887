//! Products `y = W x` of a matrix on the device.

use thermocline_shaders::params;

use super::{
    Buffer, CooperativeTile, Gpu, GpuMatrix, Op, Recorder,
    activations::{ActivationScales, QuantisedActivations},
    grid, pitch,
    tune::KernelShape,
};
use thermocline_base::error::Result;

/// Rows per workgroup of `gemv`.
pub(super) const ROWS: u32 = 4;
/// Tokens per workgroup of `gemv` for several tokens.
const TOKENS: u32 = 4;
/// Most tokens for `gemv`. With more tokens `gemm` is faster. Its tiles always have 64 tokens,
/// while `gemv` reads the weights once per four tokens.
const FEW: usize = 16;
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
    /// Rounds one token's activations to eight bits for integer products.
    quantise: Option<QuantisedActivations>,
    /// Scales many tokens' activations for 16-bit float products.
    half_scale: Option<ActivationScales>,
    parts: Vec<ProductPart>,
    /// Rows per workgroup for one token, and for many tokens.
    rows: u32,
    many_rows: u32,
    max_groups: u32,
}

#[derive(Debug, Clone)]
struct ProductPart {
    /// Parameters. Recording fills in the number of tokens.
    params: params::Matmul,
    one: Op,
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
        let narrow = gemv_workgroup(matrix.chunks());
        let few = kernel("gemv", narrow, &[("ROWS", ROWS), ("TOKENS", TOKENS)])?;
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
        // For a single token, an invocation reads more columns.
        let narrow = gemv_workgroup((matrix.chunks() * 4).div_ceil(matrix.ty().parts()));
        let workgroup = if narrow < KernelShape::DEFAULT.workgroup { narrow } else { shape.workgroup };
        let one = if shape.packed {
            kernel("gemv_dot", workgroup, &[("ROWS", shape.rows)])?
        } else {
            kernel("gemv", workgroup, &[("ROWS", shape.rows), ("TOKENS", 1)])?
        };
        let quantise = if shape.packed { Some(QuantisedActivations::new(gpu, matrix.chunks(), x)?) } else { None };
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
            Ok(ProductPart {
                params,
                one: Op::new(gpu, &one, &bindings(quantise.as_ref().map_or(x, |quantise| &quantise.to)))?,
                few: Op::new(gpu, &few, &bindings(x))?,
                many: Op::new(gpu, &many, &of_many)?,
            })
        });
        let parts = parts.collect::<Result<_>>()?;
        Ok(Matmul { quantise, half_scale, parts, rows: shape.rows, many_rows, max_groups: gpu.caps().max_groups })
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
        if let (1, Some(quantise)) = (tokens, &self.quantise) {
            quantise.record(recorder);
        }
        if tokens > FEW
            && let (Some(half_scale), Some(part)) = (&self.half_scale, self.parts.first())
        {
            half_scale.record(recorder, tokens, part.params.x_pitch);
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
                ..=FEW => (&part.few, ROWS, TOKENS),
                _ => (&part.many, self.many_rows, GEMM_TOKENS),
            };
            let [a, b] = grid(wanted.div_ceil(at_once as usize), self.max_groups);
            let params = params::Matmul { rows: wanted as u32, tokens: tokens32, stride: a, ..part.params };
            let token_groups = tokens32.div_ceil(shared);
            // In `gemm`, neighbouring workgroups share weights.
            let groups = if tokens > FEW { [token_groups, a, b] } else { [a, b, token_groups] };
            recorder.dispatch(op, &params, groups);
        }
    }
}

/// Returns the invocations per workgroup for rows that `readers` invocations can read. More
/// invocations would be idle.
pub(super) fn gemv_workgroup(readers: usize) -> u32 {
    if readers > 64 { 128 } else { 64 }
}

#[cfg(test)]
mod tests;
