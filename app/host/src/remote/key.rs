//! A server's API key.

use std::fmt;

/// A server's API key. Its debug output is `[key]`.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey(String);

/// Replaces a key in texts of servers.
const REDACTED: &str = "[key]";

impl SecretKey {
    /// Takes the key from `text`, without surrounding spaces. `None` if nothing is left or the key
    /// cannot be sent.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        let sendable = !text.is_empty() && text.bytes().all(|byte| (0x21..0x7f).contains(&byte));
        sendable.then(|| SecretKey(text.to_owned()))
    }

    /// Takes a key typed into a field; `None` for an empty field.
    ///
    /// # Errors
    /// A sentence that explains why the key cannot be sent.
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

    /// Returns the key itself, to store or send it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Removes the key from `text`, because servers repeat it in their errors.
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
