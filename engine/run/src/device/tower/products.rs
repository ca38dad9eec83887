//! Linear maps of a tower, with limits of their values.

use super::{super::elementwise, buffers::PictureBuffers, part::TowerLoader};
use thermocline_base::error::Result;
use thermocline_gpu::{Buffer, BufferRows, Epilogue, Gpu, Matmul, MatmulOutput, Op, Purpose, Recorder, params};
use thermocline_model::{Linear, TowerLinear};

/// Linear maps of the same input that write side by side.
#[derive(Debug)]
pub(super) struct TowerProducts {
    maps: Vec<LimitedMap>,
    /// Multiply-adds per row.
    pub work: u64,
}

#[derive(Debug)]
struct LimitedMap {
    input: Option<LimitOp>,
    product: Matmul,
    output: Option<LimitOp>,
}

/// Brings some columns of rows within limits.
#[derive(Debug)]
struct LimitOp {
    gpu: Gpu,
    op: Op,
    params: params::LimitValues,
}

/// The columns to bring within limits.
#[derive(Debug, Clone, Copy)]
struct LimitedColumns {
    first: usize,
    cols: usize,
    pitch: usize,
    limits: [f32; 2],
}

impl TowerProducts {
    /// Uploads `maps` and prepares their products from `x` into `y`.
    pub fn new(
        loader: &mut TowerLoader<'_, '_>,
        buffers: &PictureBuffers,
        maps: &[&TowerLinear],
        x: BufferRows<'_>,
        y: BufferRows<'_>,
    ) -> Result<Self> {
        let (mut first, mut work) = (0, 0);
        let mut prepared = Vec::with_capacity(maps.len());
        for TowerLinear { linear, limits } in maps.iter().copied() {
            let (gpu, weight) = (loader.gpu, &linear.weight);
            let limited = limits.as_ref().zip(buffers.limited.as_ref());
            let input = limited.map(|(limits, limited)| {
                let columns = LimitedColumns { first: 0, cols: weight.cols(), pitch: x.pitch, limits: limits.input };
                LimitOp::new(gpu, x.buffer, limited, columns)
            });
            let output = limited.map(|(limits, _)| {
                let columns = LimitedColumns { first, cols: weight.rows(), pitch: y.pitch, limits: limits.output };
                LimitOp::new(gpu, y.buffer, y.buffer, columns)
            });
            let from = limited.map_or(x.buffer, |(_, limited)| limited);
            let product = product(loader, linear, BufferRows { buffer: from, ..x }, y, first)?;
            first += weight.rows();
            work += (weight.rows() * weight.cols()) as u64;
            prepared.push(LimitedMap { input: input.transpose()?, product, output: output.transpose()? });
        }
        Ok(TowerProducts { maps: prepared, work })
    }

    /// Records the products of the first `rows` rows.
    pub fn record(&self, recorder: &mut Recorder, rows: usize) {
        for LimitedMap { input, product, output } in &self.maps {
            if let Some(input) = input {
                input.record(recorder, rows);
            }
            product.record(recorder, rows);
            if let Some(output) = output {
                output.record(recorder, rows);
            }
        }
    }
}

/// Uploads `linear` and prepares its product from `x` into the columns of `y` from `first` on.
pub(super) fn product(
    loader: &mut TowerLoader<'_, '_>,
    linear: &Linear,
    x: BufferRows<'_>,
    y: BufferRows<'_>,
    first: usize,
) -> Result<Matmul> {
    let matrix = loader.uploader.matrix(Purpose::Ffn, "weights of a vision tower", &[&linear.weight])?;
    let bias = linear.bias.as_ref().map(|bias| loader.uploader.vector(Purpose::Vectors, "a bias", bias)).transpose()?;
    let output = MatmulOutput { buffer: y.buffer, pitch: y.pitch, offset: first, epilogue: Epilogue::Store };
    let mut product = Matmul::of_several(loader.gpu, &matrix, x.buffer, bias.as_ref(), &output)?;
    product.set_x_pitch(x.pitch);
    Ok(product)
}

impl LimitOp {
    fn new(gpu: &Gpu, from: &Buffer, into: &Buffer, columns: LimitedColumns) -> Result<Self> {
        let LimitedColumns { first, cols, pitch, limits } = columns;
        let op = Op::of(gpu, "limit_values", elementwise::WORKGROUP, &[], &[from, into])?;
        let [cols, pitch, first] = [cols, pitch, first].map(|size| size as u32);
        // Some drivers compute as if no number were infinite.
        let [least, most] = limits.map(|limit| limit.clamp(f32::MIN, f32::MAX));
        let params = params::LimitValues { cols, pitch, rows: 0, stride: 0, first, least, most };
        Ok(LimitOp { gpu: gpu.clone(), op, params })
    }

    fn record(&self, recorder: &mut Recorder, rows: usize) {
        let workgroup = self.op.pipeline().workgroup();
        let (groups, stride) = elementwise::flat_grid(&self.gpu, rows * self.params.cols as usize, workgroup);
        recorder.dispatch(&self.op, &params::LimitValues { rows: rows as u32, stride, ..self.params }, groups);
    }
}
