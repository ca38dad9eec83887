//! The key that clients must present.

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};

use super::error::ApiError;

/// The header in which Anthropic's clients present a key.
const API_KEY: &str = "x-api-key";

/// Refuses `headers` that do not present `key`. Without a key, every request passes.
pub fn check(key: Option<&str>, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(key) = key else { return Ok(()) };
    let bearer = headers.get(header::AUTHORIZATION).map(|value| bearer_token(value.as_bytes()).unwrap_or_default());
    let Some(given) = bearer.or_else(|| headers.get(API_KEY).map(|value| value.as_bytes().trim_ascii())) else {
        let message = "this server requires its key, as `Authorization: Bearer KEY` or `x-api-key: KEY`";
        return Err(ApiError::unauthorized(message));
    };
    // Digests are compared, so that the time taken reveals nothing about the key.
    if Sha256::digest(given) == Sha256::digest(key.as_bytes()) {
        return Ok(());
    }
    Err(ApiError::unauthorized("the key is not the key of this server"))
}

/// Returns the token of an `Authorization` header with the scheme `Bearer`.
fn bearer_token(header: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = header.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
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
        let api_key = |value: &str| HeaderMap::from_iter([(API_KEY.parse().unwrap(), value.parse().unwrap())]);
        assert!(check(Some("geheim"), &api_key("geheim")).is_ok());
        assert!(check(Some("geheim"), &api_key("falsch")).is_err() && check(Some("geheim"), &api_key("")).is_err());
    }
}
