//! Unfinished work on the disk.
//!
//! The folder holds a state (`state.json`: how far reading is, the counts), the recorded inputs, and for every finished layer
//! a sidecar with that layer alone and its report. What is found there is only gone on from if it was made for the same model
//! with the same options; else it is thrown away. Files are written whole and renamed, but for the recorded inputs, of which
//! the state says how much is good.

use std::{
    fs::{self, File, TryLockError},
    hash::{DefaultHasher, Hash, Hasher},
    io::{BufReader, BufWriter, ErrorKind, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Corpus, LayerReport, PrepareOptions};
use crate::{
    error::{Error, Result},
    format::ReadMode,
    model::Model,
    sparsity::{
        profile::{InputRecorder, Profile},
        sidecar::{Identity, PreparedLayer, Sidecar},
    },
};

const STATE: &str = "state.json";
const LOCK: &str = "lock";

/// The folder, which is this preparation's alone while it lives.
#[derive(Debug)]
pub(super) struct Workspace {
    folder: PathBuf,
    /// What reading depends on.
    reading: String,
    /// What layers depend on beside.
    layers: String,
    lock: File,
}

/// How far reading is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ReadingState {
    /// Texts read.
    pub texts: usize,
    /// Tokens recorded.
    pub recorded: u64,
    /// Firings.
    pub profile: Profile,
    /// Whether that is all.
    pub complete: bool,
}

#[derive(Serialize, Deserialize)]
struct State {
    reading: String,
    layers: String,
    state: ReadingState,
}

impl Workspace {
    /// Opens the workspace of `options`, keeping what is of use.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Invalid`] if another preparation is at work in it.
    pub(super) fn open(model: &Model, identity: &Identity, options: &PrepareOptions) -> Result<Self> {
        let folder = options.workspace();
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(Error::io("create", &folder, error)),
            _ => {}
        }
        let path = folder.join(LOCK);
        let opened = File::options().create(true).truncate(false).write(true).open(&path);
        let lock = opened.map_err(|source| Error::io("open", &path, source))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let got = format!("{}, where another preparation is at work", folder.display());
                return Err(Error::invalid("workspace", "a folder nobody works in", got));
            }
            // Some file systems know no locks.
            Err(TryLockError::Error(error)) => tracing::debug!(%error, "the workspace is not locked"),
        }
        let PrepareOptions { tokens, length, disk, seed, target, predictors, cut, down, .. } = options;
        let corpus = fingerprint(&options.corpus)?;
        let activation = model.config.activation;
        let reading = format!("2 {identity:?} {activation} {corpus} {tokens} {length} {disk} {seed}");
        let layers = format!("{target:?} {predictors:?} {cut:?} {down}");
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

    /// Where it is.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    fn state(&self) -> Option<State> {
        read_json(&self.folder.join(STATE))
    }

    /// How far reading is.
    pub(super) fn reading(&self, model: &Model) -> ReadingState {
        let nothing = ReadingState { texts: 0, recorded: 0, profile: Profile::new(model), complete: false };
        self.state().map_or(nothing, |state| state.state)
    }

    /// Keeps how far reading is.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub(super) fn save_reading(&self, state: &ReadingState) -> Result<()> {
        let (reading, layers) = (self.reading.clone(), self.layers.clone());
        self.write_json(STATE, &State { reading, layers, state: state.clone() })
    }

    /// Layer `n`, if it is finished. Its matrices are mapped.
    pub(super) fn layer(&self, blank: &Sidecar, n: usize) -> Option<(PreparedLayer, LayerReport)> {
        let mut part = Sidecar::open(&self.folder.join(part(n)), ReadMode::Map).ok()?;
        let ours = (&part.identity, &part.provenance) == (&blank.identity, &blank.provenance);
        let report: LayerReport = read_json(&self.folder.join(report(n)))?;
        (ours && report.layer == n).then(|| (part.layers.swap_remove(n), report))
    }

    /// Keeps a finished layer.
    ///
    /// # Errors
    /// [`Error::Io`]
    pub(super) fn keep_layer(
        &self,
        blank: &Sidecar,
        n: usize,
        prepared: &PreparedLayer,
        made: &LayerReport,
    ) -> Result<()> {
        // The part comes last: where it is, the report is.
        self.write_json(&report(n), made)?;
        let mut only = blank.clone();
        only.layers[n] = prepared.clone();
        only.write(&self.folder.join(part(n)))
    }

    /// Removes the folder, as far as its files are ours.
    pub(super) fn remove(self) {
        self.clear(|_| true);
        // Where open files cannot be removed, the lock keeps the folder until it is closed.
        drop(self.lock);
        let _ = fs::remove_file(self.folder.join(LOCK));
        let _ = fs::remove_dir(&self.folder);
    }

    /// Removes those of our files that `which` names. What cannot be removed is overwritten later or left.
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

    /// Whether a state can be one of `model`, and what it speaks of is there.
    fn fits(&self, state: &ReadingState, model: &Model) -> bool {
        let (profile, blank) = (&state.profile, Profile::new(model));
        let lengths = |profile: &Profile| {
            let all = profile.counts.iter().chain(&profile.chosen).chain([&profile.looked]);
            all.map(Vec::len).collect::<Vec<_>>()
        };
        lengths(profile) == lengths(&blank)
            && state.recorded <= profile.tokens
            && profile.counts.iter().chain(&profile.chosen).flatten().all(|&count| count <= profile.tokens)
            && InputRecorder::has(&self.folder, model, state.recorded)
    }

    fn write_json(&self, name: &str, value: &impl Serialize) -> Result<()> {
        let path = self.folder.join(name);
        let failed = |source| Error::io("write", &path, source);
        let mut file =
            tempfile::Builder::new().prefix(".").suffix(".part").tempfile_in(&self.folder).map_err(failed)?;
        let mut out = BufWriter::new(file.as_file_mut());
        serde_json::to_writer(&mut out, value).map_err(|error| failed(error.into()))?;
        out.flush().map_err(failed)?;
        drop(out);
        file.persist(&path).map_err(|error| failed(error.error))?;
        Ok(())
    }
}

fn part(n: usize) -> String {
    format!("layer-{n}.gguf")
}

fn report(n: usize) -> String {
    format!("layer-{n}.json")
}

fn is_ours(name: &str) -> bool {
    let kinds = [("layer-", ".gguf"), ("layer-", ".json"), ("normed-", ".f16"), ("residual-", ".f16"), (".", ".part")];
    name == STATE || name == LOCK || kinds.iter().any(|(start, end)| name.starts_with(start) && name.ends_with(end))
}

/// Nothing or damage is as good as no file.
fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_reader(BufReader::new(File::open(path).ok()?)).ok()
}

/// What tells corpora apart.
fn fingerprint(corpus: &Corpus) -> Result<String> {
    let file = |path: &PathBuf| {
        let metadata = fs::metadata(path).map_err(|source| Error::io("read", path, source))?;
        Ok(format!("{} {} {:?}", path.display(), metadata.len(), metadata.modified().ok()))
    };
    Ok(match corpus {
        Corpus::Generated => "generated".to_owned(),
        Corpus::Files(paths) => paths.iter().map(file).collect::<Result<Vec<_>>>()?.join("\n"),
        Corpus::Tokens(texts) => {
            let mut hasher = DefaultHasher::new();
            texts.hash(&mut hasher);
            format!("tokens {:x}", hasher.finish())
        }
    })
}
