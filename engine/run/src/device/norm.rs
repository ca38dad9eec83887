//! Norms of registers.

use super::loader::GpuLoader;
use thermocline_base::error::Result;
use thermocline_gpu::{Buffer, Gpu, Op, Purpose, Recorder, Uploader, grid, params, pitch};
use thermocline_model::{LayerNorms, Norm, NormKind, NormSlot};

/// Fewest and most invocations of a workgroup, which computes one row: four columns per invocation
/// if the row is long enough.
const WORKGROUPS: (usize, usize) = (64, 1024);

/// `into = norm(from)`
#[derive(Debug)]
pub(crate) struct NormOp {
    gpu: Gpu,
    plain: Op,
    /// The norm with `from += delta`, scaled, first.
    adding: Option<Op>,
    cols: usize,
    /// Elements from one row to the next.
    pitch: usize,
    eps: f32,
}

/// How norms are computed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NormForm {
    pub kind: NormKind,
    /// Factor of what is added to the residual stream.
    pub residual_scale: f32,
}

/// Weights of a norm on the device.
#[derive(Debug, Clone)]
pub(crate) struct NormWeights {
    /// Elements of a row.
    cols: usize,
    pub weight: Buffer,
    pub bias: Option<Buffer>,
    /// Added under the square root.
    eps: f32,
}

impl NormWeights {
    pub fn new(loader: &mut GpuLoader<'_, '_>, norm: &Norm) -> Result<Self> {
        Self::upload(&mut loader.uploader, norm, loader.config.norm_eps)
    }

    /// Uploads the weights of `norm`. `eps` is for norms without an epsilon of their own.
    pub fn upload(uploader: &mut Uploader<'_>, norm: &Norm, eps: f32) -> Result<Self> {
        let mut vector = |values: &Vec<f32>| uploader.vector(Purpose::Vectors, "a norm", values);
        let weight = vector(&norm.weight)?;
        let bias = norm.bias.as_ref().map(vector).transpose()?;
        Ok(NormWeights { cols: norm.weight.len(), weight, bias, eps: norm.eps(eps) })
    }
}

impl NormOp {
    /// Prepares the norm. Rows are the `pitch` of the norm's length apart. `from` and `into` may be
    /// the same buffer. `delta`, which may have to be added to `from` first, must be another
    /// buffer.
    pub fn new(
        loader: &GpuLoader<'_, '_>,
        weights: &NormWeights,
        from: &Buffer,
        delta: Option<&Buffer>,
        into: &Buffer,
    ) -> Result<Self> {
        let form = NormForm { kind: loader.config.norm, residual_scale: loader.config.residual_scale };
        Self::of(loader.gpu, form, weights, from, delta, into)
    }

    /// Prepares a norm of this form, like [`NormOp::new`].
    pub fn of(
        gpu: &Gpu,
        form: NormForm,
        weights: &NormWeights,
        from: &Buffer,
        delta: Option<&Buffer>,
        into: &Buffer,
    ) -> Result<Self> {
        let switch = |on: bool| f64::from(u8::from(on));
        let pipeline = |add: bool| {
            let overrides = [
                ("LAYER", switch(form.kind == NormKind::Layer)),
                ("HAS_BIAS", switch(weights.bias.is_some())),
                ("ADD_DELTA", switch(add)),
                ("DELTA_SCALE", form.residual_scale.into()),
            ];
            gpu.pipelines().get("norm", None, workgroup(weights.cols), &overrides)
        };
        let nothing = gpu.nothing();
        let bias = weights.bias.as_ref().unwrap_or(nothing);
        let bindings =
            [from.into(), delta.unwrap_or(nothing).into(), (&weights.weight).into(), bias.into(), into.into()];
        let plain = Op::new(gpu, &pipeline(false)?, &bindings)?;
        let adding = delta.map(|_| Ok(plain.variant(&pipeline(true)?))).transpose()?;
        let (cols, eps) = (weights.cols, weights.eps);
        Ok(NormOp { gpu: gpu.clone(), plain, adding, cols, pitch: pitch(cols), eps })
    }

    /// Prepares a norm of rows in place.
    pub fn in_place(loader: &mut GpuLoader<'_, '_>, norm: &Norm, rows: &Buffer) -> Result<Self> {
        let weights = NormWeights::new(loader, norm)?;
        NormOp::new(loader, &weights, rows, None, rows)
    }

    /// Changes the `eps` under the square root.
    pub fn with_eps(self, eps: f32) -> Self {
        NormOp { eps, ..self }
    }

    /// Changes the elements from one row to the next, to a multiple of 4.
    pub fn with_pitch(self, pitch: usize) -> Self {
        NormOp { pitch, ..self }
    }

    /// Prepares the norm of a vector within a part, if the layer has one.
    pub fn within(
        loader: &mut GpuLoader<'_, '_>,
        norms: LayerNorms<'_>,
        slot: NormSlot,
        rows: &Buffer,
    ) -> Result<Option<Self>> {
        norms.get(slot).map(|norm| NormOp::in_place(loader, norm, rows)).transpose()
    }

    /// True if [`NormOp::record`] can add `delta`.
    pub fn adds(&self) -> bool {
        self.adding.is_some()
    }

    /// Records the norm for the first `rows` rows; `add`: `delta` is added first.
    pub fn record(&self, recorder: &mut Recorder, rows: usize, add: bool) {
        let [x, y] = grid(rows, self.gpu.caps().max_groups);
        let params = params::Norm {
            cols: self.cols as u32,
            pitch: self.pitch as u32,
            rows: rows as u32,
            stride: x,
            eps: self.eps,
        };
        let op = self.adding.as_ref().filter(|_| add).unwrap_or(&self.plain);
        recorder.dispatch(op, &params, [x, y, 1]);
    }
}

/// Invocations of a workgroup for rows of `cols` columns, before the device narrows them.
fn workgroup(cols: usize) -> u32 {
    cols.div_ceil(4).next_power_of_two().clamp(WORKGROUPS.0, WORKGROUPS.1) as u32
}

#[cfg(test)]
mod tests {
    use super::workgroup;

    #[test]
    fn long_rows_have_wide_workgroups() {
        assert_eq!([1, 64, 128, 896, 2560, 4096, 8192].map(workgroup), [64, 64, 64, 256, 1024, 1024, 1024]);
    }
}
