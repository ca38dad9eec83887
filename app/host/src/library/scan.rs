//! Finding models in folders.

use std::{
    collections::HashSet,
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use thermocline_engine::{Error, model::Companion};

use super::{AssistantCard, ModelCard, ModelId};

/// Number of folder levels to search.
const DEPTH: usize = 8;

/// Result of a search.
#[derive(Debug)]
pub enum FoundModel {
    /// A model.
    Model(Box<ModelCard>),
    /// An assistant, which drafts for a model.
    Assistant(AssistantCard),
    /// A model file that cannot be read.
    Broken {
        /// Path.
        path: PathBuf,
        /// Why the file cannot be read.
        error: Error,
    },
    /// A folder that cannot be read.
    Closed {
        /// Path.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
}

/// Searches `roots` (folders or files) and everything below them for models. It calls `found` with
/// each result; `found` may stop the search. A model reached twice, by links or overlapping roots,
/// is reported once. Other companion files of models, such as vision towers and drafters that
/// Thermocline cannot use, are skipped.
pub fn scan(roots: &[PathBuf], found: &mut dyn FnMut(FoundModel) -> ControlFlow<()>) -> ControlFlow<()> {
    let mut seen = HashSet::new();
    roots.iter().try_for_each(|root| search(root, DEPTH, &mut seen, found))
}

fn search(
    path: &Path,
    depth: usize,
    seen: &mut HashSet<PathBuf>,
    found: &mut dyn FnMut(FoundModel) -> ControlFlow<()>,
) -> ControlFlow<()> {
    // Links may form circles.
    let Ok(real) = path.canonicalize() else { return ControlFlow::Continue(()) };
    if !seen.insert(real) {
        return ControlFlow::Continue(());
    }
    if !path.is_dir() {
        return match FileNameKind::of_name(path) {
            Some(FileNameKind::Model) => report(path, found),
            Some(FileNameKind::Drafter) => report_assistant(path, found),
            None => ControlFlow::Continue(()),
        };
    }
    if path.join("config.json").is_file() && has_safetensors(path) {
        return report(path, found);
    }
    if depth == 0 {
        return ControlFlow::Continue(());
    }
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) => return found(FoundModel::Closed { path: path.to_owned(), error }),
    };
    let mut entries: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    entries.sort();
    entries.retain(|path| !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.')));
    entries.iter().try_for_each(|path| search(path, depth - 1, seen, found))
}

fn report(path: &Path, found: &mut dyn FnMut(FoundModel) -> ControlFlow<()>) -> ControlFlow<()> {
    found(match ModelCard::read(&ModelId::Path(path.to_owned())) {
        Ok(card) => FoundModel::Model(Box::new(card)),
        Err(Error::Companion { .. }) => return report_assistant(path, found),
        Err(error) => FoundModel::Broken { path: path.to_owned(), error },
    })
}

/// Reports the file if it is an assistant.
fn report_assistant(path: &Path, found: &mut dyn FnMut(FoundModel) -> ControlFlow<()>) -> ControlFlow<()> {
    let card = AssistantCard::read(path).ok().flatten();
    card.map_or(ControlFlow::Continue(()), |card| found(FoundModel::Assistant(card)))
}

/// The file that a name promises.
enum FileNameKind {
    Model,
    Drafter,
}

impl FileNameKind {
    /// Returns the kind of the file; `None` for later parts of split models, sidecars, and
    /// companion files that are not drafters.
    fn of_name(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
        let stem = name.strip_suffix(".gguf").filter(|stem| !stem.ends_with(".thermocline") && !is_later_part(stem))?;
        match Companion::of_name(stem) {
            None => Some(FileNameKind::Model),
            Some(Companion::Drafter(_)) => Some(FileNameKind::Drafter),
            Some(_) => None,
        }
    }
}

/// `true` if `stem` names a part of a split model after the first.
fn is_later_part(stem: &str) -> bool {
    let later_part = stem.rsplit_once("-of-").and_then(|(rest, parts)| {
        let (_, part) = rest.rsplit_once('-')?;
        Some(parts.parse::<u32>().is_ok() && part.parse::<u32>().ok()? != 1)
    });
    later_part.unwrap_or(false)
}

fn has_safetensors(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.path().extension().is_some_and(|extension| extension == "safetensors"))
}

