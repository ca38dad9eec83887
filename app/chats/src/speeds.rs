//! Measured speeds of a model, by setting, and the error of each forecast. The window shows no
//! estimate if the last forecast was wrong.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

use crate::settings::VramBudget;
use thermocline_host::units::bytes;

/// Largest number of settings of a model whose speeds are kept. A further setting replaces the one
/// measured longest ago.
const MOST: usize = 64;

/// Greatest error of an estimate that is shown, as a fraction of the measured speed.
const TOLERANCE: f64 = 0.25;

/// Natural logarithm of the smallest ratio of two speeds that is written to the settings.
const CHANGE: f64 = 0.1;

/// The setting in which a speed is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpeedSetting {
    /// Sparsity mode, with the skipped fraction of the weights if the mode skips small inputs.
    pub mode: String,
    /// Adapter and its budget; `None`: the CPU alone.
    pub device: Option<DeviceBudget>,
    /// Context length in tokens.
    pub context: usize,
}

/// A device and the VRAM budget that it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceBudget {
    /// Name of the adapter.
    pub adapter: String,
    /// The budget; `None`: all free VRAM.
    pub budget: Option<VramBudget>,
}

impl SpeedSetting {
    /// Name of a sparsity mode, with the fraction of the weights that small inputs skip.
    pub fn mode_name(mode: &str, level: Option<f32>) -> String {
        level.map_or(mode.to_owned(), |level| format!("{mode} at {:.0} %", 100.0 * level))
    }

    /// Mode and processors. Settings of the same kind differ only in budget and context.
    fn kind(&self) -> String {
        let device = self.device.as_ref().map_or("CPU", |device| &device.adapter);
        format!("{}, {device}, ", self.mode)
    }
}

impl fmt::Display for SpeedSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind())?;
        match self.device.as_ref().map(|device| device.budget) {
            None => {}
            Some(None) => f.write_str("all free VRAM, ")?,
            Some(Some(VramBudget::AtMost(most))) => write!(f, "{} of VRAM, ", bytes(most))?,
            Some(Some(VramBudget::LeaveFree(left))) => write!(f, "all VRAM but {}, ", bytes(left))?,
        }
        write!(f, "{} tokens", self.context)
    }
}

/// A measured speed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MeasuredSpeed {
    /// Tokens per second.
    pub rate: f64,
    /// Tokens per second that were predicted before the first answer; `None` if there was no
    /// prediction.
    pub expected: Option<f64>,
    /// Time of the measurement, in seconds since 1970.
    pub at: u64,
}

impl MeasuredSpeed {
    /// Error of the forecast, as a fraction of the measured speed.
    pub fn error(&self) -> Option<f64> {
        self.expected.map(|expected| (expected / self.rate - 1.0).abs())
    }
}

/// Measured speeds of one model, keyed by the text of the [`SpeedSetting`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SpeedMemory(BTreeMap<String, MeasuredSpeed>);

impl SpeedMemory {
    /// Last measured tokens per second in this setting.
    pub fn rate(&self, setting: &SpeedSetting) -> Option<f64> {
        self.0.get(&setting.to_string()).map(|speed| speed.rate)
    }

