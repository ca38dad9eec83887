//! The user's settings: one JSON file that people can read and edit.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thermocline_engine::{
    Error, FileAction,
    files::{self, Form},
};

use crate::{speeds::SpeedMemory, tools::ToolSettings};
use thermocline_host::{network::SERVER_PORT, remote::ServerAddress};

/// Largest number of recent models.
const RECENT: usize = 12;

/// All settings. Unknown fields are kept, so that an older version does not lose the fields of a
/// newer one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Colour theme.
    pub theme: Theme,
    /// Zoom factor; 1 is normal.
    pub zoom: Zoom,
    /// Reduce animation.
    pub reduced_motion: bool,
    /// Folders and files searched for models, in addition to the download folder.
    pub folders: Vec<PathBuf>,
    /// Keys of recently used models, the latest first.
    pub recent: Vec<String>,
    /// Settings by model key.
    pub models: BTreeMap<String, ModelSettings>,
    /// Highest measured rate, in bytes per second, at which the CPU read weights during an answer.
    /// Measured only with models whose weights the CPU reads whole for each token.
    pub weights_read: Option<f64>,
    /// Settings of the neuron map.
    pub heatmap: HeatmapSettings,
    /// Visible columns.
    pub panels: Panels,
    /// Graphics backend of the window.
    pub drawing: DrawingSettings,
    /// Settings of the server.
    pub server: ServerSettings,
    /// Servers whose models are listed beside the models of this computer. Their keys are kept
    /// elsewhere.
    pub remote_servers: Vec<ServerAddress>,
    /// Tools that models may call, and the servers that have them.
    pub tools: ToolSettings,
    /// The notice of newer versions.
    pub updates: UpdateSettings,
    /// True to neither use nor keep counts of neuron firings.
    pub no_counts: bool,
    /// True to keep, across chats, the words of answers at which neurons fire.
    pub keep_neuron_words: bool,
    /// Key of the embedding model that finds passages of attached files. Empty: words find them;
    /// `None`: the smallest embedding model of the library.
    pub passage_model: Option<String>,
    /// Number of the chat shown last, in any window.
    pub last_chat: Option<i64>,
    /// Fields written by other versions.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

/// Colour theme of the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Theme {
    /// Follows the system's theme.
    #[default]
    System,
    /// Dark on light.
    Light,
    /// Light on dark.
    Dark,
}

/// A zoom factor from 0.5 to 3.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(from = "f32", into = "f32")]
pub struct Zoom(f32);

impl Default for Zoom {
    fn default() -> Self {
        Zoom(1.0)
    }
}

impl From<f32> for Zoom {
    fn from(factor: f32) -> Self {
        if factor.is_finite() { Zoom(factor.clamp(0.5, 3.0)) } else { Zoom::default() }
    }
}

impl From<Zoom> for f32 {
    fn from(zoom: Zoom) -> f32 {
        zoom.0
    }
}

/// Settings of one model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelSettings {
    /// VRAM budget; `None`: all free VRAM.
    pub budget: Option<VramBudget>,
    /// Name of the adapter. Empty: the CPU; `None`: the best adapter.
    pub device: Option<String>,
    /// Context length in tokens.
    pub context: Option<usize>,
    /// Name of the KV cache's type.
    pub kv_type: Option<String>,
    /// Key of its draft model.
    pub draft: Option<String>,
    /// Name of the sparsity mode.
    pub sparsity: Option<String>,
    /// Fraction of the weights that the threshold mode skips because their inputs are small.
    pub level: Option<f32>,
    /// True to adapt the hot neurons to the text, false to keep them. `None`: adapt if it pays.
    pub adaptive: Option<bool>,
    /// Measured speeds of its answers on this computer, by setting.
    pub speeds: SpeedMemory,
    /// Fields written by other versions.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

/// The VRAM that may be used, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VramBudget {
    /// At most this many bytes.
    AtMost(u64),
    /// All free VRAM except this many bytes.
    LeaveFree(u64),
}

impl VramBudget {
    /// The budget as a limit in bytes. `can_have` is the VRAM that is free or already in use by us.
    pub fn limit(self, can_have: u64) -> u64 {
        match self {
            VramBudget::AtMost(bytes) => bytes,
            VramBudget::LeaveFree(bytes) => can_have.saturating_sub(bytes),
        }
    }
}

