//! One segment of work: recorded, then submitted at once.

use bytemuck::bytes_of;
use thermocline_shaders::params::Params;

use super::{Buffer, Gpu, Op};
use crate::error::Result;

/// Records dispatches and copies in order; wgpu sees to it that each sees what those before it wrote.
#[derive(Debug)]
pub struct Recorder {
    gpu: Gpu,
    encoder: wgpu::CommandEncoder,
    pass: Option<wgpu::ComputePass<'static>>,
}

impl Recorder {
    /// An empty segment.
    pub fn new(gpu: &Gpu) -> Self {
        let encoder = gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        Recorder { gpu: gpu.clone(), encoder, pass: None }
    }

    fn pass(&mut self) -> &mut wgpu::ComputePass<'static> {
        let encoder = &mut self.encoder;
        self.pass.get_or_insert_with(|| {
            encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default()).forget_lifetime()
        })
    }

    /// `op` over `groups` workgroups.
    pub fn dispatch<P: Params>(&mut self, op: &Op, params: &P, groups: [u32; 3]) {
        debug_assert_eq!(op.pipeline.kernel().params, P::FIELDS, "{}", op.pipeline.kernel().name);
        let pass = self.pass();
        pass.set_pipeline(&op.pipeline.raw);
        pass.set_bind_group(0, &op.group, &[]);
        pass.set_immediates(0, bytes_of(params));
        pass.dispatch_workgroups(groups[0], groups[1], groups[2]);
    }

    /// `op` over as many workgroups as three words of `groups` at `offset` bytes say.
    pub fn dispatch_indirect<P: Params>(&mut self, op: &Op, params: &P, groups: &Buffer, offset: u64) {
        debug_assert_eq!(op.pipeline.kernel().params, P::FIELDS, "{}", op.pipeline.kernel().name);
        let pass = self.pass();
        pass.set_pipeline(&op.pipeline.raw);
        pass.set_bind_group(0, &op.group, &[]);
        pass.set_immediates(0, bytes_of(params));
        pass.dispatch_workgroups_indirect(groups.raw(), offset);
    }

    /// Copies between buffers; offsets and length are multiples of 4.
    pub fn copy(&mut self, from: &Buffer, from_offset: u64, to: &Buffer, to_offset: u64, bytes: u64) {
        self.pass = None;
        self.encoder.copy_buffer_to_buffer(from.raw(), from_offset, to.raw(), to_offset, bytes);
    }

    /// Maps `buffer` for reading once the segment is done.
    pub(super) fn map_for_reading(&mut self, buffer: &Buffer, bytes: u64) {
        self.pass = None;
        // Whether it worked is seen when it is read.
        self.encoder.map_buffer_on_submit(buffer.raw(), wgpu::MapMode::Read, 0..bytes, |_| ());
    }

    /// Submits what was recorded.
    ///
    /// # Errors
    /// [`crate::Error::Gpu`] if the device is lost.
    pub fn submit(mut self) -> Result<wgpu::SubmissionIndex> {
        self.pass = None;
        self.gpu.check()?;
        self.gpu.submit(self.encoder.finish())
    }
}
