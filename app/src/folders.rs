//! Where files go: each system's own places, or all beside the program.

use std::path::{Path, PathBuf};

use directories::ProjectDirs;

/// The folder of a portable program, beside it.
const PORTABLE: &str = "thermocline-data";

/// The program's places. They need not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folders {
    /// Settings.
    pub config: PathBuf,
    /// Chats, and models that were downloaded.
    pub data: PathBuf,
    /// What can be made again.
    pub cache: PathBuf,
}

impl Folders {
    /// The system's places for this user; `None` if there is no home folder.
    pub fn system() -> Option<Self> {
        let project = ProjectDirs::from("", "", "thermocline")?;
        let (config, data) = (project.config_dir().to_owned(), project.data_dir().to_owned());
        Some(Folders { config, data, cache: project.cache_dir().to_owned() })
    }

    /// Everything below `folder`.
    pub fn below(folder: &Path) -> Self {
        Folders { config: folder.to_owned(), data: folder.to_owned(), cache: folder.join("cache") }
    }

    /// Beside the program that runs.
    pub fn portable() -> std::io::Result<Self> {
        let program = std::env::current_exe()?;
        Ok(Self::below(&program.parent().unwrap_or(Path::new(".")).join(PORTABLE)))
    }

    /// The settings.
    pub fn settings(&self) -> PathBuf {
        self.config.join("settings.json")
    }

    /// The chats.
    pub fn chats(&self) -> PathBuf {
        self.data.join("chats.db")
    }

    /// Models that were downloaded.
    pub fn models(&self) -> PathBuf {
        self.data.join("models")
    }
}
