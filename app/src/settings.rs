//! What the user chose, in one JSON file that people can read and edit.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{files, server::Options};

/// Most models remembered as used lately.
const RECENT: usize = 12;

/// Everything that is remembered beside chats. Unknown fields are kept, so that an older version loses nothing of a newer's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Light, dark, or as the system.
    pub theme: Theme,
    /// Size of everything; 1 is normal.
    pub zoom: Zoom,
    /// Whether the window does without movement that is only pleasant.
    pub reduced_motion: bool,
    /// Folders (and files) that models are looked for in, beside the one for downloads.
    pub folders: Vec<PathBuf>,
    /// Models used lately, the last one first.
    pub recent: Vec<String>,
    /// By model.
    pub models: BTreeMap<String, ModelSettings>,
    /// The heatmap.
    pub heatmap: HeatmapSettings,
    /// Which columns are shown.
    pub panels: Panels,
    /// Whether other programs may use the model, and how.
    pub server: ServerSettings,
    /// The chat that was shown last, in any window.
    pub last_chat: Option<i64>,
    /// Of other versions.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

/// Colours of the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Theme {
    /// As the system has it.
    #[default]
    System,
    /// Dark on light.
    Light,
    /// Light on dark.
    Dark,
}

/// A factor from 0.5 to 3.
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

/// What was chosen for one model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelSettings {
    /// Memory of the device it may take; `None`: what is free.
    pub budget: Option<Budget>,
    /// Name of the adapter; empty: the CPU; `None`: the best there is.
    pub device: Option<String>,
    /// Context in tokens.
    pub context: Option<usize>,
    /// Type of the KV cache, by name.
    pub kv_type: Option<String>,
    /// Sparsity, by name.
    pub sparsity: Option<String>,
    /// Whether what is hot follows the text.
    pub adaptive: bool,
    /// Of other versions.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

/// How much of a device's memory may be taken, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Budget {
    /// No more than this.
    AtMost(u64),
    /// All that is free but this.
    LeaveFree(u64),
}

impl Budget {
    /// The same as a limit, while `free` bytes are free and `held` are ours already.
    pub fn limit(self, free: u64, held: u64) -> u64 {
        match self {
            Budget::AtMost(bytes) => bytes,
            Budget::LeaveFree(bytes) => free.saturating_add(held).saturating_sub(bytes),
        }
    }
}

/// The heatmap's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeatmapSettings {
    /// Whether neurons are recorded and shown at all.
    pub on: bool,
    /// Name of what is shown.
    pub mode: String,
    /// Name of the colours.
    pub colours: String,
    /// Whether neurons are in order of frequency, rather than the model's.
    pub by_frequency: bool,
}

impl Default for HeatmapSettings {
    fn default() -> Self {
        HeatmapSettings { on: true, mode: "fired".to_owned(), colours: "inferno".to_owned(), by_frequency: true }
    }
}

/// How other programs use the model that is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerSettings {
    /// Whether they may.
    pub on: bool,
    /// Where the server listens; 0 is any port that is free.
    pub port: u16,
    /// Whether other computers may ask, too.
    pub network: bool,
    /// What clients have to present; nothing, if it is empty.
    pub key: String,
    /// Of other versions.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

impl Default for ServerSettings {
    fn default() -> Self {
        let (key, other) = (String::new(), serde_json::Map::new());
        ServerSettings { on: false, port: Options::PORT, network: false, key, other }
    }
}

/// Columns of the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Panels {
    /// Chats.
    pub chats: bool,
    /// Neurons and memory.
    pub neurons: bool,
}

impl Default for Panels {
    fn default() -> Self {
        Panels { chats: true, neurons: true }
    }
}

