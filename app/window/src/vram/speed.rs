//! The speed that the window shows for a setting: measured, expected, or unknown.

use thermocline_engine::{
    placement::Forecast,
    runtime::Sparsity,
    session::{DeviceStatus, Engine},
};

use super::room::chosen_adapter;
use crate::shell::Shell;
use thermocline_chats::{
    settings::VramBudget,
    speeds::{self, DeviceBudget, SpeedMemory, SpeedSetting},
};
use thermocline_host::{engine_handle::ModelState, library::ModelId, units};

/// Size of weights, in bytes, from which no CPU cache matters.
const UNCACHED: u64 = 256 << 20;

/// A speed in tokens per second, and its origin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Speed {
    /// Measured from an answer with this setting.
    Measured(f64),
    /// Predicted by a forecast that no answer has refuted.
    Expected(f64),
    /// No answer was measured, and no forecast can be trusted.
    Unknown,
}

/// A forecast's speed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpectedSpeed {
    /// Tokens per second.
    pub rate: f64,
    /// True if answers have corrected it.
    pub corrected: bool,
}

impl Speed {
    /// The speed of a setting that is not in force: the remembered measurement, otherwise the
    /// expected speed unless the last such estimate was wrong.
    pub fn remembered(speeds: &SpeedMemory, setting: &SpeedSetting, expected: Option<ExpectedSpeed>) -> Self {
        let trusted = |it: &ExpectedSpeed| it.corrected || speeds.trusts(setting);
        match (speeds.rate(setting), expected.filter(trusted)) {
            (Some(rate), _) => Speed::Measured(rate),
            (None, Some(expected)) => Speed::Expected(expected.rate),
            (None, None) => Speed::Unknown,
        }
    }

    /// The speed as text, if it is known.
    pub fn known(self) -> Option<String> {
        match self {
            Speed::Measured(rate) => Some(format!("measured at {}", units::rate(rate))),
            Speed::Expected(rate) => Some(format!("about {}", units::rate(rate))),
            Speed::Unknown => None,
        }
    }

    /// The speed as text.
    pub fn words(self) -> String {
        self.known().unwrap_or_else(|| "speed is measured with the first answer".to_owned())
    }
}

/// The setting of the open model, if its budget was reached and no weights move.
fn setting_in_force(shell: &Shell, model: &ModelId, engine: &Engine) -> Option<SpeedSetting> {
    let adapter = match engine.device() {
        DeviceStatus::Gpu(memory) => {
            let reached = engine.vram_budget().is_none_or(|asked| memory.budget == Some(memory.limited(asked)));
            (reached && !memory.moving).then_some(Some(memory.adapter))?
        }
        DeviceStatus::Cpu { .. } => None,
        DeviceStatus::Loading(_) | DeviceStatus::Lost { .. } => return None,
    };
    let budget = shell.settings.models.get(&model.key()).and_then(|chosen| chosen.budget);
    Some(setting(engine, adapter.map(|adapter| DeviceBudget { adapter, budget })))
}

/// The speed of the open model with the plan of `forecast`, under the dragged or stored budget.
pub fn speed_of(shell: &mut Shell, model: &ModelId, engine: &Engine, forecast: &Forecast) -> Speed {
    let on_device = forecast.plan.placement.any_resident();
    let in_force = setting_in_force(shell, model, engine)
        .filter(|setting| shell.vram.dragged.is_none() && setting.device.is_some() == on_device);
    if in_force.is_some()
        && let Some(rate) = engine.observed_rate()
    {
        return Speed::Measured(rate);
    }
    let setting = in_force.unwrap_or_else(|| {
        let kept = shell.settings.models.get(&model.key()).and_then(|chosen| chosen.budget);
        setting_of(shell, model, engine, forecast, shell.vram.dragged.or(kept))
    });
    let expected = expected_of(forecast);
    if let Some(ExpectedSpeed { rate, corrected: false }) = expected.filter(|_| shell.vram.dragged.is_none()) {
        shell.vram.expected_speeds.tell(model.key(), &setting, rate);
    }
    remembered_speed(shell, &model.key(), &setting, expected)
}

/// The speed with the plan of `forecast` under another budget than the one in force.
pub fn speed_under(shell: &Shell, model: &ModelId, engine: &Engine, forecast: &Forecast, budget: VramBudget) -> Speed {
    let setting = setting_of(shell, model, engine, forecast, Some(budget));
    remembered_speed(shell, &model.key(), &setting, expected_of(forecast))
}

