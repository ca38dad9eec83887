//! Pictures on the side that is faster: the layers of a vision tower on the CPU, or on the device
//! of the model if its budget has room beside the model. The tower is on the device only while a
//! picture is computed.

use std::{sync::Arc, time::Instant};

use crate::{
    device::{TowerOutputs, compute_tower, has_device_form},
    placement::{Machine, TowerTime},
    runtime::{PartEmbeddings, PictureEmbeddings, Probe, TowerProcessor},
};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::Cpu;
use thermocline_gpu::Gpu;
use thermocline_model::Tower;
use thermocline_pictures::Picture;

/// A device that may compute pictures.
#[derive(Debug, Clone, Copy)]
pub struct PictureDevice<'a> {
    /// The device. The rest of its budget is free for a tower.
    pub gpu: &'a Gpu,
    /// Speeds of the device and of the CPU.
    pub machine: &'a Machine,
}

/// Computes pictures with a tower, on the CPU or on a device.
#[derive(Debug)]
pub struct PictureProcessor {
    on_cpu: TowerProcessor,
    /// How many times the expected time the latest pictures took.
    measured: TowerTime,
    was_on_device: bool,
}

impl PictureProcessor {
    /// Creates a processor that computes on `cpu` what no device computes.
    pub fn new(tower: Arc<Tower>, cpu: Cpu) -> Self {
        let measured = TowerTime { cpu: 1.0, device: 1.0 };
        PictureProcessor { on_cpu: TowerProcessor::new(tower, cpu), measured, was_on_device: false }
    }

    /// Computes `picture`. `device` computes the layers if its budget has room for them, and if it
    /// is expected to be faster than the CPU, by the speeds of the machine and by the times of
    /// earlier pictures. If the device fails, the CPU computes them. `probe` may end the
    /// computation between two layers.
    ///
    /// # Errors
    /// As [`TowerProcessor::embed`].
    pub fn embed(
        &mut self,
        picture: &Picture,
        device: Option<PictureDevice<'_>>,
        probe: &mut dyn Probe,
    ) -> Result<PictureEmbeddings> {
        self.was_on_device = false;
        let tower = Arc::clone(self.on_cpu.tower());
        let parts = tower.config.pictures_of(picture)?;
        let parts = parts.iter().map(|part| self.embed_part(part, device, probe)).collect::<Result<_>>()?;
        self.on_cpu.finish(tower.grid(picture.width(), picture.height())?, parts)
    }

    fn embed_part(
        &mut self,
        picture: &Picture,
        device: Option<PictureDevice<'_>>,
        probe: &mut dyn Probe,
    ) -> Result<PartEmbeddings> {
        let (order, tower) = (self.on_cpu.begin(picture)?, Arc::clone(self.on_cpu.tower()));
        let expected = device.and_then(|device| TowerTime::of(&tower, order.len(), device.machine));
        let pays = expected.is_some_and(|expected| {
            expected.device * self.measured.device < expected.cpu * self.measured.cpu && has_device_form(&tower)
        });
        let started = Instant::now();
        if let Some(PictureDevice { gpu, .. }) = device.filter(|_| pays) {
            match compute_tower(gpu, &tower, &order, self.on_cpu.stream(&order), probe) {
                Ok(TowerOutputs { embeddings, deepstack }) => {
                    self.note(expected.map(|expected| expected.device), started, true);
                    let embeddings = embeddings.map_or_else(|| self.on_cpu.head(&order), Ok)?;
                    return Ok(PartEmbeddings { embeddings, deepstack });
                }
                Err(
                    error @ (Error::Memory { .. }
                    | Error::Unsupported { .. }
                    | Error::Gpu { .. }
                    | Error::NotFinite { .. }),
                ) => tracing::info!(%error, "the CPU computes a picture"),
                Err(error) => return Err(error),
            }
        }
        let started = Instant::now();
        let deepstack = self.on_cpu.layers(&order, probe)?;
        let embeddings = self.on_cpu.head(&order)?;
        self.note(expected.map(|expected| expected.cpu), started, false);
        Ok(PartEmbeddings { embeddings, deepstack })
    }

    /// True if a device computed the latest picture, or a part of it.
    pub fn was_on_device(&self) -> bool {
        self.was_on_device
    }

    /// Notes that the picture has taken the time since `started` on one side. Moves the ratio of
    /// the other side towards 1, so that this side is tried again. The first picture on a device is
    /// slow because kernels are compiled.
    fn note(&mut self, expected: Option<f64>, started: Instant, on_device: bool) {
        self.was_on_device |= on_device;
        let Some(expected) = expected.filter(|expected| *expected > 0.0) else { return };
        let ratio = started.elapsed().as_secs_f64() / expected;
        let TowerTime { cpu, device } = self.measured;
        self.measured = match on_device {
            true => TowerTime { cpu: cpu.sqrt(), device: ratio },
            false => TowerTime { cpu: ratio, device: device.sqrt() },
        };
    }
}
