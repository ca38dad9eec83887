//! Status and settings of a running engine.

use std::{sync::Arc, time::Duration};

use super::{
    super::{
        DeviceChoice, DeviceStatus, NeuronFrequencies, SparsityChoice, SparsityReport, loader::device_source,
        settings::RequestedSettings, worker::EngineCommand,
    },
    Engine,
};
use thermocline_base::error::Result;
use thermocline_run::placement::{Resident, SplitReport};

impl Engine {
    /// The processor on which the engine computes now. Does not wait.
    pub fn device(&self) -> DeviceStatus {
        self.handle.state.device.status.read()
    }

    /// Waits until the status is no longer [`DeviceStatus::Loading`], at most `longest`, and
    /// returns it. Requests wait by themselves.
    pub fn wait_for_device(&self, longest: Duration) -> DeviceStatus {
        self.handle.state.device.status.wait_until_loaded(longest)
    }

    /// Switches to another device and cancels a load in progress. While the new device is loaded,
    /// the CPU computes and generations continue. The budget of the choice replaces that of
    /// [`Engine::set_vram_budget`].
    pub fn set_device(&self, choice: &DeviceChoice) -> Result<()> {
        let budget = choice.budget();
        let state = &self.handle.state;
        // The command below applies all settings.
        let _ = state.settings.change(|settings| settings.budget = budget);
        *state.device.choice.lock() = choice.clone();
        state.figures.decode_rates.forget_device();
        state.figures.timed_tokens.forget();
        self.command(EngineCommand::SwitchDevice { source: device_source(choice, &state.device.load) })
    }

    /// Tries the chosen device again if it is not in use, for example after it was lost or full.
    pub fn retry_device(&self) -> Result<()> {
        self.command(EngineCommand::RetryDevice)
    }

    /// Sets the largest number of bytes of device memory to hold; 0 keeps everything in RAM.
    /// Returns at once. The engine then releases the excess between two tokens, and
    /// [`DeviceStatus::Gpu`] shows the new budget once the memory fits. Weights for which there is
    /// room are uploaded gradually while generations continue. Of several calls in a row only the
    /// last may take effect. An answer with a seed whose routers prefer resident experts keeps the
    /// old budget to its end.
    ///
    /// # Errors
    /// [`Error::Stopped`](thermocline_base::error::Error::Stopped) after the engine has stopped.
    pub fn set_vram_budget(&self, bytes: u64) -> Result<()> {
        self.change_settings(|settings| settings.budget = Some(bytes))
    }

    /// The latest requested budget; `None` allows all free memory. [`Engine::device`] reports the
    /// budget in force.
    pub fn vram_budget(&self) -> Option<u64> {
        self.handle.state.settings.latest().budget
    }

    /// Tokens of a prompt's chunk on a device. Layers with a window keep at least as many positions
    /// besides the window. Does not wait.
    pub fn device_chunk(&self) -> usize {
        self.handle.state.planner.chunk()
    }

    /// The parts of the model that are in VRAM now, neuron by neuron; `None` if nothing is. Does
    /// not wait.
    pub fn resident(&self) -> Option<Arc<Resident>> {
        self.handle.state.device.resident.lock().clone()
    }

    /// How much of [`EngineOptions::split`](crate::session::EngineOptions::split) is resident;
    /// `None` without a split. Does not wait.
    pub fn split(&self) -> Option<SplitReport> {
        let resident = self.resident().unwrap_or_default();
        self.handle.state.planner.split().map(|split| SplitReport::new(split, &resident))
    }

    /// Firing frequencies of `layer`: the profile's, or without a profile the engine's own counts.
    /// `None` until any are known.
    pub fn frequencies(&self, layer: usize) -> Option<NeuronFrequencies> {
        NeuronFrequencies::of_layer(self.model(), self.neurons(), layer)
    }

    /// Changes the sparsity mode for the following tokens.
    ///
    /// # Errors
    /// [`Error::Stopped`](thermocline_base::error::Error::Stopped) after the engine has stopped.
    pub fn set_sparsity(&self, choice: SparsityChoice) -> Result<()> {
        self.change_settings(|settings| settings.sparsity = choice)
    }

    /// The sparsity mode in use and the reason for it. Does not wait.
    pub fn sparsity(&self) -> SparsityReport {
        self.handle.state.sparsity.lock().clone()
    }

    /// The sparsity mode that `choice` would use for this model, and the reason. Changes nothing.
    pub fn sparsity_of(&self, choice: SparsityChoice) -> SparsityReport {
        SparsityReport::new(choice, self.model(), self.recall())
    }

    /// Fraction of the firings that predictors must find.
    pub fn recall(&self) -> f32 {
        self.handle.state.recall
    }

    /// Switches [`EngineOptions::adaptive`](crate::session::EngineOptions::adaptive). Neurons that
    /// were swapped stay where they are.
    ///
    /// # Errors
    /// [`Error::Stopped`](thermocline_base::error::Error::Stopped) after the engine has stopped.
    pub fn set_adaptive(&self, on: bool) -> Result<()> {
        self.change_settings(|settings| settings.adaptive = on)
    }

    /// True if adaptation is requested.
    pub fn adaptive(&self) -> bool {
        self.handle.state.settings.latest().adaptive
    }

    fn change_settings(&self, change: impl FnOnce(&mut RequestedSettings)) -> Result<()> {
        if self.handle.state.settings.change(change) {
            return self.command(EngineCommand::ApplySettings);
        }
        self.stopped().map_or(Ok(()), Err)
    }
}
