//! The file that keeps fallbacks.

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use serde::{Deserialize, Serialize};

use super::{AdapterId, Fallback, fallback::PROGRAM};
use crate::{
    error::{Error, FileAction, Location, Result},
    files::{Form, NewFile},
};

/// Version of the file's format.
const VERSION: u32 = 1;
/// Most bytes of a file that is read.
const MOST_BYTES: u64 = 1 << 20;

/// Contents of the file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FallbackFile {
    version: u32,
    /// Version of the program that has written it.
    #[serde(default)]
    program: String,
    pub fallbacks: Vec<Fallback>,
    /// Adapters that are used although their drivers are known to be bad.
    #[serde(default)]
    pub overruled: Vec<AdapterId>,
}

impl FallbackFile {
    /// Contents with these.
    pub fn new(fallbacks: &[Fallback], overruled: &[AdapterId]) -> Self {
        let (fallbacks, overruled) = (fallbacks.to_vec(), overruled.to_vec());
        FallbackFile { version: VERSION, program: PROGRAM.to_owned(), fallbacks, overruled }
    }

    /// Contents that this version of the program has written to `file`; empty ones if there is no file.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Malformed`].
    pub fn read(file: &Path) -> Result<Self> {
        let failed = |error| Error::io(FileAction::Read, file, error);
        let refused = |got: String| Error::malformed(file, Location::File, "the fallbacks of GPUs, as JSON", got);
        match fs::metadata(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(FallbackFile::new(&[], &[])),
            Ok(known) if known.len() > MOST_BYTES => return Err(refused(format!("{} bytes", known.len()))),
            known => _ = known.map_err(failed)?,
        }
        let text = fs::read(file).map_err(failed)?;
        let mut kept: FallbackFile = serde_json::from_slice(&text).map_err(|error| refused(error.to_string()))?;
        if kept.version != VERSION {
            return Err(refused(format!("version {}", kept.version)));
        }
        kept.fallbacks.retain(|it| it.program == PROGRAM);
        if kept.program != PROGRAM {
            kept.overruled.clear();
        }
        Ok(kept)
    }

    /// Writes it, whole or not at all.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, file: &Path) -> Result<()> {
        let failed = |error: io::Error| Error::io(FileAction::Write, file, error);
        fs::create_dir_all(file.parent().unwrap_or(Path::new("."))).map_err(failed)?;
        let text = serde_json::to_string_pretty(self).map_err(|error| failed(error.into()))?;
        let mut new = NewFile::create(file, Form::Stream)?;
        new.write_all(text.as_bytes()).map_err(failed)?;
        new.finish_unsynced()
    }
}
