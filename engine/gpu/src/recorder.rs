//! One segment of work, which is recorded and then submitted as a whole.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Release},
    },
    time::Instant,
};

use bytemuck::bytes_of;
use thermocline_shaders::{KernelCase, params::Params};

use super::{
    Buffer, Gpu, GpuTimestamps, Op, Work,
    gpu_profile::{Clock, DispatchTiming},
};
use thermocline_base::error::Result;

/// Records dispatches and copies in order. wgpu makes each command's writes visible to the commands
/// after it. On a device that only counts, nothing is recorded or submitted.
#[derive(Debug)]
pub struct Recorder {
    gpu: Gpu,
    /// `None` on a device that only counts.
    encoder: Option<wgpu::CommandEncoder>,
    /// Bytes that the segment uploads.
    uploaded: u64,
    pass: Option<wgpu::ComputePass<'static>>,
    /// Timing of each dispatch. Used only while a profile is taken.
    timing: Option<DispatchTiming>,
    /// Timestamps of the segment's parts.
    timestamps: Option<GpuTimestamps>,
}

impl Recorder {
    /// Creates an empty segment.
    pub fn new(gpu: &Gpu) -> Self {
        Self::with_timestamps(gpu, None)
    }

    /// Creates an empty segment. `timestamps` measures its parts, unless a profile is taken.
    pub fn with_timestamps(gpu: &Gpu, timestamps: Option<&GpuTimestamps>) -> Self {
        let (timing, timestamps) = (DispatchTiming::begin(gpu), timestamps.cloned());
        Recorder { gpu: gpu.clone(), encoder: encoder(gpu), uploaded: 0, pass: None, timing, timestamps }
    }

    /// Assigns the following dispatches to `part` of the timestamps, if there are timestamps.
    pub fn begin_part(&mut self, part: Option<usize>) {
        if self.timestamps.as_ref().is_some_and(|timestamps| timestamps.begin_part(part)) {
            self.pass = None;
        }
    }

    /// Ends the current pass and returns the encoder; `None` on a device that only counts.
    pub(super) fn encoder_between_passes(&mut self) -> Option<&mut wgpu::CommandEncoder> {
        self.pass = None;
        self.encoder.as_mut()
    }

    /// Dispatches `op` over `groups` workgroups.
    pub fn dispatch<P: Params>(&mut self, op: &Op, params: &P, groups: [u32; 3]) {
        let work = self.timing.as_ref().map(|_| Work::of(&op.pipeline, params));
        debug_assert_eq!(op.pipeline.kernel.params, P::FIELDS, "{}", op.pipeline.kernel.name);
        self.record_dispatch(op, bytes_of(params), work, |pass| {
            pass.dispatch_workgroups(groups[0], groups[1], groups[2])
        });
    }

    /// Dispatches `op` over a grid that three words of `groups` at byte `offset` contain.
    pub fn dispatch_indirect<P: Params>(&mut self, op: &Op, params: &P, groups: &Buffer, offset: u64) {
        debug_assert_eq!(op.pipeline.kernel.params, P::FIELDS, "{}", op.pipeline.kernel.name);
        self.record_indirect(op, bytes_of(params), groups, offset);
    }

    /// Dispatches a case of a kernel, over the grid that `groups` contains, if it is indirect.
    pub(crate) fn dispatch_case(&mut self, op: &Op, case: &KernelCase, groups: Option<&Buffer>) {
        match groups {
            Some(groups) => self.record_indirect(op, &case.params, groups, 0),
            None => {
                let [x, y, z] = case.groups;
                self.record_dispatch(op, &case.params, None, |pass| pass.dispatch_workgroups(x, y, z));
            }
        }
    }

    fn record_indirect(&mut self, op: &Op, params: &[u8], groups: &Buffer, offset: u64) {
        let groups = groups.raw();
        self.record_dispatch(op, params, None, |pass| {
            groups.into_iter().for_each(|groups| pass.dispatch_workgroups_indirect(groups, offset));
        });
    }

