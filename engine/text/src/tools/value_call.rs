//! Calls whose values are neither JSON nor between tags. These are Gemma's
//! `call:NAME{key:value,...}`, with its own quotes around strings, and Python's
//! `NAME(key=value, ...)`.
//!
//! Models do not escape quotes within texts. A quote therefore ends a text only if a valid
//! continuation follows it. That is the next parameter, or all closing brackets followed by the end
//! of the call.

use serde_json::{Map, Value};

use super::{
    cursor::{Read, TextCursor, Unread},
    event::ToolEvent,
    reader::{CallOutcome, CallPlace, CallProgress, NextKeys},
    text_value::TextQuotes,
};

/// Nesting depth beyond which the text is not a call.
const DEPTH: usize = 32;
/// Length in bytes above which a call is parsed again only after it has grown by one part in
/// [`GROWTH`].
const LONG: usize = 4096;
const GROWTH: usize = 256;

/// The notation of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueForm {
    /// Gemma's notation, with the quotes around strings.
    Brace(Vec<String>),
    /// Python's notation.
    Python,
}

/// The reader of one call, whose name is known to be a tool.
#[derive(Debug, Clone)]
pub struct ValueCall {
    form: ValueForm,
    name: String,
    /// Length in bytes that the text must reach before another attempt.
    next_try: usize,
}

impl ValueCall {
    /// The reader of a call of `name`, whose opening bracket follows.
    pub fn new(form: ValueForm, name: &str) -> Self {
        ValueCall { form, name: name.to_owned(), next_try: 0 }
    }

    /// Reads the whole call.
    pub fn read(&mut self, text: &str, place: CallPlace<'_>, out: &mut Vec<ToolEvent>) -> CallProgress {
        let more = CallProgress { used: 0, outcome: CallOutcome::More };
        if !place.ended && text.len() < self.next_try {
            return more;
        }
        let parse = |keys| CallParser::new(text, self, place, keys).arguments();
        let parsed = match parse(NextKeys::Own) {
            Err(Unread::More) if !place.ended => Err(Unread::More),
            Err(_) => parse(NextKeys::Any),
            parsed => parsed,
        };
        match parsed {
            Ok(CallArguments { json, end }) => {
                ToolEvent::begin(out, &self.name);
                ToolEvent::push_arguments(out, &json);
                out.push(ToolEvent::End);
                CallProgress { used: end, outcome: CallOutcome::Done }
            }
            Err(Unread::More) if !place.ended => {
                self.next_try = if text.len() < LONG { 0 } else { text.len() + text.len() / GROWTH };
                more
            }
            Err(Unread::More) => {
                ToolEvent::begin(out, &self.name);
                CallProgress { used: text.len(), outcome: CallOutcome::Broken }
            }
            Err(Unread::Other) => CallProgress { used: 0, outcome: CallOutcome::NoCall },
        }
    }
}

/// The arguments of a call.
#[derive(Debug)]
struct CallArguments {
    /// The arguments as a JSON object.
    json: String,
    /// Byte after the call.
    end: usize,
}

/// Open brackets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bracket {
    Call,
    Map,
    List,
    Tuple,
}

struct CallParser<'a> {
    cursor: TextCursor<'a>,
    text: &'a str,
    call: &'a ValueCall,
    place: CallPlace<'a>,
    keys: NextKeys,
    /// Parameters that were read.
    given: Vec<String>,
    open: Vec<Bracket>,
}

impl<'a> CallParser<'a> {
    fn new(text: &'a str, call: &'a ValueCall, place: CallPlace<'a>, keys: NextKeys) -> Self {
        let (cursor, given, open) = (TextCursor::new(text), Vec::new(), vec![Bracket::Call]);
        CallParser { cursor, text, call, place, keys, given, open }
    }

    fn is_python(&self) -> bool {
        self.call.form == ValueForm::Python
    }

    fn closing(&self, container: Bracket) -> char {
        match container {
            Bracket::Call if self.is_python() => ')',
            Bracket::Call | Bracket::Map => '}',
            Bracket::List => ']',
            Bracket::Tuple => ')',
        }
    }

