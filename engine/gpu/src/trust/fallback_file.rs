//! A file of fallbacks: the record of all fallbacks, or a crash sentinel.

use std::{fs::File, io::Read};

use serde::{Deserialize, Serialize};

use super::{AdapterId, Fallback};

/// Version of this program. Another version ignores the file.
const PROGRAM: &str = env!("CARGO_PKG_VERSION");
/// Version of the file's format.
const VERSION: u32 = 1;
/// Most bytes to read from a file.
const MOST_BYTES: u64 = 1 << 20;

/// Contents of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct FallbackFile {
    version: u32,
    /// Version of the program that wrote the file.
    #[serde(default)]
    program: String,
    pub fallbacks: Vec<Fallback>,
    /// Adapters that are used although their drivers are known to fail.
    #[serde(default)]
    pub overruled: Vec<AdapterId>,
}

impl FallbackFile {
    /// Creates the contents of a file.
    pub fn new(fallbacks: &[Fallback], overruled: &[AdapterId]) -> Self {
        let (fallbacks, overruled) = (fallbacks.to_vec(), overruled.to_vec());
        FallbackFile { version: VERSION, program: PROGRAM.to_owned(), fallbacks, overruled }
    }

    /// Reads `file`. Returns empty contents if the file is empty, damaged, or of another version of
    /// the program.
    pub fn read(file: &File) -> Self {
        let mut text = Vec::new();
        let read = file.take(MOST_BYTES).read_to_end(&mut text);
        let kept = read.and_then(|_| Ok(serde_json::from_slice::<FallbackFile>(&text)?));
        match kept {
            Ok(kept) if kept.version == VERSION && kept.program == PROGRAM => return kept,
            Err(error) if !text.is_empty() => tracing::warn!(%error, "the file of disabled GPU features is damaged"),
            Ok(_) | Err(_) => {}
        }
        FallbackFile::default()
    }
}
