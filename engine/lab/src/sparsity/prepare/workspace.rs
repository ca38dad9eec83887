//! Unfinished work on disk.
//!
//! The folder holds `state.json` (the progress of reading, with the counts) and the recorded
//! inputs. For every finished layer, it also holds a sidecar of only that layer, without its
//! bundles, and the layer's report. The work continues only with the same model and the same
//! options. Otherwise the content is deleted. Files are written completely and then renamed, except
//! for the recorded inputs. `state.json` contains the number of their valid rows.

use std::{
    fs::{self, File, TryLockError},
    hash::{DefaultHasher, Hash, Hasher},
    io::{BufReader, ErrorKind},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{LayerReport, PrepareCorpus, PrepareOptions};
use crate::sparsity::{
    profile::{InputRecorder, Profile},
    sidecar::{Identity, PreparedBundles, PreparedLayer, Sidecar},
};
use thermocline_base::{
    error::{Error, FileAction, Result},
    files::{Form, NewFile},
};
use thermocline_formats::format::ReadMode;
use thermocline_model::{Ffn, InputCurves, Model};

const STATE: &str = "state.json";
const LOCK: &str = "lock";

/// The folder, locked for this run.
#[derive(Debug)]
pub(super) struct Workspace {
    folder: PathBuf,
    /// Fingerprint of the options that affect reading.
    reading: String,
    /// Fingerprint of the further options that affect layers.
    layers: String,
    lock: File,
}

/// Progress of reading.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct ReadingProgress {
    /// Number of texts read.
    pub texts: usize,
    /// Number of tokens recorded.
    pub recorded: u64,
    /// Beginnings of the first texts, for calibration.
    pub samples: Vec<Vec<u32>>,
    /// Firing counts.
    pub profile: Profile,
    /// True if all text was read.
    pub complete: bool,
}

/// Contents of `state.json`.
#[derive(Serialize, Deserialize)]
struct WorkspaceFile {
    reading: String,
    layers: String,
    state: ReadingProgress,
}

