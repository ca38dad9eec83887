//! A device that runs cases of kernels, and the comparison of its results.

use thermocline_shaders::{KernelCase, WorstElement};

use crate::{Binding, Buffer, Gpu, LargestError, Op, Purpose, ReadbackRing, Recorder, UploadRing, Usage};
use thermocline_base::error::Result;

/// A device under test, and the buffers that copy data of cases to and from it.
#[derive(Debug)]
pub struct CaseBench {
    gpu: Gpu,
    upload: UploadRing,
    read: ReadbackRing,
}

/// Difference between the results of a case and the expected results.
#[derive(Debug, Clone, Copy)]
pub struct CaseDifference {
    /// Largest error of all bindings, relative to their tolerances.
    pub error: LargestError,
    /// The binding with this error.
    pub binding: usize,
    /// The element with this error.
    pub element: WorstElement,
}

impl CaseBench {
    /// Prepares to run cases on `gpu`. The inputs of a case have at most `most_bytes` bytes
    /// together, and so have its results.
    ///
    /// # Errors
    /// [`Error::Memory`](thermocline_base::error::Error::Memory) if the buffers do not fit the
    /// budget, [`Error::Gpu`](thermocline_base::error::Error::Gpu) if the device is lost.
    pub fn new(gpu: Gpu, most_bytes: u64) -> Result<Self> {
        let (upload, read) = (UploadRing::new(&gpu, 1, most_bytes)?, ReadbackRing::new(&gpu, 1, most_bytes)?);
        Ok(CaseBench { gpu, upload, read })
    }

    /// The device under test.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Runs a case and compares its results. `None` if it expects nothing.
    ///
    /// # Errors
    /// [`Error::Gpu`](thermocline_base::error::Error::Gpu) if the kernel does not compile or the
    /// device is lost, [`Error::Memory`](thermocline_base::error::Error::Memory) if the case does
    /// not fit the budget.
    pub fn run(&mut self, case: &KernelCase) -> Result<Option<CaseDifference>> {
        let CaseBench { gpu, upload, read } = self;
        let pipeline = gpu.pipelines().get(case.kernel, case.weights, case.workgroup, &case.overrides)?;
        let buffer = |bytes: usize, usage| gpu.arena().buffer(Purpose::Scratch, "self-test", bytes as u64, usage);
        let buffers = case.buffers.iter().map(|contents| buffer(contents.len(), Usage::Storage));
        let buffers: Vec<Buffer> = buffers.collect::<Result<_>>()?;
        let grid = case.indirect.then(|| buffer(size_of_val(&case.groups), Usage::Indirect)).transpose()?;
        let bindings: Vec<Binding> = buffers.iter().map(Binding::from).collect();
        let op = Op::new(gpu, &pipeline, &bindings)?;
        let mut recorder = Recorder::new(gpu);
        let mut pieces: Vec<_> = case.buffers.iter().zip(&buffers).map(|(from, to)| (&from[..], to, 0)).collect();
        pieces.extend(grid.as_ref().map(|grid| (bytemuck::cast_slice(&case.groups), grid, 0)));
        upload.record(&mut recorder, &pieces)?;
        recorder.dispatch_case(&op, case, grid.as_ref());
        let results = case.expected.iter();
        let results = results.map(|it| (&buffers[it.binding], it.offset as u64, it.values.bytes() as u64));
        let results: Vec<_> = results.collect();
        let submitted = || upload.submitted();
        read.read(recorder, &results, submitted, |read| difference(case, read))
    }
}

/// Largest error of `results`, which are the expected bindings one after the other.
fn difference(case: &KernelCase, mut results: &[u8]) -> Option<CaseDifference> {
    let mut worst: Option<CaseDifference> = None;
    for expected in &case.expected {
        let (got, rest) = results.split_at(results.len().min(expected.values.bytes()));
        results = rest;
        let Some(element) = expected.values.worst(got) else { continue };
        let error = LargestError { largest: element.error, tolerance: expected.tolerance };
        let is_worse = worst.is_none_or(|worst| worst.error.or_worse(error) == error);
        if is_worse {
            worst = Some(CaseDifference { error, binding: expected.binding, element });
        }
    }
    worst
}