    fn assignment(&self) -> &'static str {
        if self.is_python() { "=" } else { ":" }
    }

    /// Reads the arguments, starting at their opening bracket.
    fn arguments(mut self) -> Read<CallArguments> {
        let mut json = String::new();
        self.cursor.at += 1;
        loop {
            if self.closes(Bracket::Call)? {
                break;
            }
            let key = self.parameter()?;
            json += if json.is_empty() { "{" } else { ", " };
            json += &Value::String(key.clone()).to_string();
            json += ": ";
            self.given.push(key.clone());
            json += &match self.quoted()? {
                Some(text) => Value::String(text).to_string(),
                None if self.begins_container()? => self.value()?.to_string(),
                None => {
                    let word = self.word()?;
                    self.place.tools.argument(&self.call.name, &key, word)
                }
            };
            self.separator(Bracket::Call)?;
        }
        if !self.ends_call(self.cursor.rest())? {
            return Err(Unread::Other);
        }
        Ok(CallArguments { json: if json.is_empty() { "{}".to_owned() } else { json + "}" }, end: self.cursor.at })
    }

    /// Reads the bracket that closes `container`, if it follows.
    fn closes(&mut self, container: Bracket) -> Read<bool> {
        let closing = self.closing(container);
        let found = self.cursor.peek_word()? == closing;
        self.cursor.at += if found { closing.len_utf8() } else { 0 };
        Ok(found)
    }

    /// Reads the comma after an item, but not a closing bracket.
    fn separator(&mut self, container: Bracket) -> Read<()> {
        match self.cursor.peek_word()? {
            ',' => self.cursor.at += 1,
            c if c == self.closing(container) => {}
            _ => return Err(Unread::Other),
        }
        Ok(())
    }

    /// Reads the name of a parameter and the text between the name and the value.
    fn parameter(&mut self) -> Read<String> {
        let before = self.cursor;
        if let Some(key) = self.key(true)? {
            return Ok(key);
        }
        self.cursor = before;
        let positional = self.place.tools.positional(&self.call.name, self.given.len());
        positional.filter(|_| self.is_python()).map(str::to_owned).ok_or(Unread::Other)
    }

    /// Reads a key and the text after it, if a key follows. `of_call` is true for parameters of the
    /// call.
    fn key(&mut self, of_call: bool) -> Read<Option<String>> {
        self.cursor.skip_space();
        let assignment = if of_call { self.assignment() } else { ":" };
        if let Some(quotes) = self.quotes()? {
            if of_call && self.is_python() {
                return Ok(None);
            }
            let Some(key) = quotes.key(&mut self.cursor)? else { return Ok(None) };
            self.cursor.skip_space();
            return Ok(self.cursor.take(assignment)?.then_some(key));
        }
        let rest = self.cursor.rest();
        let is_part = |c: char| c.is_alphanumeric() || "_-.$".contains(c);
        let end = rest.find(|c| !is_part(c)).ok_or(Unread::More)?;
        let key = &rest[..end];
        let mut behind = TextCursor::at(self.text, self.cursor.at + end);
        behind.skip_space();
        if key.is_empty() || !behind.take(assignment)? || (self.is_python() && behind.peek()? == '=') {
            return Ok(None);
        }
        self.cursor = behind;
        Ok(Some(key.to_owned()))
    }

    fn begins_container(&mut self) -> Read<bool> {
        let c = self.cursor.peek_word()?;
        Ok(matches!(c, '{' | '[') || (c == '(' && self.is_python()))
    }

    fn value(&mut self) -> Read<Value> {
        if let Some(text) = self.quoted()? {
            return Ok(Value::String(text));
        }
        if !self.begins_container()? {
            let word = self.word()?;
            return Ok(match word {
                "True" => true.into(),
                "False" => false.into(),
                "None" => Value::Null,
                word => serde_json::from_str(word).unwrap_or_else(|_| Value::String(word.to_owned())),
            });
        }
        let container = match self.cursor.peek()? {
            '{' => Bracket::Map,
            '[' => Bracket::List,
            _ => Bracket::Tuple,
        };
        if self.open.len() >= DEPTH {
            return Err(Unread::Other);
        }
        self.open.push(container);
        self.cursor.at += 1;
        let (mut map, mut list) = (Map::new(), Vec::new());
        while !self.closes(container)? {
            if container == Bracket::Map {
                let key = self.key(false)?.ok_or(Unread::Other)?;
                map.insert(key, self.value()?);
            } else {
                list.push(self.value()?);
            }
            self.separator(container)?;
        }
        self.open.pop();
        Ok(if container == Bracket::Map { Value::Object(map) } else { Value::Array(list) })
    }

    /// The quotes of the string that follows, if one does.
    fn quotes(&mut self) -> Read<Option<TextQuotes<'a>>> {
        self.cursor.skip_space();
        let own: &'a [String] = if let ValueForm::Brace(quotes) = &self.call.form { quotes } else { &[] };
        TextQuotes::of(&self.cursor, own)
    }

    fn quoted(&mut self) -> Read<Option<String>> {
        let Some(quotes) = self.quotes()? else { return Ok(None) };
        let mut cursor = self.cursor;
        let text = quotes.read(&mut cursor, |rest| self.may_follow(rest, &self.open))?;
        self.cursor = cursor;
        Ok(Some(text))
    }

    /// Reads a value without quotes, up to the character that ends it.
    fn word(&mut self) -> Read<&'a str> {
        self.cursor.skip_space();
        let rest = self.cursor.rest();
        let ends: &[char] = if self.is_python() { &[',', '}', ']', ')'] } else { &[',', '}', ']'] };
        let end = rest.find(ends).ok_or(Unread::More)?;
        self.cursor.at += end;
        match rest[..end].trim() {
            "" => Err(Unread::Other),
            // A Python expression cannot be evaluated.
            word if self.is_python() && word.contains(char::is_whitespace) => Err(Unread::Other),
            word => Ok(word),
        }
    }

    /// True if `rest` may follow a value within the brackets `open`.
    fn may_follow(&self, rest: &str, open: &[Bracket]) -> Read<bool> {
        let Some((inner, outer)) = open.split_last() else { return self.ends_call(rest) };
        let mut cursor = TextCursor::new(rest);
        let c = cursor.peek_word()?;
        let behind = cursor.rest().get(c.len_utf8()..).unwrap_or_default();
        if c == self.closing(*inner) {
            return self.may_follow(behind, outer);
        }
        if c != ',' {
            return Ok(false);
        }
        let mut cursor = TextCursor::new(behind);
        let c = cursor.peek_word()?;
        if c == self.closing(*inner) {
            return self.may_follow(&cursor.rest()[c.len_utf8()..], outer);
        }
        let mut item = CallParser {
            cursor,
            text: behind,
            call: self.call,
            place: self.place,
            keys: self.keys,
            given: Vec::new(),
            open: Vec::new(),
        };
        match inner {
            Bracket::Call => Ok(item.key(true)?.is_some_and(|key| self.may_be_next(&key))),
            Bracket::Map if item.quotes()?.is_some() => Ok(true),
            Bracket::Map => Ok(item.key(false)?.is_some()),
            Bracket::List | Bracket::Tuple => Ok(item.quotes()?.is_some()
                || c.is_ascii_digit()
                || "-+.[{(".contains(c)
                || ["True", "False", "None", "true", "false", "null"]
                    .iter()
                    .any(|word| cursor.rest().starts_with(word))),
        }
    }

    fn may_be_next(&self, key: &str) -> bool {
        let is_new = !self.given.iter().any(|given| given == key);
        self.keys == NextKeys::Any || (is_new && self.place.tools.may_have(&self.call.name, key))
    }

    /// True if `rest` may follow the last bracket of the call.
    fn ends_call(&self, rest: &str) -> Read<bool> {
        let mut cursor = TextCursor::new(rest);
        let c = match cursor.peek_word() {
            Err(more) => return if self.place.ended { Ok(true) } else { Err(more) },
            Ok(c) => c,
        };
        let is_open = |unread: Unread| if self.place.ended { Ok(true) } else { Err(unread) };
        if !self.place.close.is_empty() {
            match cursor.take(self.place.close) {
                Ok(false) => {}
                Ok(true) => return Ok(true),
                Err(unread) => return is_open(unread),
            }
        }
        if !self.is_python() {
            return Ok(false);
        }
        if self.place.in_list && c == ']' {
            cursor.at += 1;
            return match cursor.peek_word() {
                Ok('`') => Ok(true),
                Ok(_) => Ok(self.place.close.is_empty() || cursor.take(self.place.close).or_else(is_open)?),
                Err(more) => is_open(more),
            };
        }
        if matches!(c, ',' | ';') {
            cursor.at += 1;
            cursor.skip_space();
        } else if self.place.in_list {
            return Ok(false);
        } else if self.place.close.is_empty() || c == '`' {
            return Ok(true);
        }
        match cursor.name() {
            Ok(name) => Ok(self.place.tools.knows(name) && cursor.take("(")?),
            Err(Unread::More) => is_open(Unread::More),
            Err(Unread::Other) => Ok(self.place.in_list && cursor.peek() == Ok(']')),
        }
    }
}
