//! The contents of the brackets of calls: the notation of the next call, or a text that stands around it.

use super::{
    brackets::{Brackets, CallSpelling},
    cursor::{Read, TextCursor, Unread},
    definition::Definitions,
    json_calls::JsonCalls,
    reader::{NamedCall, ToolReader},
    tag_call::TagCall,
    value_call::{ValueCall, ValueForm},
};

/// Around code.
const FENCE: &str = "```";
/// Ahead of a call in Gemma's notation.
const BRACE: &str = "call:";
/// A word that some templates write ahead of the separator and the name of a tool.
const KIND: &str = "function";

/// Where a body stands.
#[derive(Debug, Clone, Copy)]
pub struct BodyPlace<'p> {
    /// The brackets around it.
    pub brackets: &'p Brackets,
    /// The texts within calls.
    pub spelling: &'p CallSpelling,
    /// The tools that may be called.
    pub tools: &'p Definitions,
    /// A call was read within these brackets.
    pub has_call: bool,
    /// In a fence.
    pub in_fence: bool,
    /// In a list with brackets.
    pub in_list: bool,
}

/// The next thing within the brackets.
#[derive(Debug)]
pub enum Found {
    /// The end of the brackets.
    Close,
    /// Something between calls.
    Between,
    /// The beginning or the end of a fence.
    Fence,
    /// The beginning of a list of calls.
    List,
    /// A call, for this reader.
    Call(Box<ToolReader>),
    /// The same with the beginning of a fence ahead of its arguments.
    FencedCall(Box<ToolReader>),
}

/// The next thing at `cursor`, which moves to its end.
pub fn find(cursor: &mut TextCursor<'_>, place: BodyPlace<'_>) -> Read<Found> {
    let c = cursor.peek_word()?;
    let BodyPlace { brackets, spelling, .. } = place;
    let close = Some(&brackets.close).filter(|close| !close.is_empty());
    let ends = close.into_iter().chain(&brackets.each);
    let mut ahead = *cursor;
    if let Some(at) = ahead.take_any(ends.clone().chain(spelling.tags.iter().map(|tags| &tags.function)))? {
        // The tag of a function is left to the reader of its call.
        if let Some(tags) = at.checked_sub(ends.count()) {
            return Ok(Found::Call(Box::new(ToolReader::Tags(TagCall::new(spelling.tags[tags].clone())))));
        }
        *cursor = ahead;
        return Ok(if close.is_some() && at == 0 { Found::Close } else { Found::Between });
    }
    match c {
        '`' => fence(cursor, place),
        ',' | ';' if place.has_call => Ok(between(cursor)),
        ']' | '}' if place.has_call && (place.in_list || !brackets.close.is_empty()) => Ok(between(cursor)),
        '{' => Ok(Found::Call(Box::new(ToolReader::Json(JsonCalls::default())))),
        '[' => list(cursor, place),
        _ if brackets.ends_with_name() => Err(Unread::Other),
        _ => named(cursor, place),
    }
}

fn between(cursor: &mut TextCursor<'_>) -> Found {
    cursor.at += 1;
    Found::Between
}

/// A fence, with the language of what is in it.
fn fence(cursor: &mut TextCursor<'_>, place: BodyPlace<'_>) -> Read<Found> {
    cursor.expect(FENCE)?;
    if !place.in_fence {
        let rest = cursor.rest();
        let language = rest.find('\n').ok_or(Unread::More);
        let end = language.map_err(|more| if rest.contains(' ') { Unread::Other } else { more })?;
        if rest[..end].trim().contains(|c: char| !c.is_alphanumeric() && c != '_') {
            return Err(Unread::Other);
        }
        cursor.at += end + 1;
    }
    Ok(Found::Fence)
}

/// A list: of JSON objects, or of calls as Python writes them.
fn list(cursor: &mut TextCursor<'_>, place: BodyPlace<'_>) -> Read<Found> {
    let mut ahead = *cursor;
    ahead.at += 1;
    if matches!(ahead.peek_word()?, '{' | ']') {
        return Ok(Found::Call(Box::new(ToolReader::Json(JsonCalls::default()))));
    }
    let first = ahead.at;
    let name = ahead.name()?;
    if !place.tools.knows(name) || !ahead.take("(")? {
        return Err(Unread::Other);
    }
    cursor.at = first;
    Ok(Found::List)
}

/// A call that begins with the name of its tool.
fn named(cursor: &mut TextCursor<'_>, place: BodyPlace<'_>) -> Read<Found> {
    let BodyPlace { brackets, spelling, tools, .. } = place;
    let before = *cursor;
    if cursor.take(BRACE)? {
        cursor.skip_space();
        let name = tools.resolve(cursor.name()?).ok_or(Unread::Other)?;
        return match cursor.peek_word()? {
            '{' => Ok(Found::Call(Box::new(ToolReader::Values(ValueCall::new(
                ValueForm::Brace(spelling.quotes.clone()),
                name,
            ))))),
            _ => Err(Unread::Other),
        };
    }
    let mut written = cursor.name()?;
    let mut separated = separator(cursor, spelling)?;
    if separated && written == KIND && !cursor.peek_word()?.is_ascii_punctuation() {
        (written, separated) = (cursor.name()?, false);
        separated |= separator(cursor, spelling)?;
    }
    let name = tools.resolve(written).ok_or(Unread::Other)?;
    if cursor.peek()? == '(' && !separated {
        return Ok(Found::Call(Box::new(ToolReader::Values(ValueCall::new(ValueForm::Python, name)))));
    }
    let c = cursor.peek_word()?;
    let mut keys = *cursor;
    let is_end =
        |keys: &mut TextCursor<'_>| if brackets.close.is_empty() { Ok(false) } else { keys.take(&brackets.close) };
    if !brackets.open.is_empty() && (keys.take(&spelling.keys.parameter)? || is_end(&mut keys)?) {
        *cursor = before;
        return Ok(Found::Call(Box::new(ToolReader::Tags(TagCall::new(spelling.keys.clone())))));
    }
    if c == '`' {
        fence(cursor, BodyPlace { in_fence: false, ..place })?;
    }
    if cursor.peek_word()? != '{' {
        return Err(Unread::Other);
    }
    let reader = Box::new(ToolReader::Named(NamedCall::new(name)));
    Ok(if c == '`' { Found::FencedCall(reader) } else { Found::Call(reader) })
}

/// Reads what stands between a name and arguments: an identifier, and a separator. True if there is one.
fn separator(cursor: &mut TextCursor<'_>, spelling: &CallSpelling) -> Read<bool> {
    if cursor.take(&spelling.call_id)? {
        cursor.name()?;
    }
    for text in &spelling.separators {
        if cursor.take(text)? {
            return Ok(true);
        }
    }
    Ok(false)
}
