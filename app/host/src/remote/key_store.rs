//! The API keys of servers, kept between runs.

use std::{
    collections::BTreeMap,
    fmt, fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use super::SecretKey;
use crate::folders::Folders;

/// Name of the keys in the system's keychain.
const SERVICE: &str = "org.thermocline.Thermocline";

/// File of keys in the settings folder, used if there is no keychain.
const FILE: &str = "keys.json";

/// Where a key is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyPlace {
    /// The system's keychain.
    Keychain,
    /// This file, which only its owner can read.
    File(PathBuf),
}

impl fmt::Display for KeyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyPlace::Keychain => f.write_str("the key is stored in the system's keychain"),
            KeyPlace::File(path) => {
                write!(
                    f,
                    "this system has no keychain. The key is stored in {}, which only you can read",
                    path.display()
                )
            }
        }
    }
}

/// Failure to read or store a key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The key file cannot be read or written.
    #[error("{action} {}: {error}", .path.display())]
    File {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The keychain refuses access.
    #[error("the system's keychain: {0}")]
    Keychain(String),
}

/// The API keys of servers, by address. They are in the system's keychain or, without one, in a
/// file with mode 600. Access may wait for the user to unlock the keychain.
#[derive(Debug, Clone)]
pub struct KeyStore {
    file: PathBuf,
    keychain: bool,
}

impl KeyStore {
    /// The key store of a program with these folders. A program with a folder of its own uses no
    /// keychain.
    pub fn of(folders: &Folders) -> Self {
        let keychain = Folders::system().as_ref() == Some(folders);
        KeyStore { file: folders.config.join(FILE), keychain }
    }

    /// Returns the key of a server, if there is one.
    ///
    /// # Errors
    /// The file cannot be read, or the keychain refuses access.
    pub fn get(&self, server: impl AsRef<str>) -> Result<Option<SecretKey>, KeyError> {
        let server = server.as_ref();
        if let Some(key) = self.in_keychain(server, |entry| entry.get_password())? {
            return Ok(SecretKey::new(&key));
        }
        Ok(self.read()?.get(server).and_then(|key| SecretKey::new(key)))
    }

    /// Stores the key of a server, replacing an older one. Returns where the key is.
    ///
    /// # Errors
    /// The key cannot be stored anywhere.
    pub fn set(&self, server: impl AsRef<str>, key: &SecretKey) -> Result<KeyPlace, KeyError> {
        let server = server.as_ref();
        if self.in_keychain(server, |entry| entry.set_password(key.expose()))?.is_some() {
            self.remove_from_file(server)?;
            return Ok(KeyPlace::Keychain);
        }
        let mut keys = self.read()?;
        keys.insert(server.to_owned(), key.expose().to_owned());
        self.write(&keys)?;
        Ok(KeyPlace::File(self.file.clone()))
    }

    /// Deletes the key of a server.
    ///
    /// # Errors
    /// The key could not be deleted.
    pub fn remove(&self, server: impl AsRef<str>) -> Result<(), KeyError> {
        let server = server.as_ref();
        self.in_keychain(server, |entry| entry.delete_credential())?;
        self.remove_from_file(server)
    }

    /// Runs `ask` on the keychain's entry of a server. `None` if there is no keychain or no entry.
    fn in_keychain<T>(
        &self,
        server: &str,
        ask: impl FnOnce(&keyring::Entry) -> keyring::Result<T>,
    ) -> Result<Option<T>, KeyError> {
        use keyring::Error::{NoDefaultStore, NoEntry, PlatformFailure};
        let entry = self.keychain.then(|| keyring::Entry::new(SERVICE, server).ok()).flatten();
        let Some(entry) = entry else { return Ok(None) };
        match ask(&entry) {
            Ok(got) => Ok(Some(got)),
            Err(NoEntry | NoDefaultStore | PlatformFailure(_)) => Ok(None),
            Err(error) => Err(KeyError::Keychain(error.to_string())),
        }
    }

    fn remove_from_file(&self, server: &str) -> Result<(), KeyError> {
        let mut keys = self.read()?;
        if keys.remove(server).is_some() { self.write(&keys) } else { Ok(()) }
    }

    fn read(&self) -> Result<BTreeMap<String, String>, KeyError> {
        let failed = |error| KeyError::File { action: "read", path: self.file.clone(), error };
        match fs::read(&self.file) {
            // The parser's message could contain a key.
            Ok(json) => serde_json::from_slice(&json).map_err(|error| {
                let place = format!("line {} is not valid JSON with servers and their keys", error.line());
                failed(io::Error::new(io::ErrorKind::InvalidData, place))
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(failed(error)),
        }
    }

    fn write(&self, keys: &BTreeMap<String, String>) -> Result<(), KeyError> {
        let folder = self.file.parent().unwrap_or(Path::new("."));
        let write = || {
            fs::create_dir_all(folder)?;
            // Only its owner can read a temporary file. Renaming keeps this mode.
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            file.write_all(serde_json::to_string_pretty(keys)?.as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(&self.file)?;
            Ok(())
        };
        write().map_err(|error| KeyError::File { action: "write", path: self.file.clone(), error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::ServerAddress;

    #[test]
    fn keys_are_kept_in_a_file_that_only_its_owner_reads() {
        let folder = tempfile::tempdir().unwrap();
        let store = KeyStore::of(&Folders::below(&folder.path().join("deep")));
        let server: ServerAddress = "https://one.example".parse().unwrap();
        let other: ServerAddress = "https://two.example".parse().unwrap();
        let key = SecretKey::new("sk-1").unwrap();
        assert_eq!(store.get(&server).unwrap(), None);
        store.remove(&server).unwrap();
        let place = store.set(&server, &key).unwrap();
        store.set(&other, &SecretKey::new("sk-2").unwrap()).unwrap();
        let KeyPlace::File(path) = &place else { panic!("{place:?}") };
        assert!(place.to_string().contains("which only you can read"));
        assert_eq!(store.get(&server).unwrap(), Some(key));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        store.remove(&server).unwrap();
        assert_eq!(store.get(&server).unwrap(), None);
        assert!(store.get(&other).unwrap().is_some());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no temporary file is left");

        fs::write(path, "{\"https://one.example/v1\": sk-secret").unwrap();
        let error = store.get(&server).unwrap_err().to_string();
        assert!(error.contains("keys.json") && !error.contains("sk-secret"), "{error}");
        assert!(store.set(&server, &SecretKey::new("x").unwrap()).is_err(), "a damaged file is not replaced");
    }
}
