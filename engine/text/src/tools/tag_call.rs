//! Calls between tags: `<function=NAME>` with `<parameter=KEY>` (Qwen3-Coder, Nemotron 3, Seed-OSS,
//! MiMo 2, Step 3.5), `<function name="NAME">` with `<param name="KEY">` (MiniCPM 5),
//! `<invoke name="NAME">` with `<parameter name="KEY">` (MiniMax M2, DeepSeek V3.2, Step 3), and
//! `NAME` with `<arg_key>` (GLM, Hy3).
//!
//! Values may contain closing tags. A closing tag therefore ends a value only if a valid
//! continuation follows it. That is the next parameter, or the end of the function followed by the
//! end of the call.

use serde_json::Value;

use super::{
    cursor::{Read, TextCursor, Unread},
    event::ToolEvent,
    json_calls::ValueText,
    reader::{CallOutcome, CallPlace, CallProgress, NextKeys},
};

/// Longest parameter name in bytes.
const LONGEST_KEY: usize = 256;

/// The tags of a notation as they appear in the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tags {
    /// Text before the name; empty if the call starts with the name.
    pub function: String,
    /// Text after the parameters; empty if the end of the call follows directly.
    pub function_end: String,
    /// Text before a key.
    pub parameter: String,
    /// Text between key and value.
    pub value: TagValue,
    /// Text after a value.
    pub parameter_end: String,
    /// True if names are attribute values, possibly quoted. Tags without content may then end with
    /// `/>`.
    pub attributes: bool,
}

/// The text between a key and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TagValue {
    /// The end of the key's tag.
    Bracket,
    /// Tags of their own.
    Tags {
        /// Text after the key.
        key_end: String,
        /// Text before the value.
        open: String,
    },
}

/// The reader of one call.
#[derive(Debug, Clone)]
pub struct TagCall {
    tags: Tags,
    /// Name of the tool, once it is read.
    name: Option<String>,
    has_begun: bool,
    /// Parameters that were read.
    given: Vec<String>,
    /// Arguments written as JSON, as some models do.
    json: Option<ValueText>,
    /// Number of bytes already searched for the end of the value.
    searched: usize,
}

/// A parameter and its value.
#[derive(Debug)]
struct Parameter {
    key: String,
    value: String,
    /// True if the value is a string, false if not, `None` if its tag does not specify.
    is_text: Option<bool>,
    /// Byte after the value and its closing tag.
    end: usize,
    /// True if no valid continuation follows, so that the call breaks off here.
    is_last: bool,
}

/// The next part of a call.
enum TagPart {
    Parameter(Parameter),
    /// The end of the call, with the byte after it.
    End(usize),
    /// Text that cannot be part of a call.
    Other,
}

impl TagCall {
    /// A reader of a call with `tags`, from the function's tag on.
    pub fn new(tags: Tags) -> Self {
        TagCall { tags, name: None, has_begun: false, given: Vec::new(), json: None, searched: 0 }
    }

    /// A reader of the parameters after the name of a tool, which is already read.
    pub fn named(tags: Tags, name: &str) -> Self {
        TagCall { name: Some(name.to_owned()), ..TagCall::new(tags) }
    }

