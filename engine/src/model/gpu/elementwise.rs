//! Kernels with one invocation per element.

use crate::{
    error::Result,
    gpu::{Binding, Buffer, Gpu, Op, Recorder, grid, params::Elements},
};

/// Invocations of a workgroup.
pub(super) const WORKGROUP: u32 = 256;

/// The grid of a kernel that counts `elements` invocations through its rows, and the invocations in one row of it.
pub(super) fn flat_grid(gpu: &Gpu, elements: usize, workgroup: u32) -> ([u32; 3], u32) {
    let [x, y] = grid(elements.div_ceil(workgroup as usize), gpu.caps().max_groups);
    ([x, y, 1], x * workgroup)
}

/// A kernel on rows of `cols` elements, `pitch` apart.
#[derive(Debug, Clone)]
pub(super) struct Elementwise {
    gpu: Gpu,
    op: Op,
    cols: usize,
    pitch: usize,
}

impl Elementwise {
    /// Kernel `name` on `buffers`.
    pub fn new(
        gpu: &Gpu,
        name: &'static str,
        overrides: &[(&'static str, f64)],
        buffers: &[&Buffer],
        (cols, pitch): (usize, usize),
    ) -> Result<Self> {
        let pipeline = gpu.pipelines().get(name, None, WORKGROUP, overrides)?;
        let bindings: Vec<Binding> = buffers.iter().map(|buffer| Binding::from(*buffer)).collect();
        Ok(Elementwise { gpu: gpu.clone(), op: Op::new(gpu, &pipeline, &bindings)?, cols, pitch })
    }

    /// Records it for the first `rows`.
    pub fn record(&self, recorder: &mut Recorder, rows: usize) {
        let (groups, stride) = flat_grid(&self.gpu, rows * self.cols, self.op.pipeline().workgroup());
        let [cols, pitch, rows] = [self.cols, self.pitch, rows].map(|n| n as u32);
        recorder.dispatch(&self.op, &Elements { cols, pitch, rows, stride }, groups);
    }
}
