//! Products `y = W x` of a matrix on the device.

use thermocline_shaders::params;

use super::{
    Buffer, CooperativeTile, Gpu, GpuMatrix, Op, Recorder,
    activations::{ActivationScales, QuantisedActivations},
    grid, pitch,
    tune::KernelShape,
};
use thermocline_base::error::Result;

/// Rows of a workgroup of `gemv`.
pub(super) const ROWS: u32 = 4;
/// Tokens of a workgroup of `gemv` when there are several.
const TOKENS: u32 = 4;
/// With more tokens than this `gemm` is quicker: its tiles are 64 tokens long however many there are, while `gemv` reads the
/// weights once for every four.
const FEW: usize = 16;
/// Invocations of `gemm`.
pub(super) const GEMM_WORKGROUP: u32 = 128;
/// Tokens of its workgroups.
const GEMM_TOKENS: u32 = 64;

/// Last step of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Epilogue {
    /// It is stored.
    #[default]
    Store,
    /// Its positive part is stored.
    Relu,
    /// It is added to what is there.
    Accumulate,
}

/// Destination of a product: element `row * pitch + offset + column` of `buffer`.
#[derive(Debug, Clone)]
pub struct MatmulOutput<'a> {
    /// Written.
    pub buffer: &'a Buffer,
    /// Elements from one token to the next.
    pub pitch: usize,
    /// Elements before the product.
    pub offset: usize,
    /// Its last step.
    pub epilogue: Epilogue,
}

/// `y[t, y_offset + r] = W[r] . x[t] (+ bias[r])`, prepared for any number of tokens.
#[derive(Debug, Clone)]
pub struct Matmul {
    /// Rounds one token's activations to eight bits for integer products.
    quantise: Option<QuantisedActivations>,
    /// Scales many tokens' activations for products of halves.
    half_scale: Option<ActivationScales>,
    parts: Vec<ProductPart>,
    /// Rows of a workgroup for one token, and for many.
    rows: u32,
    many_rows: u32,
    max_groups: u32,
}

#[derive(Debug, Clone)]
struct ProductPart {
    /// Parameters; the number of tokens is filled in when recorded.
    params: params::Matmul,
    one: Op,
    few: Op,
    many: Op,
}

impl Matmul {
    /// The product of `matrix` and `x`, whose rows are [`pitch`]`(cols)` apart, with `bias` (one number per row of the
    /// matrix), written to `y`, whose rows are `y_pitch` apart, from element `y_offset` of each. `x` and `y` are not one
    /// buffer.
    ///
    /// # Errors
    /// [`thermocline_base::error::Error::Gpu`] if the device is lost or a kernel does not compile, [`thermocline_base::error::Error::Memory`] if a buffer is
    /// larger than a binding.
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

    /// [`Matmul::new`] with an [`Epilogue`].
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

    /// [`Matmul::with`] for several tokens at a time: without the scratch memory and tuning of a single token.
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

    /// [`Matmul::with`] in a given shape.
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
        // Subgroups of any size, or half as many rows as invocations.
        let tile = gpu.caps().cooperative.unwrap_or(CooperativeTile::Sixteen);
        let (many, many_rows) = if shape.cooperative {
            (kernel(tile.kernel(), gpu.caps().subgroups.1 * tile.subgroups(), &[])?, 64)
        } else {
            let gemm = kernel("gemm", GEMM_WORKGROUP, &[])?;
            let rows = gemm.workgroup() / 2;
            (gemm, rows)
        };
        // Of one token an invocation takes more columns.
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

    /// Sets the elements from one row of `x` to the next, a multiple of 4. What is behind a row's columns, up to a multiple of 32, is
    /// finite.
    pub fn set_x_pitch(&mut self, pitch: usize) {
        self.parts.iter_mut().for_each(|part| part.params.x_pitch = pitch as u32);
    }

    /// Records the product for the first `tokens` rows of `x`.
    pub fn record(&self, recorder: &mut Recorder, tokens: usize) {
        self.record_rows(recorder, tokens, usize::MAX);
    }

    /// [`Matmul::record`] with the first `rows` rows of the matrix alone.
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
            // Parts are written where their first row belongs.
            let before = (part.params.bias_offset as usize).min(rows);
            let wanted = (rows - before).min(part.params.rows as usize);
            if wanted == 0 {
                break;
            }
            // Rows and tokens of a workgroup.
            let (op, at_once, shared) = match tokens {
                1 => (&part.one, self.rows, 1),
                ..=FEW => (&part.few, ROWS, TOKENS),
                _ => (&part.many, self.many_rows, GEMM_TOKENS),
            };
            let [a, b] = grid(wanted.div_ceil(at_once as usize), self.max_groups);
            let params = params::Matmul { rows: wanted as u32, tokens: tokens32, stride: a, ..part.params };
            let token_groups = tokens32.div_ceil(shared);
            // Groups that share weights are neighbours in `gemm`.
            let groups = if tokens > FEW { [token_groups, a, b] } else { [a, b, token_groups] };
            recorder.dispatch(op, &params, groups);
        }
    }
}

/// Invocations for rows that this many can read; those beyond a row would be idle.
pub(super) fn gemv_workgroup(readers: usize) -> u32 {
    if readers > 64 { 128 } else { 64 }
}

#[cfg(test)]
mod tests;