    /// Reads everything that is certain. The text that ends the call stays unread.
    pub fn read(&mut self, text: &str, place: CallPlace<'_>, out: &mut Vec<ToolEvent>) -> CallProgress {
        let mut at = 0;
        let progress = |used: usize, outcome: CallOutcome| CallProgress { used, outcome };
        if !self.has_begun {
            match self.read_head(text, place) {
                Ok(CallHead { name, end, is_whole }) => {
                    ToolEvent::begin(out, &name);
                    (self.name, self.has_begun) = (Some(name), true);
                    at = end;
                    if is_whole {
                        self.complete(out);
                        return progress(at, CallOutcome::Done);
                    }
                }
                Err(Unread::More) if !place.ended => return progress(0, CallOutcome::More),
                Err(_) => return progress(0, CallOutcome::NoCall),
            }
        }
        loop {
            if self.json.is_none() && self.given.is_empty() && text[at..].trim_start().starts_with('{') {
                at = text.len() - text[at..].trim_start().len();
                self.json = Some(ValueText::default());
            }
            if let Some(outcome) = self.read_json(text, &mut at, place, out) {
                return progress(at, outcome);
            }
            match self.part(text, at, place) {
                Ok(TagPart::Parameter(Parameter { key, value, is_text, end, is_last })) => {
                    let value = self.json_value(&key, &value, is_text, place);
                    let separator = if self.given.is_empty() { "{" } else { ", " };
                    ToolEvent::push_arguments(out, &format!("{separator}{}: {value}", Value::String(key.clone())));
                    self.given.push(key);
                    self.searched = 0;
                    at = end;
                    if is_last {
                        return progress(at, CallOutcome::Broken);
                    }
                }
                Ok(TagPart::End(end)) => {
                    self.complete(out);
                    return progress(end, CallOutcome::Done);
                }
                Err(Unread::More) if !place.ended => return progress(at, CallOutcome::More),
                Err(Unread::More) => return progress(text.len(), CallOutcome::Broken),
                Ok(TagPart::Other) | Err(Unread::Other) => return progress(at, CallOutcome::Broken),
            }
        }
    }

    /// Completes the call. A call that breaks off keeps the parameters so far and has no end.
    fn complete(&self, out: &mut Vec<ToolEvent>) {
        if self.json.is_none() {
            ToolEvent::push_arguments(out, if self.given.is_empty() { "{}" } else { "}" });
        }
        out.push(ToolEvent::End);
    }

    /// Reads the name of a tool and its tag.
    fn read_head(&self, text: &str, place: CallPlace<'_>) -> Read<CallHead> {
        if let Some(name) = &self.name {
            return Ok(CallHead { name: name.clone(), end: 0, is_whole: false });
        }
        let mut cursor = TextCursor::new(text);
        cursor.skip_space();
        cursor.expect(&self.tags.function)?;
        let tag = match cursor.until(">") {
            Err(unread) if cursor.rest().len() <= LONGEST_KEY => return Err(unread),
            tag => tag.map_err(|_| Unread::Other)?,
        };
        let is_whole = self.tags.attributes && tag.trim_end().ends_with('/');
        let tag = if is_whole { tag.trim_end().trim_end_matches('/') } else { tag };
        let written = if self.tags.attributes { Attribute::of(tag).value } else { tag.trim() };
        let name = place.tools.resolve(written).ok_or(Unread::Other)?.to_owned();
        Ok(CallHead { name, end: cursor.at, is_whole })
    }

    /// Reads JSON arguments. Returns the outcome once there is one.
    fn read_json(
        &mut self,
        text: &str,
        at: &mut usize,
        place: CallPlace<'_>,
        out: &mut Vec<ToolEvent>,
    ) -> Option<CallOutcome> {
        let json = self.json.as_mut().filter(|json| !json.is_complete())?;
        for c in text[*at..].chars() {
            *at += c.len_utf8();
            ToolEvent::push_arguments(out, c.encode_utf8(&mut [0; 4]));
            if json.push(c) {
                return None;
            }
        }
        Some(if place.ended { CallOutcome::Broken } else { CallOutcome::More })
    }

    /// The JSON text of a value.
    fn json_value(&self, key: &str, value: &str, is_text: Option<bool>, place: CallPlace<'_>) -> String {
        let name = self.name.as_deref().unwrap_or_default();
        match is_text {
            Some(true) => Value::String(value.to_owned()).to_string(),
            Some(false) if serde_json::from_str::<Value>(value).is_ok() => value.trim().to_owned(),
            _ => place.tools.argument(name, key, value),
        }
    }

    /// The next part of the call, at byte `at`.
    fn part(&mut self, text: &str, at: usize, place: CallPlace<'_>) -> Read<TagPart> {
        let mut cursor = TextCursor::at(text, at);
        cursor.peek_word()?;
        let (mut behind, tags) = (cursor, &self.tags);
        if !tags.function_end.is_empty() && behind.take(&tags.function_end)? {
            return Ok(TagPart::End(behind.at));
        }
        // Models may omit the tag that ends the function before the text that ends the call.
        if !place.close.is_empty() && cursor.take(place.close)? {
            return Ok(TagPart::End(cursor.at - place.close.len()));
        }
        if self.json.is_some() || !cursor.take(&tags.parameter)? {
            return Ok(TagPart::Other);
        }
        self.parameter(text, cursor, place).map(TagPart::Parameter)
    }

