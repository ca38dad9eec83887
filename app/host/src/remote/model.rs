//! The name of a model on a server.

use std::fmt;

use super::ServerAddress;

/// Prefix of remote models' keys in settings and chats.
const PREFIX: &str = "remote:";

/// A model of a server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemoteModel {
    /// The server.
    pub server: ServerAddress,
    /// Name of the model on the server.
    pub name: String,
}

impl RemoteModel {
    /// Returns the key that settings and chats store: `remote:http://127.0.0.1:8000/v1#NAME`.
    pub fn key(&self) -> String {
        format!("{PREFIX}{}#{}", self.server, self.name)
    }

    /// Returns the model of such a key.
    pub fn from_key(key: &str) -> Option<Self> {
        let (server, name) = key.strip_prefix(PREFIX)?.split_once('#')?;
        Some(RemoteModel { server: server.parse().ok()?, name: name.to_owned() })
    }
}

impl fmt::Display for RemoteModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.name, self.server.host())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_is_restored_from_its_key() {
        let server = "https://example.org/v1".parse().unwrap();
        let model = RemoteModel { server, name: "org/model#2".to_owned() };
        assert_eq!(RemoteModel::from_key(&model.key()), Some(model.clone()));
        assert_eq!(model.to_string(), "org/model#2 at example.org");
        for other in ["builtin:storyteller", "remote:x", "remote:ftp://a#b", "/a/model.gguf"] {
            assert_eq!(RemoteModel::from_key(other), None);
        }
    }
}
