//! The key that clients have to present.

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};

use super::error::ApiError;

/// Refuses `headers` that do not present `key`; without a key everything passes.
pub fn check(key: Option<&str>, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(key) = key else { return Ok(()) };
    let Some(given) = headers.get(header::AUTHORIZATION) else {
        return Err(ApiError::unauthorized("this server wants its key, as `Authorization: Bearer KEY`"));
    };
    let given = given.as_bytes();
    let is_bearer = given.len() >= 7 && given[..7].eq_ignore_ascii_case(b"bearer ");
    // Digests are compared: the time it takes reveals nothing about the key.
    if is_bearer && Sha256::digest(given[7..].trim_ascii()) == Sha256::digest(key.as_bytes()) {
        return Ok(());
    }
    Err(ApiError::unauthorized("the key is not this server's"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_accepts_the_exact_key_only() {
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