    /// Reads the parameter whose key is at `cursor`.
    fn parameter(&mut self, text: &str, mut cursor: TextCursor<'_>, place: CallPlace<'_>) -> Read<Parameter> {
        let written = self.key(&mut cursor)?;
        let attribute = Attribute::of(written);
        let key = if self.tags.attributes { attribute.value } else { written.trim() };
        let is_text = attribute.is_text.filter(|_| self.tags.attributes);
        let body = &text[cursor.at..];
        let end = match self.value_end(body, key, place, NextKeys::Own) {
            Err(Unread::More) if place.ended => {
                self.searched = 0;
                self.value_end(body, key, place, NextKeys::Any)
            }
            found => found,
        };
        // Without a valid continuation, the value ends at the first closing tag.
        let is_last = place.ended && end.is_err();
        let end = if is_last { self.first_end(body).ok_or(Unread::More)? } else { end? };
        let value = if self.tags.attributes { without_sections(&body[..end]) } else { None };
        let value = value.unwrap_or_else(|| match &self.tags.value {
            TagValue::Bracket => without_line_ends(&body[..end]).to_owned(),
            TagValue::Tags { .. } => body[..end].to_owned(),
        });
        let end = cursor.at + end + self.tags.parameter_end.len();
        Ok(Parameter { key: key.to_owned(), value, is_text, end, is_last })
    }

    /// Position of the first closing tag that can end the value at the start of `body`.
    fn first_end(&self, body: &str) -> Option<usize> {
        let mut ends = body.match_indices(&*self.tags.parameter_end).map(|(at, _)| at);
        ends.find(|at| !self.tags.attributes || !is_within_section(&body[..*at]))
    }

    /// Reads a key and the text between the key and the value.
    fn key<'t>(&self, cursor: &mut TextCursor<'t>) -> Read<&'t str> {
        let key_end: &str = match &self.tags.value {
            TagValue::Bracket => ">",
            TagValue::Tags { key_end, .. } => key_end,
        };
        let length = cursor.rest().len();
        let key = cursor.until(key_end).map_err(|more| if length > LONGEST_KEY { Unread::Other } else { more })?;
        if key.len() > LONGEST_KEY || key.trim().is_empty() || key.contains(['\n', '<']) {
            return Err(Unread::Other);
        }
        if let TagValue::Tags { open, .. } = &self.tags.value {
            cursor.skip_space();
            cursor.expect(open)?;
        }
        Ok(key)
    }

    /// Length in bytes of the value at the start of `body`.
    fn value_end(&mut self, body: &str, key: &str, place: CallPlace<'_>, keys: NextKeys) -> Read<usize> {
        let end_tag = &self.tags.parameter_end;
        while let Some(found) = body.get(self.searched..).and_then(|rest| rest.find(end_tag)) {
            let end = self.searched + found;
            let is_open = self.tags.attributes && is_within_section(&body[..end]);
            if !is_open && self.may_follow(&body[end + end_tag.len()..], key, place, keys)? {
                return Ok(end);
            }
            self.searched = end + end_tag.len();
        }
        let mut unsure = body.len().saturating_sub(end_tag.len()).max(self.searched);
        while !body.is_char_boundary(unsure) {
            unsure -= 1;
        }
        self.searched = unsure;
        Err(Unread::More)
    }

    /// True if `rest` may follow the value of the parameter `key`.
    fn may_follow(&self, rest: &str, key: &str, place: CallPlace<'_>, keys: NextKeys) -> Read<bool> {
        let mut cursor = TextCursor::new(rest);
        // At the end of the text the value is complete, although its call breaks off.
        let at_end = |unread: Unread| if place.ended && keys == NextKeys::Any { Ok(true) } else { Err(unread) };
        if let Err(more) = cursor.peek_word() {
            return at_end(more);
        }
        let tags = &self.tags;
        match cursor.take(&tags.parameter) {
            Err(unread) => return at_end(unread),
            Ok(false) => {}
            Ok(true) => {
                return match self.key(&mut cursor) {
                    Ok(next) => Ok(keys == NextKeys::Any || self.may_be_next(next, key, place)),
                    Err(Unread::More) => at_end(Unread::More),
                    Err(Unread::Other) => Ok(false),
                };
            }
        }
        if !tags.function_end.is_empty() {
            match cursor.take(&tags.function_end) {
                Ok(true) => return self.may_follow_function(cursor, place),
                Ok(false) => {}
                Err(unread) => return at_end(unread),
            }
        }
        if place.close.is_empty() { Ok(false) } else { cursor.take(place.close).or_else(at_end) }
    }

    /// True if the text at `cursor` may follow the end of the function.
    fn may_follow_function(&self, mut cursor: TextCursor<'_>, place: CallPlace<'_>) -> Read<bool> {
        if place.close.is_empty() {
            return Ok(true);
        }
        let at_end = |unread: Unread| if place.ended { Ok(true) } else { Err(unread) };
        if let Err(more) = cursor.peek_word() {
            return at_end(more);
        }
        let each = place.each.iter().map(String::as_str);
        for text in [place.close, &self.tags.function].into_iter().chain(each).filter(|text| !text.is_empty()) {
            match cursor.take(text) {
                Ok(false) => {}
                found => return found.or_else(at_end),
            }
        }
        Ok(false)
    }

    /// True if the parameter `next` may follow the parameter `key`.
    fn may_be_next(&self, next: &str, key: &str, place: CallPlace<'_>) -> bool {
        let next = if self.tags.attributes { Attribute::of(next).value } else { next.trim() };
        let name = self.name.as_deref().unwrap_or_default();
        let is_new = next != key && !self.given.iter().any(|given| given == next);
        // A value that is not a string contains no tags.
        let is_text = place.tools.allows_text(name, key, "") == Some(true);
        is_new && (!is_text || place.tools.may_have(name, next))
    }
}

