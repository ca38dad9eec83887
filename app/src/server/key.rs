//! The key that clients have to present.

use hyper::{HeaderMap, header};
use sha2::{Digest, Sha256};

use super::error::ApiError;

/// Whether the key in `headers` is `key`; where there is none to be checked, anything is.
pub fn check(key: Option<&str>, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(key) = key else { return Ok(()) };
    let Some(given) = headers.get(header::AUTHORIZATION) else {
        return Err(ApiError::key("this server wants its key, as `Authorization: Bearer KEY`"));
    };
    let given = given.as_bytes();
    let is_bearer = given.len() >= 7 && given[..7].eq_ignore_ascii_case(b"bearer ");
    // Of digests, how long a comparison takes tells nothing about the key.
    if is_bearer && Sha256::digest(given[7..].trim_ascii()) == Sha256::digest(key.as_bytes()) {
        return Ok(());
    }
    Err(ApiError::key("the key is not this server's"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_opens() {
        let with = |value: &str| HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        assert!(check(None, &HeaderMap::new()).is_ok() && check(None, &with("Bearer x")).is_ok());
        assert!(check(Some("geheim"), &with("Bearer geheim")).is_ok());
        assert!(check(Some("geheim"), &with("bearer  geheim")).is_ok());
        for wrong in ["Bearer geheim2", "Bearer gehei", "Bearer ", "Bearer", "Basic geheim", "geheim", ""] {
            assert_eq!(check(Some("geheim"), &with(wrong)).unwrap_err().status, 401, "{wrong}");
        }
        assert_eq!(check(Some("geheim"), &HeaderMap::new()).unwrap_err().status, 401);
    }
}
