//! The base URL of a server.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use ureq::http::Uri;

use super::RemoteError;

/// The base URL of an OpenAI-compatible server, without a slash at the end:
/// `http://127.0.0.1:8000/v1`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct ServerAddress(String);

/// The usual path of servers.
const USUAL_PATH: &str = "/v1";

/// Paths below the base URL that users often copy with it.
const ENDPOINTS: [&str; 4] = ["/chat/completions", "/completions", "/models", "/responses"];

impl ServerAddress {
    /// The URL.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the URL of an endpoint. `path` begins with a slash.
    pub fn endpoint(&self, path: &str) -> String {
        format!("{}{path}", self.0)
    }

    /// Returns the host and port in the URL, which identify the server to users.
    pub fn host(&self) -> &str {
        let rest = self.0.split_once("://").map_or(&*self.0, |(_, rest)| rest);
        rest.split('/').next().unwrap_or(rest)
    }

    /// `true` if the server is on this computer.
    pub fn is_local(&self) -> bool {
        is_loopback(self.host())
    }

    /// `true` if the network cannot read what is sent: it is encrypted or stays on this
    /// computer.
    pub fn is_private(&self) -> bool {
        self.is_local() || self.0.starts_with("https://")
    }

    /// States in a sentence where messages are sent.
    pub fn destination(&self) -> String {
        let how = match (self.is_local(), self.is_private()) {
            (true, _) => "a server on this computer",
            (false, true) => "encrypted",
            (false, false) => "not encrypted: others on the network can read the messages and the key",
        };
        format!("Messages are sent to {} ({how})", self.host())
    }
}

/// `true` for names and addresses of this computer, with or without a port.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.split(':').next().unwrap_or(host),
    };
    name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

impl FromStr for ServerAddress {
    type Err = RemoteError;

    /// Parses an address as users type it, with or without `http://` and `/v1`.
    fn from_str(text: &str) -> Result<Self, RemoteError> {
        let wrong = |why: &'static str| RemoteError::Address { why };
        let text = text.trim();
        if text.contains('#') || text.contains('?') {
            return Err(wrong("a URL without `?` and `#`"));
        }
        let whole = match text.contains("://") {
            true => text.to_owned(),
            false if is_loopback(text.split('/').next().unwrap_or(text)) => format!("http://{text}"),
            false => format!("https://{text}"),
        };
        let uri: Uri = whole.parse().map_err(|_| wrong("a URL like http://127.0.0.1:8000/v1"))?;
        let scheme = uri.scheme_str().unwrap_or_default();
        if !matches!(scheme, "http" | "https") {
            return Err(wrong("http:// or https://"));
        }
        let authority = uri.authority().ok_or_else(|| wrong("a host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("a URL without a user name and password. Enter the key in its own field"));
        }
        if authority.host().is_empty() {
            return Err(wrong("a host"));
        }
        let usual = if scheme == "http" { 80 } else { 443 };
        let port = match authority.port_u16() {
            Some(port) if port != usual => format!(":{port}"),
            Some(_) => String::new(),
            None if authority.as_str().len() > authority.host().len() => return Err(wrong("a port from 1 to 65535")),
            None => String::new(),
        };
        let mut path = uri.path().trim_end_matches('/');
        for endpoint in ENDPOINTS {
            path = path.strip_suffix(endpoint).unwrap_or(path);
        }
        let path = if path.is_empty() { USUAL_PATH } else { path };
        Ok(ServerAddress(format!("{scheme}://{}{port}{path}", authority.host().to_ascii_lowercase())))
    }
}

impl AsRef<str> for ServerAddress {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ServerAddress {
    type Error = RemoteError;

    fn try_from(text: String) -> Result<Self, RemoteError> {
        text.parse()
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_type_them() {
        for (typed, base) in [
            ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
            ("localhost:8080", "http://localhost:8080/v1"),
            ("[::1]:8080/", "http://[::1]:8080/v1"),
            ("api.example.org", "https://api.example.org/v1"),
            (" HTTPS://API.example.org:443/openai/v1/ ", "https://api.example.org/openai/v1"),
            ("http://pc:8000/v1/chat/completions", "http://pc:8000/v1"),
            ("http://pc/v1/models", "http://pc/v1"),
        ] {
            assert_eq!(typed.parse::<ServerAddress>().unwrap().as_str(), base, "{typed}");
        }
    }

    #[test]
    fn other_addresses_are_refused_without_being_repeated() {
        for typed in [
            "",
            "http://",
            "ftp://a/v1",
            "file:///etc/passwd",
            "http://user:hunter2@host/v1",
            "http://host/v1?key=hunter2",
            "http://host:hunter2/v1",
            "http://host:99999/v1",
            "http://a b/v1",
        ] {
            let error = typed.parse::<ServerAddress>().unwrap_err().to_string();
            assert!(error.contains("expected") && !error.contains("hunter2"), "{typed}: {error}");
        }
    }

    #[test]
    fn destination_says_who_can_read_the_words() {
        let said = |typed: &str| typed.parse::<ServerAddress>().unwrap().destination();
        assert!(said("http://127.0.0.1:8000").contains("127.0.0.1:8000 (a server on this computer)"));
        assert!(said("https://example.org").contains("example.org (encrypted)"));
        assert!(said("http://10.0.0.7:8000").contains("not encrypted"));
        assert!(said("http://127.0.0.1.example.org").contains("not encrypted"), "only the whole name counts");
    }
}