impl Settings {
    /// Reads the file; a missing one is the default. One that cannot be understood is moved aside, and the second value says
    /// where to and why.
    ///
    /// # Errors
    /// If it is there and cannot be read or moved.
    pub fn load(path: &Path) -> io::Result<(Self, Option<String>)> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Settings::default(), None)),
            Err(error) => return Err(error),
        };
        match serde_json::from_slice(&text) {
            Ok(settings) => Ok((settings, None)),
            Err(error) => {
                let aside = (1..).map(|n| path.with_extension(format!("damaged-{n}.json"))).find(|it| !it.exists());
                let aside = aside.unwrap_or_else(|| path.with_extension("damaged.json"));
                fs::rename(path, &aside)?;
                let why = format!("the settings could not be read ({error}); they are now {}", aside.display());
                Ok((Settings::default(), Some(why)))
            }
        }
    }

    /// Writes the file beside itself first, so that it is never half-written.
    ///
    /// # Errors
    /// What the system says.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        files::write(path, &text)
    }

    /// What another window has written meanwhile, with what was changed here since `base`.
    pub fn over(&self, base: &Settings, theirs: &Settings) -> Settings {
        let json = |settings: &Settings| serde_json::to_value(settings).ok();
        let merged = match (json(self), json(base), json(theirs)) {
            (Some(ours), Some(base), Some(theirs)) => serde_json::from_value(merged(ours, &base, theirs)).ok(),
            _ => None,
        };
        merged.unwrap_or_else(|| self.clone())
    }

    /// `model` is used now.
    pub fn used(&mut self, model: &str) {
        self.recent.retain(|it| it != model);
        self.recent.insert(0, model.to_owned());
        self.recent.truncate(RECENT);
    }
}

/// `ours` where it differs from `base`, else `theirs`; objects field by field.
fn merged(ours: Value, base: &Value, theirs: Value) -> Value {
    match (ours, base, theirs) {
        (Value::Object(mut ours), Value::Object(base), Value::Object(mut theirs)) => {
            // What was removed here stays removed.
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
    fn what_is_saved_is_loaded_with_what_nobody_knows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/settings.json");
        assert_eq!(Settings::load(&path).unwrap(), (Settings::default(), None));
        let mut settings = Settings { theme: Theme::Dark, zoom: Zoom::from(1.25), ..Settings::default() };
        settings.used("a");
        settings.used("b");
        settings.used("a");
        let budget = Some(Budget::LeaveFree(1 << 30));
        settings.models.insert("a".to_owned(), ModelSettings { budget, ..ModelSettings::default() });
        settings.other.insert("of_tomorrow".to_owned(), serde_json::json!({"x": [1, 2]}));
        settings.save(&path).unwrap();
        assert_eq!(Settings::load(&path).unwrap(), (settings.clone(), None));
        assert_eq!(settings.recent, ["a", "b"]);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn partial_and_extreme_values_are_made_sense_of_and_nonsense_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings.json");
        fs::write(&path, r#"{"theme": "light", "zoom": 99, "heatmap": {"on": false}}"#).unwrap();
        let (settings, trouble) = Settings::load(&path).unwrap();
        assert_eq!((settings.theme, f32::from(settings.zoom), trouble), (Theme::Light, 3.0, None));
        assert_eq!((settings.heatmap.on, &*settings.heatmap.mode), (false, "fired"));

        for nonsense in ["{", r#"{"theme": "purple"}"#, "\u{0}\u{1}"] {
            fs::write(&path, nonsense).unwrap();
            let (settings, trouble) = Settings::load(&path).unwrap();
            assert_eq!(settings, Settings::default());
            assert!(trouble.unwrap().contains("damaged"), "{nonsense}");
            assert!(!path.exists());
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn two_windows_keep_what_each_has_changed() {
        let mut base = Settings { zoom: Zoom::from(1.5), ..Settings::default() };
        base.models.insert("a".to_owned(), ModelSettings { context: Some(512), ..ModelSettings::default() });
        let (mut ours, mut theirs) = (base.clone(), base.clone());
        ours.theme = Theme::Dark;
        ours.models.get_mut("a").unwrap().adaptive = true;
        theirs.zoom = Zoom::from(2.0);
        theirs.theme = Theme::Light;
        theirs.models.get_mut("a").unwrap().context = Some(1024);
        theirs.models.insert("b".to_owned(), ModelSettings::default());
        let both = ours.over(&base, &theirs);
        assert_eq!((both.theme, both.zoom), (Theme::Dark, Zoom::from(2.0)));
        let a = &both.models["a"];
        assert!(a.adaptive && a.context == Some(1024) && both.models.contains_key("b"));
        assert_eq!((ours.over(&base, &base), base.over(&base, &theirs)), (ours, theirs));
    }

    #[test]
    fn both_ways_to_say_how_much() {
        assert_eq!(Budget::AtMost(5).limit(100, 50), 5);
        assert_eq!(Budget::LeaveFree(30).limit(100, 50), 120);
        assert_eq!(Budget::LeaveFree(300).limit(100, 50), 0);
    }
}
