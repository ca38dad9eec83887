//! Products of a matrix on the device and activations.

use thermocline_shaders::params;

use super::{Buffer, Gpu, GpuMatrix, Op, Recorder, grid, matrix::MatrixPart, pitch};
use crate::error::Result;

/// Rows of a workgroup of `gemv`.
pub(super) const ROWS: u32 = 4;
/// Tokens of a workgroup of `gemv` when there are several.
const TOKENS: u32 = 4;
/// With more tokens than this `gemm` is quicker: its tiles are 64 tokens long however many there are, while `gemv` reads the
/// weights once for every four.
const FEW: usize = 16;
/// Invocations of `gemm`, whose workgroups compute half as many rows of 64 tokens.
const GEMM_WORKGROUP: u32 = 128;

/// What becomes of a product.
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

/// Where a product goes: element `row * pitch + offset + column` of `buffer`.
#[derive(Debug, Clone)]
pub struct MatmulOutput<'a> {
    /// Written.
    pub buffer: &'a Buffer,
    /// Elements from one token to the next.
    pub pitch: usize,
    /// Elements before the product.
    pub offset: usize,
    /// What becomes of it.
    pub epilogue: Epilogue,
}

/// `y[t, y_offset + r] = W[r] . x[t] (+ bias[r])`, prepared for any number of tokens.
#[derive(Debug, Clone)]
pub struct Matmul {
    parts: Vec<Part>,
    max_groups: u32,
}

#[derive(Debug, Clone)]
struct Part {
    /// With as many tokens as are recorded still to be filled in.
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
    /// [`crate::Error::Gpu`] if the device is lost or a kernel does not compile, [`crate::Error::Memory`] if a buffer is
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

    /// The same with an [`Epilogue`].
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
        let parts = matrix.parts().iter().map(|part| Part::new(gpu, matrix, part, x, bias, output));
        Ok(Matmul { parts: parts.collect::<Result<_>>()?, max_groups: gpu.caps().max_groups })
    }

    /// Records the product for the first `tokens` rows of `x`.
    pub fn record(&self, recorder: &mut Recorder, tokens: usize) {
        let tokens32 = tokens as u32;
        for part in &self.parts {
            if tokens > FEW {
                let rows = part.many.pipeline().workgroup() / 2;
                let [y, z] = grid(part.params.rows.div_ceil(rows) as usize, self.max_groups);
                let params = params::Matmul { tokens: tokens32, stride: y, ..part.params };
                recorder.dispatch(&part.many, &params, [tokens32.div_ceil(64), y, z]);
                continue;
            }
            let (op, shared) = if tokens == 1 { (&part.one, 1) } else { (&part.few, TOKENS) };
            let [x, y] = grid(part.params.rows.div_ceil(ROWS) as usize, self.max_groups);
            let params = params::Matmul { tokens: tokens32, stride: x, ..part.params };
            recorder.dispatch(op, &params, [x, y, tokens32.div_ceil(shared)]);
        }
    }
}

/// Invocations of `gemv` for rows of this many chunks: four read a chunk, and those beyond a row would be idle.
pub(super) fn gemv_workgroup(chunks: usize) -> u32 {
    if chunks > 64 { 128 } else { 64 }
}

impl Part {
    fn new(
        gpu: &Gpu,
        matrix: &GpuMatrix,
        part: &MatrixPart,
        x: &Buffer,
        bias: Option<&Buffer>,
        output: &MatmulOutput<'_>,
    ) -> Result<Self> {
        let switch = |on: bool| f64::from(u8::from(on));
        let ends = [
            ("HAS_BIAS", switch(bias.is_some())),
            ("RELU", switch(output.epilogue == Epilogue::Relu)),
            ("ACCUMULATE", switch(output.epilogue == Epilogue::Accumulate)),
        ];
        let chunks = matrix.chunks();
        let pipelines = gpu.pipelines();
        let gemv = |tokens: u32| {
            let shape = [("ROWS", f64::from(ROWS)), ("TOKENS", f64::from(tokens))];
            pipelines.get("gemv", Some(matrix.ty()), gemv_workgroup(chunks), &[&ends[..], &shape].concat())
        };
        let bindings = [
            part.main(),
            part.aux(gpu.nothing()),
            x.into(),
            bias.unwrap_or(gpu.nothing()).into(),
            output.buffer.into(),
        ];
        let one = Op::new(gpu, &gemv(1)?, &bindings)?;
        let few = one.variant(&gemv(TOKENS)?);
        let many = Op::new(gpu, &pipelines.get("gemm", Some(matrix.ty()), GEMM_WORKGROUP, &ends)?, &bindings)?;
        let rows = part.rows();
        let params = params::Matmul {
            rows: rows.len() as u32,
            chunks: chunks as u32,
            tokens: 0,
            x_pitch: pitch(matrix.cols()) as u32,
            y_pitch: output.pitch as u32,
            y_offset: (output.offset + rows.start) as u32,
            bias_offset: rows.start as u32,
            stride: 0,
        };
        Ok(Part { params, one, few, many })
    }
}

#[cfg(test)]
mod tests;