    /// All measured speeds, by setting.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &MeasuredSpeed)> {
        self.0.iter().map(|(setting, speed)| (setting.as_str(), speed))
    }

    /// Records a measured speed. Small changes are not recorded. `expected` is the speed predicted
    /// for this setting before the first answer, if there was a prediction.
    pub fn keep(&mut self, setting: &SpeedSetting, rate: f64, expected: Option<f64>) {
        if !(rate.is_finite() && rate > 0.0) {
            return;
        }
        let key = setting.to_string();
        let kept = self.0.get(&key);
        let expected = expected.map(three_digits).or(kept.and_then(|kept| kept.expected));
        if kept.is_some_and(|kept| (kept.rate / rate).ln().abs() <= CHANGE && kept.expected == expected) {
            return;
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        self.0.insert(key, MeasuredSpeed { rate: three_digits(rate), expected, at: now.as_secs() });
        while self.0.len() > MOST {
            let oldest = self.0.iter().min_by_key(|(_, speed)| speed.at).map(|(key, _)| key.clone());
            oldest.and_then(|key| self.0.remove(&key));
        }
    }

    /// Measured speeds with a forecast, in settings of the same mode and processors.
    fn judged(&self, setting: &SpeedSetting) -> impl Iterator<Item = &MeasuredSpeed> {
        let kind = setting.kind();
        let of_kind = self.0.iter().filter(move |(key, _)| key.starts_with(&kind));
        of_kind.map(|(_, speed)| speed).filter(|speed| speed.expected.is_some())
    }

    /// True if an estimate for this setting may be shown: the last forecast was near the measured
    /// speed. If this setting had no forecast, the latest one with the same mode and processors
    /// decides.
    pub fn trusts(&self, setting: &SpeedSetting) -> bool {
        let of_setting = self.0.get(&setting.to_string()).and_then(MeasuredSpeed::error);
        let resembling = || self.judged(setting).max_by_key(|speed| speed.at).and_then(MeasuredSpeed::error);
        of_setting.or_else(resembling).is_none_or(|error| error <= TOLERANCE)
    }
}

/// Factor that corrects a model's forecast by answers of the models `others`: measured speed /
/// expected speed, in the latest setting of the same mode and processors. 1 if the model has
/// answers of its own, or if there are no others.
pub fn correction<'a>(
    own: &SpeedMemory,
    others: impl IntoIterator<Item = &'a SpeedMemory>,
    setting: &SpeedSetting,
) -> f64 {
    if own.judged(setting).next().is_some() {
        return 1.0;
    }
    let latest = others.into_iter().flat_map(|speeds| speeds.judged(setting)).max_by_key(|speed| speed.at);
    latest.and_then(|speed| Some(speed.rate / speed.expected?)).filter(|factor| factor.is_finite()).unwrap_or(1.0)
}

/// Predicted speeds, used until an answer has been measured, and the last saved measured speed.
#[derive(Debug, Default)]
pub struct ExpectedSpeeds {
    /// Predicted speed and its setting, by model key.
    told: BTreeMap<String, (SpeedSetting, f64)>,
    kept: Option<f64>,
}

impl ExpectedSpeeds {
    /// Records the predicted tokens per second of a model in a setting, to compare them with the
    /// measured speed.
    pub fn tell(&mut self, key: String, setting: &SpeedSetting, rate: f64) {
        if self.told.get(&key).is_none_or(|(of, before)| of != setting || *before != rate) {
            self.told.insert(key, (setting.clone(), rate));
        }
    }

    /// Tokens per second last predicted for this model, if the prediction was for this setting.
    pub fn of(&self, key: &str, setting: &SpeedSetting) -> Option<f64> {
        self.told.get(key).filter(|(of, _)| of == setting).map(|(_, rate)| *rate)
    }

    /// True if `rate` differs from the saved speed.
    pub fn is_new(&self, rate: Option<f64>) -> bool {
        self.kept != rate
    }

    /// Records that `rate` was saved.
    pub fn note_kept(&mut self, rate: Option<f64>) {
        self.kept = rate;
    }
}

