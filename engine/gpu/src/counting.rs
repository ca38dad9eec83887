//! A simulated device that only counts the bytes that a real device would allocate.

use super::{AdapterId, AdapterReport, Caps, Fallbacks, Gpu, GpuOptions, trust::Health};
use thermocline_base::error::{Error, GpuFailure, Result};

impl Gpu {
    /// Creates a device with the limits of `caps` that only counts. Its arena counts bytes by the
    /// rules of a real device, without a budget. Nothing is allocated, compiled or uploaded. Calls
    /// that need a real device return an error. `packed_dot` is as in [`GpuOptions`]; `None`
    /// selects the kernel that uses more memory.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the limits are too small for the kernels.
    pub fn counting(caps: Caps, packed_dot: Option<bool>) -> Result<Self> {
        let report = AdapterReport { name: "simulation".to_owned(), caps, ..AdapterReport::default() };
        let health = Health::new(AdapterId::of(&report), Fallbacks::default());
        report.caps.check().map_err(|reason| health.error(reason))?;
        let options = GpuOptions { budget: Some(u64::MAX), packed_dot, ..GpuOptions::default() };
        Self::with(&options, None, report, health, None)
    }

    /// True if the device only counts.
    pub(super) fn is_counting(&self) -> bool {
        self.device().is_none()
    }

    /// Returns the error of a call that needs a real device.
    pub(super) fn only_counts(&self) -> Error {
        let reason = "it only counts bytes and cannot compute".to_owned();
        Error::Gpu { adapter: self.report().name.clone(), reason, failure: GpuFailure::Unfit }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::{Clock, Matmul, MatmulOutput, Purpose, ReadbackRing, Recorder, UploadRing, Uploader, Usage};
    use thermocline_formats::{
        format::{Bytes, Matrix},
        quant::TensorType,
    };

    fn software() -> Gpu {
        Gpu::open(&GpuOptions::first()).unwrap()
    }

    fn counting() -> Gpu {
        Gpu::counting(*software().caps(), None).unwrap()
    }

    /// Creates and frees the same objects on both devices, and compares their counts after each
    /// step.
    #[test]
    fn counted_bytes_are_those_of_a_real_device() {
        let (real, counting) = (software(), counting());
        let weights = |ty: TensorType| {
            let data = Bytes::new(vec![0; 48 * ty.row_bytes(512).unwrap()]);
            Matrix::new(ty, 48, 512, data).unwrap()
        };
        let used = |gpu: &Gpu| Purpose::ALL.map(|purpose| gpu.arena().used_for(purpose));
        let mut held: [Vec<_>; 2] = Default::default();
        for ty in [TensorType::F32, TensorType::Q4_0, TensorType::Q6_K, TensorType::IQ3_S] {
            let matrix = weights(ty);
            let files = [(&real, 0), (&counting, 1)].map(|(gpu, at)| {
                let mut read = 0;
                let mut progress = |done, _| {
                    read = done;
                    ControlFlow::Continue(())
                };
                let mut uploader = Uploader::new(gpu, &mut progress).unwrap();
                let weights = uploader.matrix(Purpose::Ffn, "test", &[&matrix, &matrix]).unwrap();
                let x = uploader.vector(Purpose::Vectors, "test", &[1.0; 500]).unwrap();
                uploader.finish().unwrap();
                let y = gpu.arena().buffer(Purpose::Scratch, "test", 96 * 4, Usage::Storage).unwrap();
                let output = MatmulOutput { buffer: &y, pitch: 96, offset: 0, epilogue: Default::default() };
                let product = Matmul::of_several(gpu, &weights, &x, None, &output).unwrap();
                held[at].push((product, y));
                read
            });
            assert_eq!(files[0], files[1], "{ty}: bytes read of files");
            assert_eq!(used(&real), used(&counting), "{ty}");
        }
        held.iter_mut().for_each(Vec::clear);
        assert_eq!(used(&real), used(&counting));
        assert!(counting.arena().used() > counting.nothing().bytes(), "code books stay");
    }

    #[test]
    fn calls_that_need_a_real_device_are_errors() {
        let gpu = counting();
        let refused = |error: Error| assert!(matches!(error, Error::Gpu { .. }), "{error}");
        let buffer = gpu.arena().buffer(Purpose::Scratch, "test", 64, Usage::Storage).unwrap();
        let mut up = UploadRing::new(&gpu, 2, 64).unwrap();
        let mut down = ReadbackRing::new(&gpu, 2, 64).unwrap();
        refused(up.record(&mut Recorder::new(&gpu), &[(&[1; 8], &buffer, 0)]).unwrap_err());
        refused(down.read(Recorder::new(&gpu), &[(&buffer, 0, 8)], || (), <[u8]>::to_vec).unwrap_err());
        gpu.start_profile(Clock::Wall);
        let mut recorder = Recorder::new(&gpu);
        recorder.copy(&buffer, 0, &buffer, 32, 16);
        refused(recorder.submit().unwrap_err());
        assert_eq!(gpu.take_profile().calls(), 0);
        gpu.idle().unwrap();
        assert!(gpu.vram().is_empty() && gpu.allocated().is_none() && gpu.lost().is_none());
        gpu.lose();
        assert!(gpu.lost().is_some() && gpu.arena().buffer(Purpose::Ffn, "test", 16, Usage::Storage).is_err());
    }

    #[test]
    fn limits_are_refused_as_on_a_real_device() {
        let caps = Caps { max_buffer: 1 << 20, max_binding: 1 << 16, ..*software().caps() };
        let gpu = Gpu::counting(caps, Some(false)).unwrap();
        let large = gpu.arena().buffer(Purpose::Ffn, "test", (1 << 20) + 1, Usage::Storage);
        assert!(matches!(large, Err(Error::Memory { available, .. }) if available == 1 << 20));
        assert_eq!(gpu.arena().used_for(Purpose::Ffn), 0);
        assert!(Gpu::counting(Caps { max_binding: 1, ..caps }, None).is_err());
    }
}
