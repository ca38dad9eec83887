//! A tool as a server describes it.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Most bytes of a tool's schema; a tool with more is left out.
const MOST_SCHEMA: usize = 16 << 10;

/// Most characters of a description; the rest is left out.
const MOST_DESCRIPTION: usize = 1024;

/// Most characters of a name.
const MOST_NAME: usize = 64;

/// A tool. Name, description and schema are a server's, and unchecked.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Name that the server knows it by.
    pub name: String,
    /// Its purpose.
    pub description: String,
    /// JSON schema of its arguments.
    pub schema: Value,
}

impl Tool {
    /// A tool with a description that is not too long.
    pub fn new(name: &str, description: &str, schema: Value) -> Self {
        Tool { name: name.to_owned(), description: first(&clean(description), MOST_DESCRIPTION), schema }
    }

    /// `true` if models can be told of it: a name as models write them, and a schema that is an object of moderate size.
    pub fn is_offerable(&self) -> bool {
        is_name(&self.name) && self.schema.is_object() && self.schema.to_string().len() <= MOST_SCHEMA
    }

    /// Number that changes with anything in it: consent is given to a tool as it was then.
    pub fn fingerprint(&self) -> String {
        let text = json!([self.name, self.description, self.schema]).to_string();
        Sha256::digest(text).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }

    /// The first `most` characters of its description, with "…" if that is not all.
    pub fn described(&self, most: usize) -> String {
        first(&self.description, most)
    }

    /// Its definition in OpenAI's form, under the name that the model knows.
    pub fn definition(&self, name: &str) -> Value {
        json!({
            "type": "function",
            "function": { "name": name, "description": self.description, "parameters": self.schema },
        })
    }
}

/// `true` for names that models write without mistakes and servers of models accept.
fn is_name(name: &str) -> bool {
    let letters = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
    !name.is_empty() && name.len() <= MOST_NAME && name.chars().all(letters)
}

/// The first `most` characters of `text`, with "…" if that is not all.
fn first(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Text without control characters but line ends and tabs.
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
