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
    /// The processor that it computes on now. Does not wait.
    pub fn device(&self) -> DeviceStatus {
        self.handle.state.device.status.read()
    }

    /// The status as soon as it is not [`DeviceStatus::Loading`], or after `longest`. Requests wait by themselves.
    pub fn wait_for_device(&self, longest: Duration) -> DeviceStatus {
        self.handle.state.device.status.wait_until_loaded(longest)
    }

    /// Switches to another device. A load under way is cancelled. While the other device is loaded, the CPU does the work; generations
    /// go on throughout. The choice's budget replaces that of [`Engine::set_vram_budget`].
    pub fn set_device(&self, choice: &DeviceChoice) -> Result<()> {
        let budget = choice.budget();
        let state = &self.handle.state;
        // The command below applies all settings, too.
        let _ = state.settings.change(|settings| settings.budget = budget);
        *state.device.choice.lock() = choice.clone();
        state.figures.decode_rates.forget_device();
        state.figures.timed_tokens.forget();
        self.command(EngineCommand::SwitchDevice { source: device_source(choice, &state.device.load) })
    }

    /// Tries the chosen device again, if it is not in use: after the engine has given it up as lost or full.
    pub fn retry_device(&self) -> Result<()> {
        self.command(EngineCommand::RetryDevice)
    }

    /// Sets the most bytes of device memory to hold; with 0 everything is in RAM. Returns at once; between two tokens the engine then
    /// releases the excess, and [`DeviceStatus::Gpu`] shows the new budget once no more than that is held. Weights that it has room
    /// for are uploaded little by little, while generations go on. Of several calls in a row only the last may take effect.
    ///
    /// # Errors
    /// [`Error::Stopped`](thermocline_base::error::Error::Stopped) after the engine has stopped.
    pub fn set_vram_budget(&self, bytes: u64) -> Result<()> {
        self.change_settings(|settings| settings.budget = Some(bytes))
    }

    /// The budget requested last; `None`: all that is free. [`Engine::device`] has the one in force.
    pub fn vram_budget(&self) -> Option<u64> {
        self.handle.state.settings.latest().budget
    }

    /// The parts of the model that are in VRAM now, neuron by neuron; `None` if none is. Does not wait.
    pub fn resident(&self) -> Option<Arc<Resident>> {
        self.handle.state.device.resident.lock().clone()
    }

    /// How far [`EngineOptions::split`](crate::session::EngineOptions::split) is followed; `None` without one. Does not wait.
    pub fn split(&self) -> Option<SplitReport> {
        let resident = self.resident().unwrap_or_default();
        self.handle.state.planner.split().map(|split| SplitReport::new(split, &resident))
    }

    /// Firing frequencies of `layer`: the profile's, or, without one, those that the engine has counted. `None` as long as none are
    /// known.
    pub fn frequencies(&self, layer: usize) -> Option<NeuronFrequencies> {
        NeuronFrequencies::of_layer(self.model(), self.neurons(), layer)
    }

    /// Changes the sparsity mode from the next token on.
    ///
    /// # Errors
    /// [`Error::Stopped`](thermocline_base::error::Error::Stopped) after the engine has stopped.
    pub fn set_sparsity(&self, choice: SparsityChoice) -> Result<()> {
        self.change_settings(|settings| settings.sparsity = choice)
    }

    /// The sparsity mode in use, and why. Does not wait.
    pub fn sparsity(&self) -> SparsityReport {
        self.handle.state.sparsity.lock().clone()
    }

    /// The sparsity mode that `choice` would be for this model, and why. Changes nothing.
    pub fn sparsity_of(&self, choice: SparsityChoice) -> SparsityReport {
        SparsityReport::new(choice, self.model(), self.recall())
    }

    /// Fraction of the firings that predictors have to find.
    pub fn recall(&self) -> f32 {
        self.handle.state.recall
    }

    /// Switches [`EngineOptions::adaptive`](crate::session::EngineOptions::adaptive). Neurons swapped meanwhile stay where they are.
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
