//! Calls written as JSON: one object with `name` and `arguments`, or a list of them.

use super::ToolEvent;

/// The reader of one object or list, character by character.
#[derive(Debug, Clone, Default)]
pub struct JsonCalls {
    place: Place,
    in_list: bool,
    call: Call,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Place {
    #[default]
    Start,
    /// Between the objects of a list.
    Element,
    /// Before a key, or the end of the object.
    Member,
    Key,
    Colon,
    Value,
    Done,
}

/// The object being read.
#[derive(Debug, Clone, Default)]
struct Call {
    /// Its text, until its name is known.
    raw: String,
    key: String,
    value: ValueText,
    name: Option<String>,
    /// Arguments that came before the name.
    early: String,
    begun: bool,
    has_arguments: bool,
}

/// A value, or the beginning of one.
#[derive(Debug, Clone, Default)]
struct ValueText {
    text: String,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl ValueText {
    /// Adds a character. `true` if the value is complete; a number or word is complete with the character behind it.
    fn push(&mut self, c: char) -> bool {
        self.text.push(c);
        if self.in_string {
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => {
                    self.in_string = false;
                    return self.depth == 0;
                }
                _ => {}
            }
            return false;
        }
        match c {
            '"' => self.in_string = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }

    fn is_word(&self) -> bool {
        self.depth == 0 && !self.text.is_empty() && !self.text.starts_with(['"', '{', '['])
    }
}

impl JsonCalls {
    /// Reads from the beginning of `text` and returns the number of bytes read: all, or those up to the end of the value.
    pub fn push(&mut self, text: &str, out: &mut Vec<ToolEvent>) -> usize {
        for (at, c) in text.char_indices() {
            self.read(c, out);
            if self.place == Place::Done {
                return at + c.len_utf8();
            }
        }
        text.len()
    }

    /// `true` when the value is complete.
    pub fn is_done(&self) -> bool {
        self.place == Place::Done
    }

    /// Ends a value that is not complete: a call keeps the arguments so far and has no end, JSON without a name is text.
    pub fn finish(&mut self, out: &mut Vec<ToolEvent>) {
        if self.place != Place::Done && self.place != Place::Element {
            self.place = Place::Done;
            let call = std::mem::take(&mut self.call);
            if !call.begun {
                ToolEvent::push_text(out, &call.raw);
            }
        }
    }

    fn read(&mut self, c: char, out: &mut Vec<ToolEvent>) {
        if self.place == Place::Value && self.call.value.is_word() && (c.is_whitespace() || ",}]".contains(c)) {
            self.end_value(out);
        }
        if !self.call.begun && !matches!(self.place, Place::Start | Place::Element) {
            self.call.raw.push(c);
        }
        match self.place {
            Place::Start | Place::Element => match c {
                '{' => {
                    self.call = Call { raw: "{".to_owned(), ..Call::default() };
                    self.place = Place::Member;
                }
                '[' if self.place == Place::Start => (self.in_list, self.place) = (true, Place::Element),
                ']' => self.place = Place::Done,
                _ => {}
            },
            Place::Member => match c {
                '"' => {
                    self.call.key.clear();
                    self.place = Place::Key;
                }
                '}' => self.end_call(out),
                _ => {}
            },
            // Names of members that matter have no escapes.
            Place::Key => match c {
                '"' => self.place = Place::Colon,
                c => self.call.key.push(c),
            },
            Place::Colon => {
                if c == ':' {
                    self.call.value = ValueText::default();
                    self.place = Place::Value;
                }
            }
            Place::Value => {
                if self.call.value.text.is_empty() && c.is_whitespace() {
                    return;
                }
                let complete = self.call.value.push(c);
                self.stream_arguments(c, out);
                if complete {
                    self.end_value(out);
                }
            }
            Place::Done => {}
        }
    }

    /// `true` if the value is the arguments as an object.
    fn is_arguments(&self) -> bool {
        matches!(&*self.call.key, "arguments" | "parameters") && self.call.value.text.starts_with('{')
    }

    fn stream_arguments(&mut self, c: char, out: &mut Vec<ToolEvent>) {
        if !self.is_arguments() {
            return;
        }
        self.call.has_arguments = true;
        if self.call.begun {
            ToolEvent::push_arguments(out, c.encode_utf8(&mut [0; 4]));
        } else {
            self.call.early.push(c);
        }
    }

    fn end_value(&mut self, out: &mut Vec<ToolEvent>) {
        self.place = Place::Member;
        let is_object = self.is_arguments();
        let value = std::mem::take(&mut self.call.value);
        let text = || serde_json::from_str::<String>(&value.text).ok();
        match &*self.call.key {
            "name" if !self.call.begun => {
                if let Some(name) = text() {
                    out.push(ToolEvent::Begin { name: name.clone() });
                    (self.call.name, self.call.begun) = (Some(name), true);
                    let early = std::mem::take(&mut self.call.early);
                    ToolEvent::push_arguments(out, &early);
                }
            }
            // Arguments as a text of their own.
            "arguments" | "parameters" if !is_object => {
                if let Some(arguments) = text() {
                    self.call.has_arguments = true;
                    if self.call.begun {
                        ToolEvent::push_arguments(out, &arguments);
                    } else {
                        self.call.early = arguments;
                    }
                }
            }
            _ => {}
        }
    }

    fn end_call(&mut self, out: &mut Vec<ToolEvent>) {
        self.place = if self.in_list { Place::Element } else { Place::Done };
        let call = std::mem::take(&mut self.call);
        if !call.begun {
            // JSON without a name is no call.
            ToolEvent::push_text(out, &call.raw);
            return;
        }
        if !call.has_arguments {
            ToolEvent::push_arguments(out, "{}");
        }
        out.push(ToolEvent::End);
    }
}
