//! Finds what follows within the brackets of calls: the notation of the next call, or the text
//! around it.

use super::{
    brackets::{Brackets, CallSpelling},
    cursor::{Read, TextCursor, Unread},
    definition::Definitions,
    json_calls::JsonCalls,
    reader::{NamedCall, ToolReader},
    tag_call::{TagCall, Tags},
    value_call::{ValueCall, ValueForm},
};

/// Starts and ends code.
const FENCE: &str = "```";
/// Precedes a call in Gemma's notation.
const BRACE: &str = "call:";
/// A word that some templates write before the separator and the name of a tool.
const KIND: &str = "function";

/// The surroundings of a position within brackets.
#[derive(Debug, Clone, Copy)]
pub struct BodyPlace<'p> {
    /// The surrounding brackets.
    pub brackets: &'p Brackets,
    /// The texts that occur within calls.
    pub spelling: &'p CallSpelling,
    /// The tools that may be called.
    pub tools: &'p Definitions,
    /// True if a call was read within these brackets.
    pub has_call: bool,
    /// True within a code fence.
    pub in_fence: bool,
    /// True within a list in square brackets.
    pub in_list: bool,
}

/// The next element within the brackets.
#[derive(Debug)]
pub enum BracketElement {
    /// The end of the brackets.
    Close,
    /// A separator or tag between calls.
    Between,
    /// The start or end of a code fence.
    Fence,
    /// The start of a list of calls.
    List,
    /// A call, with its reader.
    Call(Box<ToolReader>),
    /// A call with the start of a code fence before its arguments.
    FencedCall(Box<ToolReader>),
}

/// Finds the next element at `cursor` and moves the cursor past it.
pub fn find(cursor: &mut TextCursor<'_>, place: BodyPlace<'_>) -> Read<BracketElement> {
    let c = cursor.peek_word()?;
    let BodyPlace { brackets, spelling, .. } = place;
    let close = Some(&brackets.close).filter(|close| !close.is_empty());
    let ends = close.into_iter().chain(&brackets.each);
    let mut ahead = *cursor;
    if let Some(at) = ahead.take_any(ends.clone().chain(spelling.tags.iter().map(|tags| &tags.function)))? {
        // The reader of a call reads the function tag itself.
        if let Some(tags) = at.checked_sub(ends.count()) {
            return Ok(BracketElement::Call(Box::new(ToolReader::Tags(TagCall::new(spelling.tags[tags].clone())))));
        }
        *cursor = ahead;
        return Ok(if close.is_some() && at == 0 { BracketElement::Close } else { BracketElement::Between });
    }
    match c {
        '`' => fence(cursor, place),
        ',' | ';' if place.has_call => Ok(between(cursor)),
        ']' | '}' if place.has_call && (place.in_list || !brackets.close.is_empty()) => Ok(between(cursor)),
        '{' => Ok(BracketElement::Call(Box::new(ToolReader::Json(JsonCalls::default())))),
        '[' => list(cursor, place),
        _ if brackets.ends_with_name() => Err(Unread::Other),
        _ => named(cursor, place),
    }
}

fn between(cursor: &mut TextCursor<'_>) -> BracketElement {
    cursor.at += 1;
    BracketElement::Between
}

/// Reads a code fence and the language after it.
fn fence(cursor: &mut TextCursor<'_>, place: BodyPlace<'_>) -> Read<BracketElement> {
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
    Ok(BracketElement::Fence)
}

/// Recognises a list of JSON objects, or of calls as Python writes them.
fn list(cursor: &mut TextCursor<'_>, place: BodyPlace<'_>) -> Read<BracketElement> {
    let mut ahead = *cursor;
    ahead.at += 1;
    if matches!(ahead.peek_word()?, '{' | ']') {
        return Ok(BracketElement::Call(Box::new(ToolReader::Json(JsonCalls::default()))));
    }
    let first = ahead.at;
    let name = ahead.name()?;
    if !place.tools.knows(name) || !ahead.take("(")? {
        return Err(Unread::Other);
    }
    cursor.at = first;
    Ok(BracketElement::List)
}

/// Recognises a call that starts with the name of its tool.
fn named(cursor: &mut TextCursor<'_>, place: BodyPlace<'_>) -> Read<BracketElement> {
    let BodyPlace { brackets, spelling, tools, .. } = place;
    if cursor.take(BRACE)? {
        cursor.skip_space();
        let name = tools.resolve(cursor.name()?).ok_or(Unread::Other)?;
        return match cursor.peek_word()? {
            '{' => Ok(BracketElement::Call(Box::new(ToolReader::Values(ValueCall::new(
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
        return Ok(BracketElement::Call(Box::new(ToolReader::Values(ValueCall::new(ValueForm::Python, name)))));
    }
    let c = cursor.peek_word()?;
    // One of several calls has an end of its own.
    let own_end = brackets.each.last();
    let ends = own_end.into_iter().chain([&brackets.close]).filter(|text| !text.is_empty());
    let mut ahead = *cursor;
    if !brackets.open.is_empty() && ahead.take_any([&spelling.keys.parameter].into_iter().chain(ends))?.is_some() {
        let tags = Tags { function_end: own_end.cloned().unwrap_or_default(), ..spelling.keys.clone() };
        return Ok(BracketElement::Call(Box::new(ToolReader::Tags(TagCall::named(tags, name)))));
    }
    if c == '`' {
        fence(cursor, BodyPlace { in_fence: false, ..place })?;
    }
    if cursor.peek_word()? != '{' {
        return Err(Unread::Other);
    }
    let reader = Box::new(ToolReader::Named(NamedCall::new(name)));
    Ok(if c == '`' { BracketElement::FencedCall(reader) } else { BracketElement::Call(reader) })
}

/// Reads the identifier and the separator between a name and its arguments. True if there is a
/// separator.
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