/// The start of a call.
struct CallHead {
    name: String,
    end: usize,
    /// True if the call has neither parameters nor an end of its own.
    is_whole: bool,
}

/// The value of the first attribute in a tag, after the attribute's name.
#[derive(Debug, PartialEq, Eq)]
struct Attribute<'t> {
    /// Value of the attribute, which may have been quoted.
    value: &'t str,
    /// Value of the attribute `string`, if there is one.
    is_text: Option<bool>,
}

impl<'t> Attribute<'t> {
    fn of(text: &'t str) -> Self {
        let text = text.trim();
        let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''));
        let quoted = quote.and_then(|quote| text[1..].split_once(quote));
        let Some((value, others)) = quoted else { return Attribute { value: text, is_text: None } };
        let is_text = others.trim().strip_prefix("string=").map(|value| value.trim_matches(['"', '\'']) == "true");
        Attribute { value, is_text }
    }
}

/// Removes the line ends after the opening tag and before the closing tag, which belong to the
/// notation. `text` stays unchanged unless it has both.
fn without_line_ends(text: &str) -> &str {
    let Some(rest) = text.strip_prefix('\n') else { return text };
    rest.strip_suffix('\n').unwrap_or(if rest.is_empty() { rest } else { text })
}

/// Start and end of a text in which tags have no meaning.
const SECTION: &str = "<![CDATA[";
const SECTION_END: &str = "]]>";

/// True if `text` starts with a CDATA section and ends within one. A value that starts with a
/// section consists of sections.
fn is_within_section(text: &str) -> bool {
    let text = text.trim();
    text.starts_with(SECTION) && !text.ends_with(SECTION_END)
}

/// The text of a value written as CDATA sections. A text that contains `]]>` is written as two
/// sections. White space around sections belongs to the notation.
fn without_sections(text: &str) -> Option<String> {
    let inner = text.trim().strip_prefix(SECTION)?.strip_suffix(SECTION_END)?;
    let mut parts = inner.split(SECTION_END);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.trim_start().strip_prefix(SECTION) {
            Some(more) => out.push_str(more),
            None => out.extend([SECTION_END, part]),
        }
    }
    Some(out)
}
