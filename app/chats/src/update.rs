//! The notice of a newer version. Only users who turned it on get it, once when the window opens.

use serde::Deserialize;

use crate::download::{DownloadError, json_request::JsonRequest};

/// Address at which this build looks for a newer version, if it was built with one. The address
/// returns a JSON object such as `{"version": "1.2.3", "page": "https://…"}`, or a release in
/// GitHub's form.
pub const ADDRESS: Option<&str> = option_env!("THERMOCLINE_UPDATES");

/// Largest size of a response in bytes.
const MOST: u64 = 1 << 20;

/// An available version.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Release {
    /// Version number, with or without a leading `v`.
    #[serde(alias = "tag_name")]
    pub version: String,
    /// Address of its description; empty if unknown.
    #[serde(default, alias = "html_url")]
    pub page: String,
}

/// The three numbers of a version; `None` if the text is not a version.
fn numbers(version: &str) -> Option<[u64; 3]> {
    let plain = version.trim().trim_start_matches('v').split(['-', '+']).next()?;
    let mut parts = plain.split('.').map(|part| part.parse::<u64>().ok());
    let numbers = [parts.next()??, parts.next().unwrap_or(Some(0))?, parts.next().unwrap_or(Some(0))?];
    parts.next().is_none().then_some(numbers)
}

impl Release {
    /// True if this release is newer than `version`.
    pub fn is_newer_than(&self, version: &str) -> bool {
        numbers(&self.version).zip(numbers(version)).is_some_and(|(there, here)| there > here)
    }
}

/// Fetches the release at `address`; `None` unless it is newer than this program. Sends nothing but
/// the request.
///
/// # Errors
/// [`DownloadError`].
pub fn newer(agent: &ureq::Agent, address: &str) -> Result<Option<Release>, DownloadError> {
    let request = JsonRequest { url: address, expected: "a version and its page", limit: MOST, hint: |_| "" };
    let release: Release = request.send(agent)?;
    Ok(Some(release).filter(|release| release.is_newer_than(env!("CARGO_PKG_VERSION"))))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpListener,
    };

    use super::*;
    use crate::download::agent;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        let release = |version: &str| Release { version: version.to_owned(), page: String::new() };
        assert!(release("v1.10.0").is_newer_than("1.9.9") && release("2").is_newer_than("1.99.99"));
        for same in ["1.2.3", "v1.2.3", "1.2", "0.9.9", "nightly", "1.2.3.4", "1.2.x"] {
            assert!(!release(same).is_newer_than("1.2.3"), "{same}");
        }
    }

    #[test]
    fn release_is_read_from_its_address() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/latest", server.local_addr().unwrap());
        let answers = [
            r#"{"version": "999.0.0", "page": "https://example.com"}"#,
            r#"{"tag_name": "v0.0.1", "html_url": "x", "other": []}"#,
            "no JSON",
        ];
        let thread = std::thread::spawn(move || {
            for body in answers {
                let (mut stream, _) = server.accept().unwrap();
                let _ = stream.read(&mut [0; 1024]);
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
                stream.write_all((head + body).as_bytes()).unwrap();
            }
        });
        let found = newer(&agent(), &address).unwrap().unwrap();
        assert_eq!((&*found.version, &*found.page), ("999.0.0", "https://example.com"));
        assert_eq!(newer(&agent(), &address).unwrap(), None, "an older one");
        assert!(matches!(newer(&agent(), &address), Err(DownloadError::Answer { .. })));
        thread.join().unwrap();
        assert!(newer(&agent(), &address).is_err(), "the listener is gone");
    }
}