/// The speed of the model with this key in a setting: the measured one, otherwise the expected one,
/// corrected by answers.
pub fn remembered_speed(shell: &Shell, key: &str, setting: &SpeedSetting, expected: Option<ExpectedSpeed>) -> Speed {
    let none = SpeedMemory::default();
    let models = &shell.settings.models;
    let speeds = models.get(key).map_or(&none, |chosen| &chosen.speeds);
    let expected = expected.map(|expected| match expected.corrected {
        true => expected,
        false => {
            // CPU caches determine the speed of the built-in model.
            let builtin = ModelId::Builtin.key();
            let others = models.iter().filter(|(key, _)| **key != builtin).map(|(_, chosen)| &chosen.speeds);
            let factor = speeds::correction(speeds, others, setting);
            ExpectedSpeed { rate: expected.rate * factor, ..expected }
        }
    });
    Speed::remembered(speeds, setting, expected)
}

fn expected_of(forecast: &Forecast) -> Option<ExpectedSpeed> {
    forecast.tokens_per_second.map(|rate| ExpectedSpeed { rate, corrected: forecast.corrected })
}

/// The setting of the open model with the plan of `forecast`.
fn setting_of(
    shell: &Shell,
    model: &ModelId,
    engine: &Engine,
    forecast: &Forecast,
    budget: Option<VramBudget>,
) -> SpeedSetting {
    let adapter = match engine.device() {
        DeviceStatus::Gpu(memory) => Some(memory.adapter),
        _ => chosen_adapter(shell, model).map(|adapter| adapter.name.clone()),
    };
    let device = adapter.filter(|_| forecast.plan.placement.any_resident());
    setting(engine, device.map(|adapter| DeviceBudget { adapter, budget }))
}

/// Stores the measured speed of the open model for its setting, with the speed predicted before.
pub fn keep_speed(shell: &mut Shell) {
    let ModelState::Ready { model, engine } = shell.engine_handle.state() else { return };
    let measured = engine.observed_rate();
    if !shell.vram.expected_speeds.is_new(measured) {
        return;
    }
    if let Some(rate) = measured {
        let Some(setting) = setting_in_force(shell, &model, &engine) else { return };
        let expected = shell.vram.expected_speeds.of(&model.key(), &setting);
        if let Some(read) = weights_read(&engine, rate) {
            let most = shell.settings.weights_read.get_or_insert(read);
            // Small changes are not worth a write.
            *most = if read > *most * 1.05 { read } else { *most };
        }
        shell.model_settings(&model).speeds.keep(&setting, rate, expected);
    }
    shell.vram.expected_speeds.note_kept(measured);
}

/// Bytes of weights per second that the CPU reads at this rate. `None` if a token does not need all
/// weights, or if the weights are in VRAM or in caches.
fn weights_read(engine: &Engine, rate: f64) -> Option<f64> {
    let model = engine.model();
    let reads_all = model.config.experts.is_none()
        && (engine.sparsity().mode == Sparsity::Dense || !model.config.activation.is_sparse());
    let bytes = model.checkpoint.tensor_bytes();
    let counts = reads_all && bytes >= UNCACHED && matches!(engine.device(), DeviceStatus::Cpu { .. });
    counts.then_some(rate * bytes as f64)
}

fn setting(engine: &Engine, device: Option<DeviceBudget>) -> SpeedSetting {
    let mode = SpeedSetting::mode_name(engine.sparsity().mode.name(), engine.model().weights.input_level);
    SpeedSetting { mode, device, context: engine.context() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_text_names_known_rates_only() {
        assert_eq!(Speed::Unknown.words(), "speed is measured with the first answer");
        assert_eq!(Speed::Unknown.known(), None);
        assert_eq!(Speed::Expected(12.3).words(), "about 12 tok/s");
        assert_eq!(Speed::Expected(0.04).words(), "about 25 s a token");
        assert_eq!(Speed::Measured(12.3).words(), "measured at 12 tok/s");
    }

    #[test]
    fn estimate_that_missed_is_hidden_until_answers_correct_it() {
        let card = |mib: u64| SpeedSetting {
            mode: "exact".to_owned(),
            device: Some(DeviceBudget { adapter: "card".to_owned(), budget: Some(VramBudget::AtMost(mib << 20)) }),
            context: 4096,
        };
        let estimate = |corrected| Some(ExpectedSpeed { rate: 50.0, corrected });
        let mut speeds = SpeedMemory::default();
        assert_eq!(Speed::remembered(&speeds, &card(100), estimate(false)), Speed::Expected(50.0));
        assert_eq!(Speed::remembered(&speeds, &card(100), None), Speed::Unknown);
        speeds.keep(&card(100), 20.0, Some(50.0));
        assert_eq!(Speed::remembered(&speeds, &card(100), estimate(false)), Speed::Measured(20.0));
        assert_eq!(Speed::remembered(&speeds, &card(200), estimate(false)), Speed::Unknown);
        assert_eq!(Speed::remembered(&speeds, &card(200), estimate(true)), Speed::Expected(50.0));
        speeds.keep(&card(100), 45.0, None);
        assert_eq!(Speed::remembered(&speeds, &card(200), estimate(false)), Speed::Expected(50.0));
    }
}
