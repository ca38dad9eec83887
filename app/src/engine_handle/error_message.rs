//! The engine's errors as sentences for users.

use std::{io::ErrorKind, path::Path};

use thermocline_engine::Error;

use crate::units::bytes;

/// The message of `error` and what to do about it: sizes with units, and words for what happens to files.
pub fn error_message(error: &Error) -> String {
    let (what, wanted, available) = match error {
        Error::Memory { what, wanted, available } => (what, wanted, available),
        Error::Io { action, path, source } => return file_message(action, path, source),
        Error::Malformed { path, expected, got, .. } if is_truncated(expected, got) => {
            tracing::info!("{error}");
            return format!(
                "{} is incomplete: the file ends too early, as after an interrupted download. Download it again.",
                path.display()
            );
        }
        _ => return error.to_string(),
    };
    let figures = match available {
        0 if is_on_device(what) => format!("{} wanted, the budget leaves nothing for it", bytes(*wanted)),
        0 => format!("{} wanted, none is free", bytes(*wanted)),
        // Two sizes that print alike would read like a contradiction.
        had if bytes(*had) == bytes(*wanted) => format!("a little more than the {} there are is wanted", bytes(*had)),
        had => format!("{} wanted, {} available", bytes(*wanted), bytes(*had)),
    };
    format!("{what}: {figures}. {}", remedy(what))
}

/// True for a file that ends too early, from what its reader expected and got.
fn is_truncated(expected: &str, got: &str) -> bool {
    expected.starts_with("data inside the file")
        || expected.ends_with("bytes left)")
        || got.ends_with("bytes to the end of the file")
}

/// The system's answer about a file in words, and a remedy.
fn file_message(action: &str, path: &Path, source: &std::io::Error) -> String {
    let path = path.display();
    match source.kind() {
        ErrorKind::NotFound => format!(
            "{path} is not there any more: it was moved, renamed or deleted, or its disk is not connected. Bring it back, or choose \
             a model on the page of models."
        ),
        ErrorKind::PermissionDenied => {
            format!(
                "cannot {action} {path}: it belongs to another user or program. Change its permissions, or copy it to your own folder."
            )
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            format!("cannot {action} {path}: the disk is full. Delete what you do not need, then try again.")
        }
        ErrorKind::ReadOnlyFilesystem => {
            format!("cannot {action} {path}: this disk can only be read. Choose another folder.")
        }
        _ => format!("cannot {action} {path}: {source}"),
    }
}

fn is_on_device(what: &str) -> bool {
    ["VRAM", "GPU", "weights", "FFN", "neuron blocks", "hand-over", "streaming buffer"]
        .iter()
        .any(|part| what.contains(part))
}

/// The remedy for a lack of memory for `what`.
fn remedy(what: &str) -> &'static str {
    if what.contains("KV cache") {
        "A shorter context needs less, and so do keys and values of type Q8_0."
    } else if is_on_device(what) {
        "Raise the VRAM budget, or have the CPU compute."
    } else {
        "Close other programs, or choose a smaller model or a shorter context."
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_errors_have_units_and_a_remedy() {
        let said = |what, wanted, available| error_message(&Error::Memory { what, wanted, available });
        let weights = said("the least of the model in VRAM", 3 << 29, 200 << 20);
        assert!(weights.contains("1.5 GiB wanted, 200.0 MiB available. Raise the VRAM budget"), "{weights}");
        let cache = said("KV cache", 2 << 30, 0);
        assert!(cache.contains("2.0 GiB wanted, none is free. A shorter context"), "{cache}");
        let near = said("scratch", (64 << 20) + 1, 64 << 20);
        assert!(near.contains("a little more than the 64.0 MiB there are") && near.contains("Close"), "{near}");
        let none = said("the least of the model in VRAM", 3 << 20, 0);
        assert!(none.contains("the budget leaves nothing for it. Raise the VRAM budget"), "{none}");
        let other = Error::Stopped("why".to_owned());
        assert_eq!(error_message(&other), other.to_string());
    }

    #[test]
    fn file_errors_say_what_to_do() {
        let said = |kind: ErrorKind| error_message(&Error::io("open", "/models/a.gguf", kind.into()));
        assert!(said(ErrorKind::NotFound).contains("/models/a.gguf is not there any more: it was moved"));
        assert!(said(ErrorKind::StorageFull).contains("the disk is full. Delete"));
        assert!(said(ErrorKind::PermissionDenied).contains("another user"));
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
