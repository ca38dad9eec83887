//! Folders of the program's files: the system's standard folders, or one folder beside the program.

use std::{
    env,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use directories::ProjectDirs;
use thermocline_engine::session::Fallbacks;

/// Environment variable that names the folder for all files.
const DATA: &str = "THERMOCLINE_DATA";

/// Name of the folder beside a portable program.
const PORTABLE: &str = "thermocline-data";

/// The program's folders. They need not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folders {
    /// Folder of the settings.
    pub config: PathBuf,
    /// Folder of chats and downloaded models.
    pub data: PathBuf,
    /// Folder of files that can be recreated.
    pub cache: PathBuf,
}

impl Folders {
    /// Finds the program's folders. The variable [`DATA`] comes first, then the folder beside a
    /// portable program, then the system's folders. `None` if the user has no home folder.
    pub fn detect() -> Option<Self> {
        let named = env::var_os(DATA).filter(|name| !name.is_empty()).map(PathBuf::from);
        let portable = || portable_folder().ok().filter(|folder| folder.is_dir());
        named.or_else(portable).map(|folder| Self::below(&folder)).or_else(Self::system)
    }

    /// The system's folders for this user; `None` if the user has no home folder.
    ///
    /// | | settings | chats and models | cache |
    /// |---|---|---|---|
    /// | Linux | `~/.config/thermocline` | `~/.local/share/thermocline` | `~/.cache/thermocline` |
    /// | macOS | `~/Library/Application Support/org.thermocline.Thermocline` | the same | the same in `~/Library/Caches` |
    /// | Windows | `%APPDATA%\Thermocline\config` | `%LOCALAPPDATA%\Thermocline\data` | `...\Thermocline\cache` |
    pub fn system() -> Option<Self> {
        let project = ProjectDirs::from("org.thermocline", "", "Thermocline")?;
        Some(Folders {
            config: project.config_dir().to_owned(),
            // Windows synchronises `data_dir` between computers, which does not suit models.
            data: project.data_local_dir().to_owned(),
            cache: project.cache_dir().to_owned(),
        })
    }

    /// Puts all folders below `folder`.
    pub fn below(folder: &Path) -> Self {
        Folders { config: folder.to_owned(), data: folder.to_owned(), cache: folder.join("cache") }
    }

    /// Makes the program portable: creates a folder beside it, which it uses from now on.
    ///
    /// # Errors
    /// The reason in a sentence.
    pub fn portable() -> Result<Self, String> {
        let folder = portable_folder().map_err(|error| format!("the folder of the program is unknown: {error}"))?;
        fs::create_dir_all(&folder).map_err(|error| {
            format!("cannot create {}: {error}. Move the program to a folder that you can write to", folder.display())
        })?;
        Ok(Self::below(&folder))
    }

    /// File of the settings.
    pub fn settings(&self) -> PathBuf {
        self.config.join("settings.json")
    }

    /// File of the chats.
    pub fn chats(&self) -> PathBuf {
        self.data.join("chats.db")
    }

    /// Folder of firing counts, kept for models without a profile.
    pub fn counts(&self) -> PathBuf {
        self.data.join("counts")
    }

    /// Folder of downloaded models.
    pub fn models(&self) -> PathBuf {
        self.data.join("models")
    }

    /// File of the terminal chat's input history.
    pub fn history(&self) -> PathBuf {
        self.data.join("history.txt")
    }

    /// Folder of the GPU driver's compiled pipelines.
    pub fn pipelines(&self) -> PathBuf {
        self.cache.join("pipelines")
    }

    /// Disabled GPU features, kept between runs.
    pub fn fallbacks(&self) -> Fallbacks {
        Fallbacks::in_folder(&self.cache)
    }
}

fn portable_folder() -> io::Result<PathBuf> {
    Ok(beside(&env::current_exe()?, image(env::var_os("APPIMAGE"), env::var_os("APPDIR"))))
}

/// The AppImage `file` and its mount point `place` with links resolved. `place` may contain links
/// from TMPDIR. The path of a running program contains no links.
fn image(file: Option<OsString>, place: Option<OsString>) -> Option<(PathBuf, PathBuf)> {
    Some((file?.into(), fs::canonicalize(place?).ok()?))
}

/// The portable folder of `program`. An AppImage runs from a folder that is read-only or removed
/// afterwards, so its folder is beside the image file. `image` is that file and its mount point.
/// Every process that the AppImage starts inherits both.
fn beside(program: &Path, image: Option<(PathBuf, PathBuf)>) -> PathBuf {
    let program = match &image {
        Some((file, place)) if program.starts_with(place) => file,
        _ => program,
    };
    program.parent().unwrap_or(Path::new(".")).join(PORTABLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_folders_are_the_platforms_own() {
        let folders = Folders::system().unwrap();
        let ends = if cfg!(windows) {
            [r"Roaming\Thermocline\config", r"Local\Thermocline\data", r"Local\Thermocline\cache"]
        } else if cfg!(target_os = "macos") {
            let support = "Library/Application Support/org.thermocline.Thermocline";
            [support, support, "Library/Caches/org.thermocline.Thermocline"]
        } else {
            // Environment variables like XDG_CONFIG_HOME may name the parent folders.
            ["thermocline"; 3]
        };
        for (place, end) in [&folders.config, &folders.data, &folders.cache].into_iter().zip(ends) {
            assert!(place.ends_with(end) && place.is_absolute(), "{}", place.display());
        }
    }

    #[test]
    fn portable_folders_are_beside_the_program() {
        let folder = beside(Path::new("/stick/thermocline"), None);
        assert_eq!(folder, Path::new("/stick/thermocline-data"));
        let it = Folders::below(&folder);
        for path in [it.settings(), it.chats(), it.models(), it.history(), it.pipelines(), it.config, it.data, it.cache]
        {
            assert!(path.starts_with("/stick/thermocline-data"), "{}", path.display());
        }
    }

    #[test]
    fn app_image_is_portable_beside_its_file() {
        let image = || Some((PathBuf::from("/stick/a.AppImage"), PathBuf::from("/tmp/.mount_a")));
        let inside = beside(Path::new("/tmp/.mount_a/usr/bin/thermocline"), image());
        assert_eq!(inside, Path::new("/stick/thermocline-data"));
        let other = beside(Path::new("/usr/bin/thermocline"), image());
        assert_eq!(other, Path::new("/usr/bin/thermocline-data"));
    }

    #[cfg(unix)]
    #[test]
    fn app_image_is_recognised_through_links() {
        let folder = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(folder.path()).unwrap().join("real");
        fs::create_dir_all(real.join("mounted/usr/bin")).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let file = || Some(OsString::from("/stick/a.AppImage"));
        let linked = image(file(), Some(link.join("mounted").into()));
        let program = real.join("mounted/usr/bin/thermocline");
        assert_eq!(beside(&program, linked), Path::new("/stick/thermocline-data"));
        for nowhere in [Some(OsString::new()), Some(real.join("gone").into()), None] {
            assert_eq!(beside(&program, image(file(), nowhere)), real.join("mounted/usr/bin/thermocline-data"));
        }
    }
}
