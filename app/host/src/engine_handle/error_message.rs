//! The engine's errors as sentences for users.

use std::{io::ErrorKind, path::Path};

use thermocline_engine::{Error, FileAction, ScarceMemory};

use crate::units::bytes;

/// Explains `error` to the user: what happened, why, and what to do, with sizes in units.
pub fn error_message(error: &Error) -> String {
    match error {
        Error::Memory { kind, what, wanted, available } => memory_message(*kind, what, *wanted, *available),
        Error::Io { action, path, source } => file_message(*action, path, source),
        Error::Malformed { path, truncated: true, .. } => {
            tracing::info!("{error}");
            format!(
                "{} is incomplete, probably because its download was interrupted. Download it again.",
                path.display()
            )
        }
        Error::Malformed { .. } => {
            format!("{error}. The file is damaged or has another format. Download it again, or choose another file.")
        }
        Error::FileLost { path } => format!(
            "{} was changed while it was open: it became shorter, or its disk was removed. Restore the complete \
             file, then open the model again.",
            path.display()
        ),
        _ => error.to_string(),
    }
}

/// [`error_message`] for a server's clients, which must not learn its folders. Only the name of a
/// lost file appears.
pub fn without_folder(error: &Error) -> String {
    match error {
        Error::FileLost { path } => {
            let name = path.file_name().map_or_else(|| path.clone(), Into::into);
            error_message(&Error::FileLost { path: name })
        }
        _ => error_message(error),
    }
}

/// Explains a lack of memory for `what`, with figures and a remedy.
fn memory_message(kind: ScarceMemory, what: &str, wanted: u64, available: u64) -> String {
    let figures = match available {
        0 if kind == ScarceMemory::Gpu => format!("{} needed, but the budget leaves nothing for it", bytes(wanted)),
        0 => format!("{} needed, but no memory is free", bytes(wanted)),
        // Two sizes that print alike would look contradictory.
        had if bytes(had) == bytes(wanted) => format!("slightly more than the available {} needed", bytes(had)),
        had => format!("{} needed, {} available", bytes(wanted), bytes(had)),
    };
    let remedy = match kind {
        ScarceMemory::KvCache => "Choose a shorter context, or the cache type Q8_0.",
        ScarceMemory::Gpu => "Raise the VRAM budget, or run the model on the CPU.",
        ScarceMemory::Ram => "Close other programs, or choose a smaller model or a shorter context.",
    };
    format!("{what}: {figures}. {remedy}")
}

/// Explains the system's error about a file, and suggests a remedy.
fn file_message(action: FileAction, path: &Path, source: &std::io::Error) -> String {
    let path = path.display();
    match source.kind() {
        ErrorKind::NotFound => format!(
            "{path} was not found. It was moved, renamed or deleted, or its disk is not connected. Restore it, or choose a \
            model on the Models page."
        ),
        ErrorKind::PermissionDenied => {
            format!("cannot {action} {path}: permission denied. Change its permissions, or copy it to your own folder.")
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            format!("cannot {action} {path}: the disk is full. Free some space, then try again.")
        }
        ErrorKind::ReadOnlyFilesystem => {
            format!("cannot {action} {path}: the disk is read-only. Choose another folder.")
        }
        _ => format!("cannot {action} {path}: {source}"),
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::Location;

    use super::*;

    #[test]
    fn memory_errors_have_units_and_the_remedy_of_their_kind() {
        let said = |kind, wanted, available| error_message(&Error::Memory { kind, what: "any", wanted, available });
        let gpu = said(ScarceMemory::Gpu, 3 << 29, 200 << 20);
        assert!(gpu.contains("1.5 GiB needed, 200.0 MiB available. Raise the VRAM budget"), "{gpu}");
        let cache = said(ScarceMemory::KvCache, 2 << 30, 0);
        assert!(cache.contains("2.0 GiB needed, but no memory is free. Choose a shorter context"), "{cache}");
        let near = said(ScarceMemory::Ram, (64 << 20) + 1, 64 << 20);
        assert!(near.contains("slightly more than the available 64.0 MiB") && near.contains("Close"), "{near}");
        let none = said(ScarceMemory::Gpu, 3 << 20, 0);
        assert!(none.contains("the budget leaves nothing for it. Raise the VRAM budget"), "{none}");
        let other = Error::Stopped("why".to_owned());
        assert_eq!(error_message(&other), other.to_string());
    }

    #[test]
    fn remedies_follow_the_kind_and_no_words() {
        for words in ["KV cache", "weights in VRAM", "data inside the file", "any (0 bytes left)", "renamed"] {
            let memory = |kind| Error::memory(kind, "weights of the KV cache in VRAM", 2, 1);
            assert!(error_message(&memory(ScarceMemory::Ram)).ends_with("a shorter context."));
            let whole = error_message(&Error::malformed("m", Location::File, words, words));
            let short = error_message(&Error::malformed("m", Location::File, words, words).of_truncated_file());
            assert!(whole.contains("damaged") && !whole.contains("incomplete"), "{whole}");
            assert!(short.starts_with("m is incomplete") && short.ends_with("Download it again."), "{short}");
        }
    }

    #[test]
    fn lost_files_are_named_with_what_to_do() {
        let said = error_message(&Error::FileLost { path: "/models/a.gguf".into() });
        assert!(said.starts_with("/models/a.gguf was changed while it was open") && said.contains("Restore"), "{said}");
    }

    #[test]
    fn file_errors_say_what_to_do() {
        let said = |kind: ErrorKind| error_message(&Error::io(FileAction::Open, "/models/a.gguf", kind.into()));
        assert!(said(ErrorKind::NotFound).contains("/models/a.gguf was not found. It was moved"));
        assert!(said(ErrorKind::StorageFull).contains("the disk is full. Free"));
        assert!(said(ErrorKind::PermissionDenied).contains("permission denied"));
        assert!(said(ErrorKind::TimedOut).contains("cannot open /models/a.gguf"));
    }

    #[test]
    fn truncated_model_file_is_called_incomplete() {
        let folder = tempfile::tempdir().unwrap();
        let file = crate::builtin::file();
        for length in [file.len() / 2, file.len() - 1, 300] {
            let path = folder.path().join("short.gguf");
            std::fs::write(&path, &file[..length]).unwrap();
            let error = crate::library::ModelId::Path(path).open(&Default::default()).unwrap_err();
            let said = error_message(&error);
            assert!(
                said.contains("short.gguf is incomplete") && said.contains("Download it again."),
                "{length}: {said}"
            );
        }
    }
}
