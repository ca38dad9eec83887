//! A key that a server wants to be shown.

use std::fmt;

/// A server's key. It is printed as `[key]`.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey(String);

/// Put in place of a key in texts of others.
const REDACTED: &str = "[key]";

impl SecretKey {
    /// The key in `text`, without spaces around it; `None` if nothing is left, or if it cannot be sent.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        let sendable = !text.is_empty() && text.bytes().all(|byte| (0x21..0x7f).contains(&byte));
        sendable.then(|| SecretKey(text.to_owned()))
    }

    /// The key that was typed into a field; `None` for an empty field.
    ///
    /// # Errors
    /// A sentence about a key that cannot be sent.
    pub fn typed(text: &str) -> Result<Option<Self>, String> {
        match Self::new(text) {
            None if !text.trim().is_empty() => Err("key: expected printable letters without spaces".to_owned()),
            key => Ok(key),
        }
    }

    /// The value of the `Authorization` header.
    pub(super) fn authorization(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// The key itself, to be stored or sent.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// `text` without the key: servers repeat it in their errors.
    pub fn redact(&self, text: &str) -> String {
        text.replace(&self.0, REDACTED)
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_trimmed_checked_and_never_printed() {
        let key = SecretKey::new(" sk-secret\n").unwrap();
        assert_eq!(key.authorization(), "Bearer sk-secret");
        assert_eq!(format!("{key:?} {:?}", Some(&key)), "[key] Some([key])");
        assert_eq!(key.redact("Incorrect API key: sk-secret."), "Incorrect API key: [key].");
        for bad in ["", " \n", "a b", "a\r\nHost: x", "schlüssel"] {
            assert!(SecretKey::new(bad).is_none(), "{bad:?}");
        }
    }
}
