//! Calls between tags: `<function=NAME>` with `<parameter=KEY>` (Qwen3-Coder, Nemotron 3), and `NAME` with `<arg_key>` (GLM).

use serde_json::Value;

use super::{ToolEvent, definition::Definitions};

/// The tags of a notation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tags {
    /// `<function=NAME><parameter=KEY>VALUE</parameter></function>`
    Function,
    /// `NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`, up to the text that ends the call.
    Keys,
}

/// The reader of one call.
#[derive(Debug, Clone)]
pub struct XmlCall {
    tags: Tags,
    close: &'static str,
    name: Option<String>,
    has_arguments: bool,
}

impl XmlCall {
    /// A reader of a call in brackets that end with `close`.
    pub fn new(tags: Tags, close: &'static str) -> Self {
        XmlCall { tags, close, name: None, has_arguments: false }
    }

    /// Removes what can be read from the beginning of `held`. `true` when the call is complete; the closing bracket is left.
    pub fn push(&mut self, held: &mut String, definitions: &Definitions, out: &mut Vec<ToolEvent>) -> bool {
        if self.name.is_none() && !self.read_name(held, out) {
            return false;
        }
        loop {
            let rest = held.trim_start();
            let end = match self.tags {
                Tags::Function => "</function>",
                Tags::Keys => self.close,
            };
            if let Some(behind) = rest.strip_prefix(end) {
                if self.tags == Tags::Function {
                    *held = behind.to_owned();
                }
                self.complete(out);
                return true;
            }
            let Some((key, value, used)) = self.parameter(rest) else {
                // Something else ends the call, unless it may become one of the tags.
                let opening = if self.tags == Tags::Function { "<parameter=" } else { "<arg_key>" };
                let may_follow =
                    rest.is_empty() || rest.starts_with(opening) || opening.starts_with(rest) || end.starts_with(rest);
                if may_follow {
                    return false;
                }
                // The tag that ends the call may be left out before the bracket that does; before anything else it breaks off.
                if self.has_arguments || (!self.close.is_empty() && rest.starts_with(self.close)) {
                    self.complete(out);
                }
                *held = rest.to_owned();
                return true;
            };
            let name = self.name.as_deref().unwrap_or_default();
            let value = definitions.argument(name, &key, &value);
            let separator = if self.has_arguments { ", " } else { "{" };
            ToolEvent::push_arguments(out, &format!("{separator}{}: {value}", Value::String(key)));
            self.has_arguments = true;
            *held = rest[used..].to_owned();
        }
    }

    /// Ends the call, which is complete. One that breaks off keeps the parameters so far, and has no end.
    fn complete(&mut self, out: &mut Vec<ToolEvent>) {
        if self.name.take().is_some() {
            ToolEvent::push_arguments(out, if self.has_arguments { "}" } else { "{}" });
            out.push(ToolEvent::End);
        }
    }

    /// Reads the name; `false` if more is needed.
    fn read_name(&mut self, held: &mut String, out: &mut Vec<ToolEvent>) -> bool {
        let (end, skip) = match self.tags {
            Tags::Function => (held.find('>'), 1),
            Tags::Keys => ([held.find("<arg_key>"), held.find(self.close)].into_iter().flatten().min(), 0),
        };
        let Some(end) = end else { return false };
        let name = held[..end].trim_start().trim_start_matches("<function=").trim().to_owned();
        held.drain(..end + skip);
        out.push(ToolEvent::Begin { name: name.clone() });
        self.name = Some(name);
        true
    }

    /// Key and value of the parameter that `text` begins with, and its length; `None` if it is not complete.
    fn parameter(&self, text: &str) -> Option<(String, String, usize)> {
        let (opening, key_end, opening_value, closing) = match self.tags {
            Tags::Function => ("<parameter=", ">", "", "</parameter>"),
            Tags::Keys => ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        };
        let (key, rest) = text.strip_prefix(opening)?.split_once(key_end)?;
        let rest = if opening_value.is_empty() { rest } else { rest.trim_start().strip_prefix(opening_value)? };
        let (value, rest) = rest.split_once(closing)?;
        let value = match self.tags {
            // A line end after the opening tag and one before the closing tag belong to the notation.
            Tags::Function => {
                let value = value.strip_prefix('\n').unwrap_or(value);
                value.strip_suffix('\n').unwrap_or(value)
            }
            Tags::Keys => value,
        };
        Some((key.trim().to_owned(), value.to_owned(), text.len() - rest.len()))
    }
}
