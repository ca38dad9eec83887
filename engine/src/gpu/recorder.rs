//! One segment of work: recorded, then submitted at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Release},
    },
    time::Instant,
};

use bytemuck::bytes_of;
use thermocline_shaders::params::Params;

use super::{
    Buffer, Gpu, GpuTimestamps, Op, Work,
    gpu_profile::{Clock, DispatchTiming},
};
use crate::error::Result;

/// Records dispatches and copies in order; wgpu sees to it that each sees what those before it wrote.
#[derive(Debug)]
pub struct Recorder {
    gpu: Gpu,
    encoder: wgpu::CommandEncoder,
    pass: Option<wgpu::ComputePass<'static>>,
    /// Only while a profile is taken.
    timing: Option<DispatchTiming>,
    /// Times of its parts.
    timestamps: Option<GpuTimestamps>,
}

impl Recorder {
    /// An empty segment.
    pub fn new(gpu: &Gpu) -> Self {
        Self::with_timestamps(gpu, None)
    }

    /// An empty segment whose parts `timestamps` times, unless a profile is taken.
    pub fn with_timestamps(gpu: &Gpu, timestamps: Option<&GpuTimestamps>) -> Self {
        let (timing, timestamps) = (DispatchTiming::begin(gpu), timestamps.cloned());
        Recorder { gpu: gpu.clone(), encoder: encoder(gpu), pass: None, timing, timestamps }
    }

    /// Dispatches recorded from here on belong to `part` of its timestamps, if it has any.
    pub fn begin_part(&mut self, part: Option<usize>) {
        if self.timestamps.as_ref().is_some_and(|timestamps| timestamps.begin_part(part)) {
            self.pass = None;
        }
    }

    /// The encoder, with the pass before ended.
    pub(super) fn encoder_between_passes(&mut self) -> &mut wgpu::CommandEncoder {
        self.pass = None;
        &mut self.encoder
    }

    /// `op` over `groups` workgroups.
    pub fn dispatch<P: Params>(&mut self, op: &Op, params: &P, groups: [u32; 3]) {
        let work = self.timing.as_ref().map(|_| Work::of(&op.pipeline, params));
        self.record_dispatch(op, params, work, |pass| pass.dispatch_workgroups(groups[0], groups[1], groups[2]));
    }

    /// `op` over as many workgroups as three words of `groups` at `offset` bytes say.
    pub fn dispatch_indirect<P: Params>(&mut self, op: &Op, params: &P, groups: &Buffer, offset: u64) {
        self.record_dispatch(op, params, None, |pass| pass.dispatch_workgroups_indirect(groups.raw(), offset));
    }

    fn record_dispatch<P: Params>(
        &mut self,
        op: &Op,
        params: &P,
        work: Option<Work>,
        dispatch: impl FnOnce(&mut wgpu::ComputePass<'static>),
    ) {
        let kernel = op.pipeline.kernel();
        debug_assert_eq!(kernel.params, P::FIELDS, "{}", kernel.name);
        if let Some(timing) = &mut self.timing {
            self.pass = None;
            timing.note(kernel.name, op.pipeline.weights(), work.unwrap_or_default());
        }
        if self.by_the_wall() {
            self.flush();
        }
        let started = Instant::now();
        let pass = self.pass();
        pass.set_pipeline(&op.pipeline.raw);
        pass.set_bind_group(0, &op.group, &[]);
        pass.set_immediates(0, bytes_of(params));
        dispatch(pass);
        if self.by_the_wall() {
            self.flush();
            if let Some(timing) = &mut self.timing {
                timing.stop(started);
            }
        }
    }

    fn by_the_wall(&self) -> bool {
        self.timing.as_ref().is_some_and(|timing| timing.clock == Clock::Wall)
    }

    fn pass(&mut self) -> &mut wgpu::ComputePass<'static> {
        let Recorder { gpu, encoder, pass, timing, timestamps } = self;
        pass.get_or_insert_with(|| {
            let timestamp_writes = match timing {
                Some(timing) => timing.next_pass(gpu),
                None => timestamps.as_ref().and_then(GpuTimestamps::next_pass),
            };
            encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes }).forget_lifetime()
        })
    }

    /// Submits what was recorded so far and waits for it, where every dispatch is timed by itself.
    fn flush(&mut self) {
        self.pass = None;
        let recorded = std::mem::replace(&mut self.encoder, encoder(&self.gpu));
        let done = self.gpu.submit(recorded.finish()).and_then(|_| self.gpu.idle());
        if let Some(timing) = &mut self.timing {
            timing.failed(done);
        }
    }

    /// Copies between buffers; offsets and length are multiples of 4.
    pub fn copy(&mut self, from: &Buffer, from_offset: u64, to: &Buffer, to_offset: u64, bytes: u64) {
        self.pass = None;
        self.encoder.copy_buffer_to_buffer(from.raw(), from_offset, to.raw(), to_offset, bytes);
    }

    /// Maps `buffer` for reading once the segment is done, and sets `arrived`.
    pub(super) fn map_for_reading(&mut self, buffer: &Buffer, bytes: u64, arrived: &Arc<AtomicBool>) {
        self.pass = None;
        let arrived = Arc::clone(arrived);
        // Whether it worked is seen when it is read.
        let tell = move |_| arrived.store(true, Release);
        self.encoder.map_buffer_on_submit(buffer.raw(), wgpu::MapMode::Read, 0..bytes, tell);
    }

    /// Submits what was recorded.
    ///
    /// # Errors
    /// [`crate::Error::Gpu`] if the device is lost.
    pub fn submit(mut self) -> Result<wgpu::SubmissionIndex> {
        self.pass = None;
        self.gpu.check()?;
        if let Some(timing) = &self.timing {
            timing.resolve(&mut self.encoder);
        }
        let index = self.gpu.submit(self.encoder.finish())?;
        self.timing.map_or(Ok(()), |timing| timing.finish(&self.gpu))?;
        Ok(index)
    }
}

fn encoder(gpu: &Gpu) -> wgpu::CommandEncoder {
    gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
}
