//! Keyword search of Hugging Face repositories.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::{DownloadError, hub::repository_name, json_request::JsonRequest};

/// Largest number of results of a search.
pub const MOST_FOUND: usize = 20;

/// Largest response that is read, in bytes.
const LIST: u64 = 8 << 20;

/// A repository found by a search.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct HubRepository {
    /// Name as `owner/name`.
    #[serde(rename = "id")]
    pub name: String,
    /// Downloads in the last month.
    #[serde(default)]
    pub downloads: u64,
}

/// Finds repositories at `hub` that have GGUF files and whose names contain `words`, the most
/// downloaded first.
///
/// # Errors
/// [`DownloadError`].
pub fn search(agent: &ureq::Agent, hub: &str, words: &str) -> Result<Vec<HubRepository>, DownloadError> {
    let words = utf8_percent_encode(words.trim(), NON_ALPHANUMERIC);
    let url = format!("{hub}/api/models?search={words}&filter=gguf&sort=downloads&limit={MOST_FOUND}");
    let hint = |status: u16| match status {
        429 => ": too many requests, try again in a few minutes",
        _ => "",
    };
    let request = JsonRequest { url: &url, expected: "a list of repositories", limit: LIST, hint };
    let mut found: Vec<HubRepository> = request.send(agent)?;
    found.retain(|repository| repository_name(&repository.name).as_ref() == Some(&repository.name));
    found.truncate(MOST_FOUND);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::download::agent;
    use thermocline_host::testing::{replies, scripted_by_request};

    fn answered(status: &'static str, body: &'static str) -> (Result<Vec<HubRepository>, DownloadError>, String) {
        let (server, requests) =
            scripted_by_request(move |_, stream| replies(status, "application/json", body)(stream));
        let found = search(&agent(), &format!("http://{}", server.host()), " gemma & co ");
        (found, requests.recv().unwrap_or_default())
    }

    #[test]
    fn search_asks_for_gguf_files_by_downloads_and_leaves_out_what_is_no_repository() {
        let body = r#"[{"id":"a/b-GGUF","downloads":12,"tags":["gguf"]},{"id":"../etc"},{"id":"c/d"}]"#;
        let (found, request) = answered("200 OK", body);
        let found = found.unwrap();
        let shape: Vec<_> = found.iter().map(|it| (&*it.name, it.downloads)).collect();
        assert_eq!(shape, [("a/b-GGUF", 12), ("c/d", 0)]);
        let asked = "GET /api/models?search=gemma%20%26%20co&filter=gguf&sort=downloads&limit=20 ";
        assert!(request.starts_with(asked), "{request}");
    }

    #[test]
    fn errors_of_a_search_say_where_what_was_expected_and_what_came() {
        for (status, body, got) in [
            ("200 OK", "{}", "expected a list of repositories, got invalid type: map"),
            ("429 Slow", "", "expected status 200, got 429: too many requests"),
            ("500 No", "", "expected status 200, got 500"),
        ] {
            let error = answered(status, body).0.unwrap_err().to_string();
            assert!(error.contains("/api/models?search=") && error.contains(got), "{error}");
        }
        let error = search(&agent(), "http://127.0.0.1:9", "x").unwrap_err().to_string();
        assert_eq!(error, "127.0.0.1:9 refuses the connection: no server listens at this address.");
    }
}
