//! Pictures of a generation's prompt.

use std::{sync::atomic::AtomicU64, time::Instant};

use super::{
    super::{context::SessionContext, neurons::GenerationProbe},
    Generation,
};
use thermocline_base::error::Result;
use thermocline_run::hybrid::{PictureDevice, PictureProcessor};

impl Generation<'_> {
    /// Computes the next picture that the prompt needs, on `device` if that is faster. False if it
    /// needs none. The turns of other sessions come between two pictures.
    ///
    /// # Errors
    /// [`Error::Cancelled`](thermocline_base::error::Error::Cancelled) if the request was
    /// cancelled; the errors of [`PictureProcessor::embed`].
    pub fn embed_picture(
        &mut self,
        context: &SessionContext,
        tower: Option<&mut PictureProcessor>,
        device: Option<PictureDevice<'_>>,
        cancelled: &AtomicU64,
    ) -> Result<bool> {
        let Some(tower) = tower else { return Ok(false) };
        let Some(picture) = context.next_picture(self.todo.rest()) else { return Ok(false) };
        let started = Instant::now();
        picture.embed(tower, device, &mut GenerationProbe::new(cancelled, self.number))?;
        self.progress.stats.computed_pictures += 1;
        self.progress.stats.device_pictures += usize::from(tower.was_on_device());
        self.telemetry.pictures.add(1);
        self.progress.add_time(self.in_prompt(), started.elapsed());
        Ok(true)
    }
}
