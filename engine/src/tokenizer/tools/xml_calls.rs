//! Calls between tags: `<function=NAME>` with `<parameter=KEY>` (Qwen3-Coder, Nemotron 3), `<function name="NAME">` with
//! `<param name="KEY">` (MiniCPM 5), and `NAME` with `<arg_key>` (GLM).

use serde_json::Value;

use super::{ToolEvent, definition::Definitions};

/// The tags of a notation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tags {
    /// `<function=NAME><parameter=KEY>VALUE</parameter></function>`
    Function,
    /// `<function name="NAME"><param name="KEY">VALUE</param></function>`, in which a value is text or in CDATA sections: text
    /// that has the end of one in it is written as two.
    Attributes,
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
                Tags::Function | Tags::Attributes => "</function>",
                Tags::Keys => self.close,
            };
            if let Some(behind) = rest.strip_prefix(end) {
                if self.tags != Tags::Keys {
                    *held = behind.to_owned();
                }
                self.complete(out);
                return true;
            }
            let Some((key, value, used)) = self.parameter(rest) else {
                // Something else ends the call, unless it may become one of the tags.
                let opening = self.opening();
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
            Tags::Function | Tags::Attributes => (held.find('>'), 1),
            Tags::Keys => ([held.find("<arg_key>"), held.find(self.close)].into_iter().flatten().min(), 0),
        };
        let Some(end) = end else { return false };
        let tag = held[..end].trim();
        let name = match self.tags {
            Tags::Attributes => attribute(tag.trim_start_matches("<function name=").trim_end_matches('/')),
            Tags::Function | Tags::Keys => tag.trim_start_matches("<function=").trim().to_owned(),
        };
        let is_whole = self.tags == Tags::Attributes && tag.ends_with('/');
        held.replace_range(..end + skip, if is_whole { "</function>" } else { "" });
        out.push(ToolEvent::Begin { name: name.clone() });
        self.name = Some(name);
        true
    }

    /// Beginning of the tag ahead of a key.
    fn opening(&self) -> &'static str {
        match self.tags {
            Tags::Function => "<parameter=",
            Tags::Attributes => "<param name=",
            Tags::Keys => "<arg_key>",
        }
    }

    /// Key and value of the parameter that `text` begins with, and its length; `None` if it is not complete.
    fn parameter(&self, text: &str) -> Option<(String, String, usize)> {
        let (key_end, opening_value, closing) = match self.tags {
            Tags::Function => (">", "", "</parameter>"),
            Tags::Attributes => (">", "", "</param>"),
            Tags::Keys => ("</arg_key>", "<arg_value>", "</arg_value>"),
        };
        let (key, rest) = text.strip_prefix(self.opening())?.split_once(key_end)?;
        if self.tags == Tags::Attributes {
            let (value, rest) = sections(rest, closing)?;
            return Some((attribute(key), value, text.len() - rest.len()));
        }
        let rest = if opening_value.is_empty() { rest } else { rest.trim_start().strip_prefix(opening_value)? };
        let (value, rest) = rest.split_once(closing)?;
        let value = match self.tags {
            Tags::Function => without_line_ends(value),
            Tags::Attributes | Tags::Keys => value,
        };
        Some((key.trim().to_owned(), value.to_owned(), text.len() - rest.len()))
    }
}

/// `text` without a line end after the opening tag and one before the closing tag, which belong to the notation.
fn without_line_ends(text: &str) -> &str {
    let text = text.strip_prefix('\n').unwrap_or(text);
    text.strip_suffix('\n').unwrap_or(text)
}

/// The value of an attribute, with its quotes or without.
fn attribute(text: &str) -> String {
    let text = text.trim();
    let quoted = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    quoted('"').or_else(|| quoted('\'')).unwrap_or(text).to_owned()
}

/// The value that `text` begins with, up to the tag `closing`, and what is behind that tag; `None` if it is not complete. White
/// space around CDATA sections belongs to the notation.
fn sections<'t>(text: &'t str, closing: &str) -> Option<(String, &'t str)> {
    const OPEN: &str = "<![CDATA[";
    const CLOSE: &str = "]]>";
    let (mut value, mut rest, mut any) = (String::new(), text, false);
    loop {
        let end = rest.find(closing);
        match rest.find(OPEN).filter(|at| end.is_none_or(|end| *at < end)) {
            Some(at) => {
                let (section, behind) = rest[at + OPEN.len()..].split_once(CLOSE)?;
                value.push_str(if rest[..at].trim().is_empty() { "" } else { &rest[..at] });
                value.push_str(section);
                (rest, any) = (behind, true);
            }
            None => {
                let (bare, behind) = (&rest[..end?], &rest[end? + closing.len()..]);
                if !any {
                    value.push_str(without_line_ends(bare));
                } else if !bare.trim().is_empty() {
                    value.push_str(bare);
                }
                return Some((value, behind));
            }
        }
    }
}