    fn record_dispatch(
        &mut self,
        op: &Op,
        params: &[u8],
        work: Option<Work>,
        dispatch: impl FnOnce(&mut wgpu::ComputePass<'static>),
    ) {
        let kernel = op.pipeline.kernel;
        if let Some(timing) = &mut self.timing {
            self.pass = None;
            timing.note(kernel.name, op.pipeline.weights, work.unwrap_or_default());
        }
        if self.by_the_wall() {
            self.flush();
        }
        let started = Instant::now();
        let (Some(kernel), Some(group), Some(pass)) = (&op.pipeline.compiled, &op.group, self.pass()) else { return };
        pass.set_pipeline(&kernel.raw);
        pass.set_bind_group(0, group, &[]);
        pass.set_immediates(0, params);
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

    fn pass(&mut self) -> Option<&mut wgpu::ComputePass<'static>> {
        let Recorder { gpu, encoder, pass, timing, timestamps, .. } = self;
        let encoder = encoder.as_mut()?;
        Some(pass.get_or_insert_with(|| {
            let timestamp_writes = match timing {
                Some(timing) => timing.next_pass(gpu),
                None => timestamps.as_ref().and_then(GpuTimestamps::next_pass),
            };
            #[cfg(any(test, feature = "test-hooks"))]
            gpu.counts().passes.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes }).forget_lifetime()
        }))
    }

    /// Submits the commands recorded so far and waits for them, if every dispatch is timed
    /// separately.
    fn flush(&mut self) {
        self.pass = None;
        let recorded = std::mem::replace(&mut self.encoder, encoder(&self.gpu));
        let done = finished(&self.gpu, recorded).and_then(|commands| self.gpu.submit(commands));
        let done = done.and_then(|_| self.gpu.idle());
        if let Some(timing) = &mut self.timing {
            timing.failed(done);
        }
    }

    /// Copies between buffers. Offsets and length are multiples of 4.
    pub fn copy(&mut self, from: &Buffer, from_offset: u64, to: &Buffer, to_offset: u64, bytes: u64) {
        self.pass = None;
        if let (Some(encoder), Some(from), Some(to)) = (&mut self.encoder, from.raw(), to.raw()) {
            encoder.copy_buffer_to_buffer(from, from_offset, to, to_offset, bytes);
        }
    }

    /// Notes that the segment uploads `bytes` from the CPU's memory.
    pub(super) fn note_upload(&mut self, bytes: u64) {
        self.uploaded += bytes;
    }

    /// Maps `buffer` for reading once the segment is done, and then sets `arrived`.
    pub(super) fn map_for_reading(&mut self, buffer: &Buffer, bytes: u64, arrived: &Arc<AtomicBool>) {
        self.pass = None;
        let arrived = Arc::clone(arrived);
        // The later read reports a failed mapping.
        let tell = move |_| arrived.store(true, Release);
        if let (Some(encoder), Some(buffer)) = (&mut self.encoder, buffer.raw()) {
            encoder.map_buffer_on_submit(buffer, wgpu::MapMode::Read, 0..bytes, tell);
        }
    }

    /// Submits the recorded commands.
    ///
    /// # Errors
    /// [`thermocline_base::error::Error::Gpu`] if the device is lost or only counts.
    pub fn submit(mut self) -> Result<wgpu::SubmissionIndex> {
        self.pass = None;
        self.gpu.check()?;
        self.gpu.cross_bus(self.uploaded)?;
        if let (Some(timing), Some(encoder)) = (&self.timing, &mut self.encoder) {
            timing.resolve(encoder);
        }
        let index = self.gpu.submit(finished(&self.gpu, self.encoder)?)?;
        self.timing.map_or(Ok(()), |timing| timing.finish(&self.gpu))?;
        Ok(index)
    }
}

fn encoder(gpu: &Gpu) -> Option<wgpu::CommandEncoder> {
    let create = |device: &wgpu::Device| device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    gpu.device().map(create)
}

/// Returns the recorded commands.
fn finished(gpu: &Gpu, encoder: Option<wgpu::CommandEncoder>) -> Result<wgpu::CommandBuffer> {
    encoder.map(wgpu::CommandEncoder::finish).ok_or_else(|| gpu.only_counts())
}
