//! The models of a folder, one of them loaded at a time. A request loads the model that it names. A
//! request for another model waits until all earlier requests are answered, so that no request
//! starves.

use std::{
    collections::HashMap,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::{Mutex as FairMutex, Notify, OwnedMutexGuard};

use super::{error::ApiError, served_model::ServedModel, waiting_line::WaitingLine};
use thermocline_host::library::{FoundModel, ModelCard, ModelId, scan};

/// Opens the model at a path under a name. The error is a sentence that says why the model cannot
/// be opened.
pub type OpenModel = Box<dyn Fn(&Path, &str) -> Result<ServedModel, String> + Send + Sync>;

/// Age at which the list of models is read again.
const LIST_AGE: Duration = Duration::from_secs(5);

/// One model of the folder.
#[derive(Debug, Clone)]
pub struct LibraryEntry {
    /// Name that clients use.
    pub name: String,
    /// File or folder of the model.
    pub path: PathBuf,
    /// Properties of the model.
    pub card: ModelCard,
}

/// The models of a folder.
pub struct ModelLibrary {
    folder: PathBuf,
    open: OpenModel,
    idle_unload: Option<Duration>,
    entries: Mutex<(Vec<LibraryEntry>, Option<Instant>)>,
    /// Held by the request that may load a model. Requests get it in order of arrival.
    turn: Arc<FairMutex<()>>,
    line: WaitingLine,
    loaded: Mutex<Option<LoadedModel>>,
    released: Notify,
}

/// The loaded model.
struct LoadedModel {
    model: ServedModel,
    users: usize,
    idle_since: Instant,
    /// Time without users after which the model is closed; `None`: never.
    keep: Option<Duration>,
}

/// A user of the loaded model. The model stays loaded until all users are dropped.
pub struct ModelUser {
    // Dropped before the place.
    model: ServedModel,
    _place: UserPlace,
}

/// A place among the users of the loaded model.
struct UserPlace(Arc<ModelLibrary>);

impl ModelUser {
    /// The model.
    pub fn model(&self) -> &ServedModel {
        &self.model
    }
}

impl Drop for UserPlace {
    fn drop(&mut self) {
        if let Some(loaded) = &mut *self.0.loaded.lock() {
            loaded.users = loaded.users.saturating_sub(1);
            loaded.idle_since = Instant::now();
        }
        self.0.released.notify_one();
    }
}

impl ModelLibrary {
    /// Creates the library of `folder`, with no model loaded. A model without users is closed after
    /// `idle_unload`; `None`: only to load another model. At most `max_waiting` requests wait for
    /// their turn.
    pub fn new(folder: PathBuf, open: OpenModel, idle_unload: Option<Duration>, max_waiting: usize) -> Arc<Self> {
        Arc::new(ModelLibrary {
            folder,
            open,
            idle_unload,
            entries: Mutex::default(),
            turn: Arc::default(),
            line: WaitingLine::new(max_waiting),
            loaded: Mutex::default(),
            released: Notify::new(),
        })
    }

    /// Lists the models in the folder now. Reads their headers if the list is older than
    /// `LIST_AGE`.
    pub fn entries(&self) -> Vec<LibraryEntry> {
        let mut entries = self.entries.lock();
        if entries.1.is_none_or(|read| read.elapsed() > LIST_AGE) {
            *entries = (read_folder(&self.folder), Some(Instant::now()));
        }
        entries.0.clone()
    }

    /// Returns the loaded model.
    pub fn loaded(&self) -> Option<ServedModel> {
        self.loaded.lock().as_ref().map(|loaded| loaded.model.clone())
    }

    /// Number of requests that wait for their turn.
    pub fn waiting(&self) -> usize {
        self.line.len()
    }

    /// Checks that a request could wait for its turn now.
    ///
    /// # Errors
    /// Status 429 if too many requests wait.
    pub fn check_room(&self) -> Result<(), ApiError> {
        if self.turn.try_lock().is_ok() { Ok(()) } else { self.line.enter().map(drop) }
    }

    /// Returns the time until the loaded model is closed if no request arrives; `None`: never.
    pub fn closes_in(&self) -> Option<Duration> {
        let loaded = self.loaded.lock();
        let loaded = loaded.as_ref()?;
        let idle = if loaded.users > 0 { Duration::ZERO } else { loaded.idle_since.elapsed() };
        Some(loaded.keep?.saturating_sub(idle))
    }

    /// Sets how long the loaded model is kept without users; `None`: for ever.
    pub fn keep_loaded_for(&self, keep: Option<Duration>) {
        if let Some(loaded) = &mut *self.loaded.lock() {
            loaded.keep = keep;
        }
    }

    /// Finds the entry that `wanted` names. Without a name: the loaded model, else the first.
    /// Blocks.
    pub fn find(&self, wanted: Option<&str>) -> Result<LibraryEntry, ApiError> {
        let entries = self.entries();
        let Some(wanted) = wanted else {
            let loaded = self.loaded.lock().as_ref().map(|loaded| loaded.model.name.clone());
            let found = entries.iter().find(|entry| Some(&entry.name) == loaded.as_ref()).or(entries.first());
            return found.cloned().ok_or_else(|| ApiError::unavailable("the served folder has no models"));
        };
        let names: Vec<String> = entries.iter().map(|entry| entry.name.clone()).collect();
        match match_name(&names, wanted) {
            Some(at) => Ok(entries[at].clone()),
            None => Err(ApiError::model_unknown(wanted, &names)),
        }
    }

    /// Loads the model that `wanted` names, after all users of another model have finished.
    /// `release` first gives up other references to that model. Dropping the future leaves the
    /// queue.
    pub async fn acquire(
        self: &Arc<Self>,
        wanted: Option<&str>,
        release: impl Fn() + Send + 'static,
    ) -> Result<ModelUser, ApiError> {
        let wanted = wanted.map(str::to_owned);
        let library = Arc::clone(self);
        let found = tokio::task::spawn_blocking(move || library.find(wanted.as_deref())).await;
        let entry = found.unwrap_or_else(|_| Err(ApiError::unavailable("the folder could not be read")))?;
        let turn = match Arc::clone(&self.turn).try_lock_owned() {
            Ok(turn) => turn,
            Err(_) => {
                let _place = self.line.enter()?;
                Arc::clone(&self.turn).lock_owned().await
            }
        };
        if let Some(user) = self.use_loaded(&entry.name) {
            return Ok(user);
        }
        while self.loaded.lock().as_ref().is_some_and(|loaded| loaded.users > 0) {
            self.released.notified().await;
        }
        // Loading continues if the client disconnects: two models must not be loaded at the same
        // time.
        let library = Arc::clone(self);
        let loading = tokio::spawn(async move { library.load(entry, release, turn).await });
        loading.await.unwrap_or_else(|_| Err(ApiError::unavailable("the model could not be loaded: its loader failed")))
    }

    /// Closes the loaded model if it has been without users for longer than it is kept.
    pub async fn close_idle(self: &Arc<Self>, release: impl Fn() + Send + 'static) {
        let is_due = |loaded: &LoadedModel| {
            loaded.users == 0 && loaded.keep.is_some_and(|keep| loaded.idle_since.elapsed() >= keep)
        };
        let Ok(turn) = Arc::clone(&self.turn).try_lock_owned() else { return };
        if self.loaded.lock().as_ref().is_some_and(is_due) {
            self.close(release, &turn).await;
        }
    }

    fn use_loaded(self: &Arc<Self>, name: &str) -> Option<ModelUser> {
        let mut loaded = self.loaded.lock();
        let loaded =
            loaded.as_mut().filter(|loaded| loaded.model.name == name && loaded.model.engine.stopped().is_none())?;
        loaded.users += 1;
        Some(ModelUser { model: loaded.model.clone(), _place: UserPlace(Arc::clone(self)) })
    }

    async fn load(
        self: Arc<Self>,
        entry: LibraryEntry,
        release: impl Fn() + Send + 'static,
        turn: OwnedMutexGuard<()>,
    ) -> Result<ModelUser, ApiError> {
        self.close(release, &turn).await;
        let library = Arc::clone(&self);
        let opened = tokio::task::spawn_blocking(move || {
            let LibraryEntry { name, path, .. } = entry;
            // Errors must not reveal folders to clients.
            let refused = |why: String| {
                let why = why.replace(&*path.to_string_lossy(), &name);
                ApiError::unavailable(format!("{name} cannot be opened: {why}"))
            };
            (library.open)(&path, &name).map_err(refused)
        });
        let model = opened.await.unwrap_or_else(|_| Err(ApiError::unavailable("the model could not be opened")))?;
        let loaded = LoadedModel { model: model.clone(), users: 1, idle_since: Instant::now(), keep: self.idle_unload };
        *self.loaded.lock() = Some(loaded);
        Ok(ModelUser { model, _place: UserPlace(self) })
    }

    /// Closes the loaded model, which has no users. Joining its threads takes a moment.
    async fn close(&self, release: impl Fn() + Send + 'static, _turn: &OwnedMutexGuard<()>) {
        let Some(loaded) = self.loaded.lock().take() else { return };
        let closing = tokio::task::spawn_blocking(move || {
            release();
            drop(loaded);
        });
        // Closing cannot fail. A panic has already been reported.
        let _ = closing.await;
    }
}

/// Index of the name that `wanted` means. Letter case, `.gguf` and Ollama's `:latest` are ignored.
fn match_name(names: &[String], wanted: &str) -> Option<usize> {
    let stem = wanted.strip_suffix(":latest").unwrap_or(wanted);
    let stem = stem.strip_suffix(".gguf").unwrap_or(stem);
    let exact = names.iter().position(|name| name == wanted || name == stem);
    exact.or_else(|| names.iter().position(|name| name.eq_ignore_ascii_case(stem)))
}

/// Lists the models in `folder`. Models with the same name are named by their paths.
fn read_folder(folder: &Path) -> Vec<LibraryEntry> {
    let mut entries = Vec::new();
    let _ = scan(&[folder.to_owned()], &mut |found| {
        if let FoundModel::Model(card) = found
            && let ModelId::Path(path) = &card.id
        {
            entries.push(LibraryEntry { name: card.id.to_string(), path: path.clone(), card: *card });
        }
        ControlFlow::Continue(())
    });
    let mut counts: HashMap<String, usize> = HashMap::new();
    entries.iter().for_each(|entry: &LibraryEntry| *counts.entry(entry.name.clone()).or_default() += 1);
    for entry in &mut entries {
        if counts.get(&entry.name).is_some_and(|count| *count > 1) {
            let path = entry.path.strip_prefix(folder).unwrap_or(&entry.path);
            entry.name = path.to_string_lossy().replace('\\', "/");
        }
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    entries
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn names_match_without_case_and_endings() {
        let names = ["a", "B-Q4", "dir/c.gguf"].map(str::to_owned);
        for (wanted, at) in [
            ("a", Some(0)),
            ("b-q4:latest", Some(1)),
            ("B-Q4.gguf", Some(1)),
            ("dir/c.gguf", Some(2)),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(match_name(&names, wanted), at, "{wanted}");
        }
    }

    #[test]
    fn a_full_line_has_no_room() {
        let library = |most| ModelLibrary::new(PathBuf::new(), Box::new(|_, _| Err(String::new())), None, most);
        for (most, busy, room) in [(0, false, true), (0, true, false), (1, true, true)] {
            let library = library(most);
            let _turn = busy.then(|| library.turn.try_lock().unwrap());
            assert_eq!(library.check_room().map_err(|error| error.status.as_u16()), room.then_some(()).ok_or(429));
            assert_eq!(library.waiting(), 0);
        }
    }

    #[test]
    fn models_of_one_name_are_called_by_their_paths() {
        let folder = tempfile::tempdir().unwrap();
        let gguf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/gguf/llama-silu-gqa-256-Q4_0.gguf");
        for name in ["b.gguf", "x/a.gguf", "y/a.gguf", "broken.gguf", "mmproj-b.gguf", "mtp-b.gguf"] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::copy(&gguf, path).unwrap();
        }
        fs::write(folder.path().join("broken.gguf"), "GGUF").unwrap();
        let names: Vec<String> = read_folder(folder.path()).into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, ["b", "x/a.gguf", "y/a.gguf"]);
    }
}