/// Rounds a rate to three significant digits.
fn three_digits(rate: f64) -> f64 {
    if !(rate.is_finite() && rate > 0.0) {
        return rate;
    }
    let scale = 10f64.powi(2 - rate.log10().floor() as i32);
    (rate * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::ModelSettings;

    fn setting(mode: &str, budget: Option<Option<VramBudget>>) -> SpeedSetting {
        let device = budget.map(|budget| DeviceBudget { adapter: "card".to_owned(), budget });
        SpeedSetting { mode: mode.to_owned(), device, context: 4096 }
    }

    #[test]
    fn rate_of_another_setting_is_not_overwritten() {
        let mut speeds = SpeedMemory::default();
        let at_most = Some(Some(VramBudget::AtMost(6 << 30)));
        let all = [
            setting("exact", None),
            setting("dense", None),
            setting("exact", Some(None)),
            setting("exact", at_most),
            setting("exact", Some(Some(VramBudget::LeaveFree(1 << 30)))),
            SpeedSetting { context: 512, ..setting("exact", at_most) },
            setting(&SpeedSetting::mode_name("threshold", Some(0.4)), None),
        ];
        for (n, setting) in all.iter().enumerate() {
            assert_eq!(speeds.rate(setting), None);
            speeds.keep(setting, 10.0 + n as f64, None);
        }
        let rates: Vec<_> = all.iter().filter_map(|setting| speeds.rate(setting)).collect();
        assert_eq!(rates, [10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0]);
        assert_eq!(all[3].to_string(), "exact, card, 6.0 GiB of VRAM, 4096 tokens");
        assert_eq!(all[6].to_string(), "threshold at 40 %, CPU, 4096 tokens");
    }

    #[test]
    fn speeds_are_kept_with_three_digits_and_changed_by_large_differences_only() {
        let (mut speeds, cpu) = (SpeedMemory::default(), setting("exact", None));
        let kept = |speeds: &SpeedMemory| speeds.rate(&setting("exact", None));
        speeds.keep(&cpu, 0.012345, None);
        assert_eq!(kept(&speeds), Some(0.0123));
        speeds.keep(&cpu, 0.0129, None);
        assert_eq!(kept(&speeds), Some(0.0123));
        speeds.keep(&cpu, 123.4, None);
        assert_eq!(kept(&speeds), Some(123.0));
        for nonsense in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            speeds.keep(&cpu, nonsense, None);
            assert_eq!(kept(&speeds), Some(123.0));
        }
        (0..2 * MOST).for_each(|n| speeds.keep(&SpeedSetting { context: n, ..cpu.clone() }, 1.0, None));
        assert_eq!(speeds.iter().count(), MOST);
    }

    #[test]
    fn estimates_that_missed_by_a_quarter_are_not_trusted() {
        let mut speeds = SpeedMemory::default();
        let (cpu, card) = (setting("exact", None), setting("exact", Some(Some(VramBudget::AtMost(6 << 30)))));
        assert!(speeds.trusts(&cpu), "nothing speaks against it");
        speeds.keep(&cpu, 100.0, Some(124.0));
        assert!(speeds.trusts(&cpu));
        speeds.keep(&cpu, 100.0, Some(130.0));
        assert!(!speeds.trusts(&cpu) && speeds.trusts(&card) && speeds.trusts(&setting("dense", None)));
        speeds.keep(&cpu, 130.0, None);
        assert!(speeds.trusts(&cpu), "the same forecast is near the speed of now");
        speeds.keep(&card, 10.0, Some(100.0));
        assert!(
            !speeds.trusts(&setting("exact", Some(Some(VramBudget::AtMost(2 << 30))))),
            "another budget of the card"
        );
    }

    #[test]
    fn answers_of_other_models_correct_a_forecast() {
        let (cpu, card) = (setting("exact", None), setting("exact", Some(None)));
        let (mut own, mut other) = (SpeedMemory::default(), SpeedMemory::default());
        assert_eq!(correction(&own, [&own, &other], &cpu), 1.0, "no answers");
        other.keep(&cpu, 5.0, Some(20.0));
        assert_eq!((correction(&own, [&own, &other], &cpu), correction(&own, [&other], &card)), (0.25, 1.0));
        let longer = SpeedSetting { context: 512, ..cpu.clone() };
        assert_eq!(correction(&own, [&other], &longer), 0.25, "of the same kind");
        own.keep(&cpu, 7.0, Some(20.0));
        assert_eq!(correction(&own, [&own, &other], &longer), 1.0, "its own answers decide");
    }

    #[test]
    fn settings_with_a_single_rate_are_read() {
        let old = r#"{"budget": {"at_most": 5}, "rate": 12.5}"#;
        let read: ModelSettings = serde_json::from_str(old).unwrap();
        assert_eq!((read.budget, read.speeds.iter().count()), (Some(VramBudget::AtMost(5)), 0));
        let mut new = read.clone();
        new.speeds.keep(&setting("exact", None), 7.0, Some(8.0));
        let again: ModelSettings = serde_json::from_str(&serde_json::to_string(&new).unwrap()).unwrap();
        assert_eq!(again, new);
    }
}
