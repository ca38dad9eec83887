//! A tool as described by its server.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Largest schema in bytes. A tool with a larger schema is left out.
const MOST_SCHEMA: usize = 16 << 10;

/// Longest description in characters. The rest is left out.
const MOST_DESCRIPTION: usize = 1024;

/// Longest name in characters.
const MOST_NAME: usize = 64;

/// A tool. Its name, description and schema come from a server and are not trusted.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Name by which the server knows the tool.
    pub name: String,
    /// What the tool does.
    pub description: String,
    /// JSON schema of the arguments.
    pub schema: Value,
}

impl Tool {
    /// A tool whose description is shortened if it is too long.
    pub fn new(name: &str, description: &str, schema: Value) -> Self {
        Tool { name: name.to_owned(), description: first(&clean(description), MOST_DESCRIPTION), schema }
    }

    /// `true` if the tool can be offered to models: a valid name, and a schema that is an object of
    /// limited size.
    pub fn is_offerable(&self) -> bool {
        is_name(&self.name) && self.schema.is_object() && self.schema.to_string().len() <= MOST_SCHEMA
    }

    /// Hash of the whole tool. Consent is given to a tool in its current form.
    pub fn fingerprint(&self) -> String {
        let text = json!([self.name, self.description, self.schema]).to_string();
        Sha256::digest(text).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }

    /// The first `most` characters of its description, with "…" if it is longer.
    pub fn described(&self, most: usize) -> String {
        first(&self.description, most)
    }

    /// Its definition in OpenAI's format, under the name that the model knows.
    pub fn definition(&self, name: &str) -> Value {
        json!({
            "type": "function",
            "function": { "name": name, "description": self.description, "parameters": self.schema },
        })
    }
}

/// `true` for names that models write without mistakes and that model servers accept.
fn is_name(name: &str) -> bool {
    let letters = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
    !name.is_empty() && name.len() <= MOST_NAME && name.chars().all(letters)
}

/// The first `most` characters of `text`, with "…" if the text is longer.
fn first(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Removes control characters except line ends and tabs.
pub fn clean(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control() || matches!(letter, '\n' | '\t')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_that_models_cannot_be_told_of_are_known() {
        let tool = |name: &str, schema: Value| Tool::new(name, "x", schema).is_offerable();
        let object = json!({ "type": "object" });
        assert!(tool("read_file", object.clone()) && tool("a.b-c", object.clone()));
        for name in ["", "a b", "a\nb", "имя", &"x".repeat(65)] {
            assert!(!tool(name, object.clone()), "{name:?}");
        }
        assert!(!tool("a", json!([])) && !tool("a", json!({ "x": "y".repeat(MOST_SCHEMA) })));
        let long = Tool::new("a", &"é".repeat(3000), object);
        assert_eq!(long.description.chars().count(), MOST_DESCRIPTION + 1);
        assert_eq!((&*long.described(2), &*Tool::new("a", "bc", json!({})).described(2)), ("éé…", "bc"));
        assert_eq!(Tool::new("a", "b\u{1b}[2J\u{7}\tc\n", json!({})).description, "b[2J\tc\n");
    }

    #[test]
    fn fingerprint_changes_with_every_part() {
        let tool = Tool::new("a", "b", json!({ "type": "object" }));
        let others = [
            Tool { name: "c".to_owned(), ..tool.clone() },
            Tool { description: "d".to_owned(), ..tool.clone() },
            Tool { schema: json!({}), ..tool.clone() },
        ];
        assert_eq!(tool.fingerprint(), tool.clone().fingerprint());
        assert!(others.iter().all(|other| other.fingerprint() != tool.fingerprint()));
    }
}