#[cfg(test)]
mod tests {
    use thermocline_engine::format::{Container, Metadata, Value, gguf};

    use super::*;

    fn fixtures() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
    }

    fn all(roots: &[PathBuf]) -> (Vec<String>, Vec<PathBuf>) {
        let (mut models, mut broken) = (Vec::new(), Vec::new());
        let end = scan(roots, &mut |found| {
            match found {
                FoundModel::Model(card) => models.push(card.id.to_string()),
                FoundModel::Broken { path, .. } | FoundModel::Closed { path, .. } => broken.push(path),
                FoundModel::Assistant(card) => assert!(card.id.to_string().starts_with("gemma4"), "{}", card.id),
            }
            ControlFlow::Continue(())
        });
        assert!(end.is_continue());
        (models, broken)
    }

    #[test]
    fn scan_reports_models_in_folders_and_broken_files() {
        let (models, _) = all(&[fixtures().join("models"), fixtures().join("models/opt"), fixtures()]);
        let (again, broken) = all(&[fixtures().join("models")]);
        let folders =
            fs::read_dir(fixtures().join("models")).unwrap().filter(|it| it.as_ref().unwrap().path().is_dir());
        let folders = folders.count();
        assert_eq!(again.len(), folders, "{again:?} {broken:?}");
        assert!(folders > 30 && models.len() > folders + 6 && broken.is_empty());
        let (_, broken) = all(&[fixtures().join("malformed")]);
        assert!(broken.len() > 10, "{broken:?}");
        assert_eq!(all(&[PathBuf::from("/nowhere/at/all")]), (Vec::new(), Vec::new()));
    }

    #[test]
    fn scan_reports_assistants_apart_from_models() {
        let mut found = Vec::new();
        let end = scan(&[fixtures().join("assistants")], &mut |it| {
            let FoundModel::Assistant(card) = it else { panic!("{it:?} is not an assistant") };
            found.push(card.id.to_string());
            ControlFlow::Continue(())
        });
        assert!(end.is_continue());
        assert_eq!(found, ["gemma4", "gemma4-e2b"]);
    }

    #[test]
    fn scan_skips_later_parts_sidecars_duplicates_and_hidden_folders() {
        let folder = tempfile::tempdir().unwrap();
        let model = fixtures().join("gguf/llama-silu-gqa-256-Q4_0.gguf");
        for name in [
            "a.GGUF",
            "sub/b-00001-of-00002.gguf",
            "sub/b-00002-of-00002.gguf",
            "a.thermocline.gguf",
            ".hidden/c.gguf",
            "mmproj-F16.gguf",
            "sub/MTP-a.gguf",
            "dflash-a.gguf",
            "dspark-a.gguf",
        ] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::copy(&model, path).unwrap();
        }
        // Their content identifies companion files under any name.
        for (name, architecture) in
            [("tower.gguf", "clip"), ("sub/small.gguf", "gemma4-assistant"), ("e.gguf", "eagle3")]
        {
            let mut metadata = Metadata::new(name);
            metadata.set("general.architecture", Value::String(architecture.to_owned()));
            fs::write(folder.path().join(name), gguf::to_bytes(Container::Gguf(3), &metadata, &[]).unwrap()).unwrap();
        }
        #[cfg(unix)]
        std::os::unix::fs::symlink(folder.path(), folder.path().join("sub/circle")).unwrap();
        let (models, broken) = all(&[folder.path().to_owned()]);
        assert_eq!(models.len() + broken.len(), 2, "{models:?} {broken:?}");

        let mut count = 0;
        let end = scan(&[fixtures().join("models")], &mut |_| {
            count += 1;
            if count < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        assert!(end.is_break() && count == 3);
    }
}