/// Settings of the neuron map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeatmapSettings {
    /// Record and show neurons.
    pub on: bool,
    /// Name of the displayed quantity, for models whose neurons are zero for most tokens.
    pub mode: String,
    /// Name of the displayed quantity, for models whose neurons are never exactly zero; empty: the
    /// default.
    pub smooth_mode: String,
    /// Name of the displayed quantity, for MoE models.
    pub experts_mode: String,
    /// Percentage of a layer's output mass that decides which neurons fire, for models whose
    /// neurons are never exactly zero.
    pub mass_percent: u8,
    /// Name of the colour map.
    pub colours: String,
    /// Sort neurons by frequency instead of the model's order.
    pub by_frequency: bool,
}

impl Default for HeatmapSettings {
    fn default() -> Self {
        HeatmapSettings {
            on: true,
            mode: "fired".to_owned(),
            smooth_mode: String::new(),
            experts_mode: String::new(),
            mass_percent: 90,
            colours: "inferno".to_owned(),
            by_frequency: true,
        }
    }
}

/// Graphics backend of the window, by name: `dx12`, `vulkan`, `metal` or `gl`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DrawingSettings {
    /// Backend to try first. `None`: the backend that worked last, or the system's best.
    pub backend: Option<String>,
    /// Backend that drew the window last time.
    pub worked: Option<String>,
    /// Fields written by other versions.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

/// Settings of the server that serves other programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerSettings {
    /// Whether the server is on.
    pub on: bool,
    /// Port; 0 means any free port.
    pub port: u16,
    /// Accept requests from other computers.
    pub network: bool,
    /// Key that clients must present; empty: no key.
    pub key: String,
    /// Fields written by other versions.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

impl Default for ServerSettings {
    fn default() -> Self {
        let (key, other) = (String::new(), serde_json::Map::new());
        ServerSettings { on: false, port: SERVER_PORT, network: false, key, other }
    }
}

/// Settings of the notice of a newer version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UpdateSettings {
    /// Whether Thermocline looks for a newer version. Off until the user turns it on.
    pub on: bool,
    /// Address to look at; `None`: the address of this build.
    pub address: Option<String>,
}

impl UpdateSettings {
    /// The address to look at; empty if there is none.
    pub fn address(&self) -> &str {
        self.address.as_deref().or(crate::update::ADDRESS).unwrap_or_default()
    }
}

/// Visible columns of the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Panels {
    /// The list of chats.
    pub chats: bool,
    /// The neurons and the memory.
    pub neurons: bool,
}

impl Default for Panels {
    fn default() -> Self {
        Panels { chats: true, neurons: true }
    }
}

impl Settings {
    /// Reads the settings file; a missing file gives the defaults. An invalid file is moved aside.
    /// The second value then says where to and why.
    ///
    /// # Errors
    /// The file exists but cannot be read or moved.
    pub fn load(path: &Path) -> io::Result<(Self, Option<String>)> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Settings::default(), None)),
            Err(error) => return Err(error),
        };
        match serde_json::from_slice(&text) {
            Ok(settings) => Ok((settings, None)),
            Err(error) => {
                let damaged = (1..).map(|n| path.with_extension(format!("damaged-{n}.json"))).find(|it| !it.exists());
                let damaged = damaged.unwrap_or_else(|| path.with_extension("damaged.json"));
                fs::rename(path, &damaged)?;
                let why = format!(
                    "the settings file is damaged ({error}). It is kept as {}, and the default settings are used",
                    damaged.display()
                );
                Ok((Settings::default(), Some(why)))
            }
        }
    }

    /// The settings of the file, or the defaults if it is invalid. Used before [`Settings::load`].
    pub fn peek(path: &Path) -> Self {
        fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// Writes the file atomically.
    ///
    /// # Errors
    /// The errors of [`files::write`].
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let failed = |error| Error::io(FileAction::Write, path, error);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).map_err(failed)?;
        let mut text = serde_json::to_vec_pretty(self).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        files::write(path, Form::Stream, &text)
    }

    /// Merges the settings `theirs`, written by another window, with the changes made here since
    /// `base`.
    pub fn merged(&self, base: &Settings, theirs: &Settings) -> Settings {
        let json = |settings: &Settings| serde_json::to_value(settings).ok();
        let merged = match (json(self), json(base), json(theirs)) {
            (Some(ours), Some(base), Some(theirs)) => serde_json::from_value(merged(ours, &base, theirs)).ok(),
            _ => None,
        };
        merged.unwrap_or_else(|| self.clone())
    }

    /// Moves `model` to the front of the recent models.
    pub fn add_recent(&mut self, model: &str) {
        self.recent.retain(|it| it != model);
        self.recent.insert(0, model.to_owned());
        self.recent.truncate(RECENT);
    }
}

