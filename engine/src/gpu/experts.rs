//! Products with the experts that a router chose on the device.

use thermocline_shaders::params;

use super::{
    Buffer, Gpu, GpuMatrix, MatmulOutput, Op, Recorder, grid,
    matmul::{ROWS, gemv_workgroup},
    pitch,
};
use crate::error::{Error, Result};

/// What an [`ExpertMatmul`] reads.
#[derive(Debug, Clone)]
pub struct ExpertInput<'a> {
    /// Activations, rows [`pitch`] apart.
    pub x: &'a Buffer,
    /// Slots in a row that read one row of `x`: as many as a token uses experts, or 1 where each slot has its own.
    pub share: usize,
    /// Per slot its expert.
    pub ids: &'a Buffer,
    /// One number per row of every expert.
    pub bias: Option<&'a Buffer>,
}

/// `y[s, offset + r] = W[ids[s], r] . x[s / share] (+ bias[ids[s], r])`, a slot `s` being a token and one of its experts.
#[derive(Debug, Clone)]
pub struct ExpertMatmul {
    /// With as many slots as are recorded still to be filled in.
    parts: Vec<(params::ExpertMatmul, Op)>,
    max_groups: u32,
}

impl ExpertMatmul {
    /// The products of `matrix`, uploaded as that many `experts`. Its epilogue is [`super::Epilogue::Store`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for parts that are not whole experts and other epilogues, [`Error::Gpu`] if the device is lost or
    /// the kernel does not compile, [`Error::Memory`] if a buffer is larger than a binding.
    pub fn new(
        gpu: &Gpu,
        matrix: &GpuMatrix,
        experts: usize,
        input: &ExpertInput<'_>,
        output: &MatmulOutput<'_>,
    ) -> Result<Self> {
        let rows = matrix.rows() / experts.max(1);
        let cut = matrix.parts().iter().any(|part| !part.rows().start.is_multiple_of(rows.max(1)));
        if rows * experts != matrix.rows() || cut || input.share == 0 || output.epilogue != Default::default() {
            let got = format!("{experts} of {} rows, {} slots a token", matrix.rows(), input.share);
            return Err(Error::invalid("a product with experts", "whole experts, stored", got));
        }
        let overrides = [("HAS_BIAS", f64::from(u8::from(input.bias.is_some()))), ("ROWS", f64::from(ROWS))];
        let workgroup = gemv_workgroup(matrix.chunks());
        let pipeline = gpu.pipelines().get("expert_gemv", Some(matrix.ty()), workgroup, &overrides)?;
        let parts = matrix.parts().iter().map(|part| {
            let bindings = [
                part.main(),
                part.aux(gpu.nothing()),
                input.x.into(),
                input.bias.unwrap_or(gpu.nothing()).into(),
                input.ids.into(),
                output.buffer.into(),
            ];
            let params = params::ExpertMatmul {
                rows: rows as u32,
                chunks: matrix.chunks() as u32,
                slots: 0,
                share: input.share as u32,
                x_pitch: pitch(matrix.cols()) as u32,
                y_pitch: output.pitch as u32,
                y_offset: output.offset as u32,
                first_expert: (part.rows().start / rows) as u32,
                experts: (part.rows().len() / rows) as u32,
                stride: 0,
            };
            Ok((params, Op::new(gpu, &pipeline, &bindings)?))
        });
        Ok(ExpertMatmul { parts: parts.collect::<Result<_>>()?, max_groups: gpu.caps().max_groups })
    }

    /// Records the products of the first `slots` slots.
    pub fn record(&self, recorder: &mut Recorder, slots: usize) {
        for (params, op) in &self.parts {
            let [x, y] = grid(params.rows.div_ceil(ROWS) as usize, self.max_groups);
            let params = params::ExpertMatmul { slots: slots as u32, stride: x, ..*params };
            recorder.dispatch(op, &params, [x, y, slots as u32]);
        }
    }
}
