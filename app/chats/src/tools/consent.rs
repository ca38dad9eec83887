//! The user's consent to each tool.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Tool;

/// Consent to a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Consent {
    /// The user is asked before every call.
    Ask,
    /// The tool runs without asking.
    Always,
    /// The model is not offered the tool.
    Never,
}

impl Consent {
    /// All values, with their names.
    pub const NAMES: [(Consent, &str); 3] =
        [(Consent::Ask, "Ask"), (Consent::Always, "Always allow"), (Consent::Never, "Never")];

    /// The name of this value.
    pub fn name(self) -> &'static str {
        Consent::NAMES.iter().find(|(consent, _)| *consent == self).map_or("", |(_, name)| name)
    }
}

/// A consent, and the tool that it was given for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StoredConsent {
    consent: Consent,
    /// Fingerprint of the tool.
    #[serde(default)]
    tool: String,
}

/// Consents by server and tool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Consents(BTreeMap<String, StoredConsent>);

fn key(server: Option<&str>, tool: &Tool) -> String {
    // Tool names contain no slash.
    format!("{}/{}", server.unwrap_or_default(), tool.name)
}

impl Consents {
    /// Consent to a tool of `server`, or to a built-in tool. If the tool changed since the user
    /// always allowed it, the user is asked again.
    pub fn get(&self, server: Option<&str>, tool: &Tool) -> Consent {
        match self.0.get(&key(server, tool)) {
            Some(StoredConsent { consent: Consent::Always, tool: then }) if *then != tool.fingerprint() => Consent::Ask,
            Some(given) => given.consent,
            None if server.is_none() => Consent::Always,
            None => Consent::Ask,
        }
    }

    /// Sets the consent to a tool in its current form.
    pub fn set(&mut self, server: Option<&str>, tool: &Tool, consent: Consent) {
        self.0.insert(key(server, tool), StoredConsent { consent, tool: tool.fingerprint() });
    }

    /// Forgets all consents to tools of `server`.
    pub fn forget(&mut self, server: &str) {
        self.0.retain(|key, _| key.rsplit_once('/').is_none_or(|(name, _)| name != server));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn consent_is_asked_for_and_ends_when_the_tool_changes() {
        let mut consents = Consents::default();
        let tool = Tool::new("read", "Reads a file", json!({ "type": "object" }));
        assert_eq!(consents.get(Some("files"), &tool), Consent::Ask);
        assert_eq!(consents.get(None, &tool), Consent::Always, "the program's own");
        consents.set(Some("files"), &tool, Consent::Always);
        assert_eq!(consents.get(Some("files"), &tool), Consent::Always);
        assert_eq!(consents.get(Some("other"), &tool), Consent::Ask, "the same name elsewhere");
        let changed = Tool { description: "Reads a file and sends it away".to_owned(), ..tool.clone() };
        assert_eq!(consents.get(Some("files"), &changed), Consent::Ask);
        consents.set(Some("files"), &tool, Consent::Never);
        assert_eq!(consents.get(Some("files"), &changed), Consent::Never, "a change does not bring it back");
        let kept: Consents = serde_json::from_str(&serde_json::to_string(&consents).unwrap()).unwrap();
        assert_eq!(kept, consents);
        consents.forget("files");
        assert_eq!(consents, Consents::default());
    }
}