impl Workspace {
    /// Opens the workspace of `options` and deletes files that do not match the options.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Invalid`] if another run uses the workspace.
    pub fn open(model: &Model, identity: &Identity, options: &PrepareOptions) -> Result<Self> {
        let folder = options.workspace();
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(Error::io(FileAction::Create, &folder, error));
            }
            _ => {}
        }
        let path = folder.join(LOCK);
        let opened = File::options().create(true).truncate(false).write(true).open(&path);
        let lock = opened.map_err(|source| Error::io(FileAction::Open, &path, source))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let got = format!("{}, which another preparation uses", folder.display());
                return Err(Error::invalid("workspace", "an unused folder", got));
            }
            // Some file systems do not support locks.
            Err(TryLockError::Error(error)) => tracing::debug!(%error, "the workspace is not locked"),
        }
        let PrepareOptions { tokens, length, disk, seed, target, predictors, threshold_goal, down, bundles, .. } =
            options;
        let corpus = fingerprint(&options.corpus)?;
        let activation = model.config.activation;
        let reading = format!("3 {identity:?} {activation} {corpus} {tokens} {length} {disk} {seed}");
        let layers = format!("3 {target:?} {predictors:?} {threshold_goal:?} {down} {bundles}");
        let workspace = Workspace { folder, reading, layers, lock };
        match workspace.state() {
            Some(state) if state.reading == workspace.reading && workspace.fits(&state.state, model) => {
                if state.layers != workspace.layers {
                    workspace.clear(|name| name.starts_with("layer-"));
                    workspace.save_reading(&state.state)?;
                }
            }
            _ => workspace.clear(|name| name != LOCK),
        }
        Ok(workspace)
    }

    /// Returns the path of the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn state(&self) -> Option<WorkspaceFile> {
        read_json(&self.folder.join(STATE))
    }

    /// Returns the progress of reading, or the initial progress if there is none.
    pub fn reading(&self, model: &Model) -> ReadingProgress {
        let nothing = || ReadingProgress { profile: Profile::new(model), ..ReadingProgress::default() };
        self.state().map_or_else(nothing, |state| state.state)
    }

    /// Saves the progress of reading.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn save_reading(&self, state: &ReadingProgress) -> Result<()> {
        let (reading, layers) = (self.reading.clone(), self.layers.clone());
        self.write_json(STATE, &WorkspaceFile { reading, layers, state: state.clone() })
    }

    /// Returns layer `n` of `model` with mapped matrices, if it is finished.
    pub fn layer(&self, blank: &Sidecar, model: &Model, n: usize) -> Option<(PreparedLayer, LayerReport)> {
        let mut part = Sidecar::open(&self.folder.join(part(n)), ReadMode::Map).ok()?;
        let ours = (&part.identity, &part.provenance) == (&blank.identity, &blank.provenance);
        let report: LayerReport = read_json(&self.folder.join(report(n)))?;
        if !ours || report.layer != n {
            return None;
        }
        let mut prepared = part.layers.swap_remove(n);
        if report.bundle_bytes.is_some() {
            let Ffn::Dense(ffn) = &model.weights.layers.get(n)?.ffn else { return None };
            let down = &prepared.down.as_ref()?.weight;
            prepared.bundles = PreparedBundles::of(ffn, down, prepared.predictor.is_some());
        }
        Some((prepared, report))
    }

    /// Saves a finished layer. Does not write the rows of its bundles, because they are in the
    /// model's file.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn keep_layer(&self, blank: &Sidecar, n: usize, prepared: &PreparedLayer, made: &LayerReport) -> Result<()> {
        // The sidecar is written last, so that every sidecar has its report.
        self.write_json(&report(n), made)?;
        let mut only = blank.clone();
        only.layers[n] = PreparedLayer { bundles: None, ..prepared.clone() };
        only.write(&self.folder.join(part(n)))
    }

    /// Returns the input thresholds of layer `n`, if they were computed. `Some(None)` for a layer
    /// without input thresholds.
    pub fn inputs(&self, n: usize) -> Option<Option<InputCurves>> {
        read_json(&self.folder.join(inputs(n)))
    }

    /// Saves the input thresholds of a layer.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub fn keep_inputs(&self, n: usize, curves: &Option<InputCurves>) -> Result<()> {
        self.write_json(&inputs(n), curves)
    }

    /// Deletes the files of the workspace, and the folder if it is empty then.
    pub fn remove(self) {
        self.clear(|_| true);
        // If open files cannot be deleted, the folder can only be deleted after the lock is closed.
        drop(self.lock);
        let _ = fs::remove_file(self.folder.join(LOCK));
        let _ = fs::remove_dir(&self.folder);
    }

    /// Deletes the workspace's files whose names `which` accepts. Ignores failures; such files are
    /// overwritten later or stay.
    fn clear(&self, which: impl Fn(&str) -> bool) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if is_ours(&name) && which(&name) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// True if `state` has the shapes of `model` and the recorded inputs exist.
    fn fits(&self, state: &ReadingProgress, model: &Model) -> bool {
        let (profile, blank) = (&state.profile, Profile::new(model));
        let lengths = |profile: &Profile| {
            let all = profile.counts.iter().chain(&profile.chosen).chain([&profile.computed]);
            all.map(Vec::len).collect::<Vec<_>>()
        };
        lengths(profile) == lengths(&blank)
            && state.recorded <= profile.tokens
            && profile.counts.iter().chain(&profile.chosen).flatten().all(|&count| count <= profile.tokens)
            && InputRecorder::has(&self.folder, model, state.recorded)
    }

    fn write_json(&self, name: &str, value: &impl Serialize) -> Result<()> {
        let path = self.folder.join(name);
        let failed = |source| Error::io(FileAction::Write, &path, source);
        let mut file = NewFile::create(&path, Form::Random)?;
        serde_json::to_writer(&mut file, value).map_err(|error| failed(error.into()))?;
        file.finish_unsynced()
    }
}

fn part(n: usize) -> String {
    format!("layer-{n}.gguf")
}

fn report(n: usize) -> String {
    format!("layer-{n}.json")
}

fn is_ours(name: &str) -> bool {
    let kinds = [
        ("layer-", ".gguf"),
        ("layer-", ".json"),
        ("inputs-", ".json"),
        ("normed-", ".f16"),
        ("residual-", ".f16"),
        (".", ".part"),
    ];
    name == STATE || name == LOCK || kinds.iter().any(|(start, end)| name.starts_with(start) && name.ends_with(end))
}

/// Reads a value from a file; `None` if the file is missing or damaged.
fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_reader(BufReader::new(File::open(path).ok()?)).ok()
}

/// Returns the file name of a layer's input thresholds.
fn inputs(n: usize) -> String {
    format!("inputs-{n}.json")
}

/// Returns a string that identifies the corpus.
fn fingerprint(corpus: &PrepareCorpus) -> Result<String> {
    let file = |path: &PathBuf| {
        let metadata = fs::metadata(path).map_err(|source| Error::io(FileAction::Read, path, source))?;
        Ok(format!("{} {} {:?}", path.display(), metadata.len(), metadata.modified().ok()))
    };
    Ok(match corpus {
        PrepareCorpus::Generated => "generated".to_owned(),
        PrepareCorpus::Files(paths) => paths.iter().map(file).collect::<Result<Vec<_>>>()?.join("\n"),
        PrepareCorpus::Tokens(texts) => {
            let mut hasher = DefaultHasher::new();
            texts.hash(&mut hasher);
            format!("tokens {:x}", hasher.finish())
        }
    })
}