/// `ours` if it differs from `base`, otherwise `theirs`. Objects are merged field by field.
fn merged(ours: Value, base: &Value, theirs: Value) -> Value {
    match (ours, base, theirs) {
        (Value::Object(mut ours), Value::Object(base), Value::Object(mut theirs)) => {
            // A field removed here stays removed.
            theirs.retain(|key, value| ours.contains_key(key) || base.get(key) != Some(value));
            for (key, value) in theirs {
                let old = base.get(&key).unwrap_or(&Value::Null);
                let own = ours.remove(&key).unwrap_or_else(|| old.clone());
                ours.insert(key, merged(own, old, value));
            }
            Value::Object(ours)
        }
        (ours, base, theirs) if ours == *base => theirs,
        (ours, ..) => ours,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_restores_saved_settings_and_unknown_fields() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/settings.json");
        assert_eq!(Settings::load(&path).unwrap(), (Settings::default(), None));
        assert_eq!(Settings::peek(&path), Settings::default());
        let mut settings = Settings { theme: Theme::Dark, zoom: Zoom::from(1.25), ..Settings::default() };
        settings.add_recent("a");
        settings.add_recent("b");
        settings.add_recent("a");
        let budget = Some(VramBudget::LeaveFree(1 << 30));
        settings.models.insert("a".to_owned(), ModelSettings { budget, ..ModelSettings::default() });
        settings.other.insert("of_tomorrow".to_owned(), serde_json::json!({"x": [1, 2]}));
        settings.save(&path).unwrap();
        assert_eq!(Settings::load(&path).unwrap(), (settings.clone(), None));
        assert_eq!(Settings::peek(&path), settings);
        assert_eq!(settings.recent, ["a", "b"]);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn load_accepts_partial_and_extreme_values_and_moves_invalid_files_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings.json");
        fs::write(&path, r#"{"theme": "light", "zoom": 99, "heatmap": {"on": false}}"#).unwrap();
        let (settings, trouble) = Settings::load(&path).unwrap();
        assert_eq!((settings.theme, f32::from(settings.zoom), trouble), (Theme::Light, 3.0, None));
        assert_eq!((settings.heatmap.on, &*settings.heatmap.mode), (false, "fired"));

        for nonsense in ["{", r#"{"theme": "purple"}"#, "\u{0}\u{1}"] {
            fs::write(&path, nonsense).unwrap();
            assert_eq!(Settings::peek(&path), Settings::default());
            assert!(path.exists(), "a glance changes nothing");
            let (settings, trouble) = Settings::load(&path).unwrap();
            assert_eq!(settings, Settings::default());
            assert!(trouble.unwrap().contains("damaged"), "{nonsense}");
            assert!(!path.exists());
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn merged_keeps_the_changes_of_both_windows() {
        let mut base = Settings { zoom: Zoom::from(1.5), ..Settings::default() };
        base.models.insert("a".to_owned(), ModelSettings { context: Some(512), ..ModelSettings::default() });
        let (mut ours, mut theirs) = (base.clone(), base.clone());
        ours.theme = Theme::Dark;
        ours.models.get_mut("a").unwrap().adaptive = Some(true);
        theirs.zoom = Zoom::from(2.0);
        theirs.theme = Theme::Light;
        theirs.models.get_mut("a").unwrap().context = Some(1024);
        theirs.models.insert("b".to_owned(), ModelSettings::default());
        let both = ours.merged(&base, &theirs);
        assert_eq!((both.theme, both.zoom), (Theme::Dark, Zoom::from(2.0)));
        let a = &both.models["a"];
        assert!(a.adaptive == Some(true) && a.context == Some(1024) && both.models.contains_key("b"));
        assert_eq!((ours.merged(&base, &base), base.merged(&base, &theirs)), (ours, theirs));
    }

    #[test]
    fn budget_limit_is_absolute_or_relative_to_free_memory() {
        assert_eq!(VramBudget::AtMost(5).limit(150), 5);
        assert_eq!(VramBudget::LeaveFree(30).limit(150), 120);
        assert_eq!(VramBudget::LeaveFree(300).limit(150), 0);
    }
}
