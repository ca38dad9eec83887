//! Calls written as JSON: an object with `name` and `arguments`, or a list of such objects.

use super::{
    definition::Definitions,
    event::ToolEvent,
    reader::{CallOutcome, CallPlace, CallProgress},
};

/// The reader of one object or list, character by character.
#[derive(Debug, Clone, Default)]
pub struct JsonCalls {
    place: JsonPlace,
    in_list: bool,
    call: JsonCall,
    /// True once a call has started.
    begun: bool,
    /// Text of objects that are not calls.
    others: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum JsonPlace {
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

/// The current object.
#[derive(Debug, Clone, Default)]
struct JsonCall {
    /// Text of the object until its name is known.
    raw: String,
    key: String,
    value: ValueText,
    /// Arguments that came before the name.
    early: String,
    begun: bool,
    has_arguments: bool,
    /// True within the object `function`, which holds name and arguments in some models' calls.
    in_function: bool,
}

/// A value, or the start of one.
#[derive(Debug, Clone, Default)]
pub struct ValueText {
    text: String,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl ValueText {
    /// Adds a character. `true` if the value is complete. A number or word is complete only at the
    /// character after it.
    pub fn push(&mut self, c: char) -> bool {
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

    /// True if the value is a complete object, list or text.
    pub fn is_complete(&self) -> bool {
        !self.text.is_empty() && self.depth == 0 && !self.in_string
    }

    fn is_word(&self) -> bool {
        self.depth == 0 && !self.text.is_empty() && !self.text.starts_with(['"', '{', '['])
    }
}

impl JsonCalls {
    /// Reads up to the end of the value.
    pub fn read(&mut self, text: &str, place: CallPlace<'_>, out: &mut Vec<ToolEvent>) -> CallProgress {
        for (at, c) in text.char_indices() {
            self.push(c, place.tools, out);
            if self.place == JsonPlace::Done {
                if !self.begun {
                    return CallProgress { used: at + c.len_utf8(), outcome: CallOutcome::NoCall };
                }
                ToolEvent::push_text(out, &self.others);
                return CallProgress { used: at + c.len_utf8(), outcome: CallOutcome::Done };
            }
        }
        let outcome = match (place.ended, self.begun) {
            (false, _) => CallOutcome::More,
            (true, false) => CallOutcome::NoCall,
            // If only the list's closing bracket is missing, all its calls are complete.
            (true, true) if self.place == JsonPlace::Element => CallOutcome::Done,
            (true, true) => CallOutcome::Broken,
        };
        if matches!(outcome, CallOutcome::Done | CallOutcome::Broken) {
            let rest = if self.call.begun { "" } else { &self.call.raw };
            ToolEvent::push_text(out, &format!("{}{rest}", self.others));
        }
        CallProgress { used: text.len(), outcome }
    }

    fn push(&mut self, c: char, tools: &Definitions, out: &mut Vec<ToolEvent>) {
        if self.place == JsonPlace::Value && self.call.value.is_word() && (c.is_whitespace() || ",}]".contains(c)) {
            self.end_value(tools, out);
        }
        if !self.call.begun && !matches!(self.place, JsonPlace::Start | JsonPlace::Element) {
            self.call.raw.push(c);
        }
        match self.place {
            JsonPlace::Start | JsonPlace::Element => match c {
                '{' => {
                    self.call = JsonCall { raw: "{".to_owned(), ..JsonCall::default() };
                    self.place = JsonPlace::Member;
                }
                '[' if self.place == JsonPlace::Start => (self.in_list, self.place) = (true, JsonPlace::Element),
                ']' => self.place = JsonPlace::Done,
                _ => {}
            },
            JsonPlace::Member => match c {
                '"' => {
                    self.call.key.clear();
                    self.place = JsonPlace::Key;
                }
                '}' if self.call.in_function => self.call.in_function = false,
                '}' => self.end_call(out),
                _ => {}
            },
            // The keys that matter contain no escapes.
            JsonPlace::Key => match c {
                '"' => self.place = JsonPlace::Colon,
                c => self.call.key.push(c),
            },
            JsonPlace::Colon => {
                if c == ':' {
                    self.call.value = ValueText::default();
                    self.place = JsonPlace::Value;
                }
            }
            JsonPlace::Value => {
                if self.call.value.text.is_empty() && c.is_whitespace() {
                    return;
                }
                if self.call.value.text.is_empty() && c == '{' && self.call.key == "function" {
                    (self.call.in_function, self.place) = (true, JsonPlace::Member);
                    return;
                }
                let complete = self.call.value.push(c);
                self.stream_arguments(c, out);
                if complete {
                    self.end_value(tools, out);
                }
            }
            JsonPlace::Done => {}
        }
    }

    /// `true` if the value is the object of arguments.
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

    fn end_value(&mut self, tools: &Definitions, out: &mut Vec<ToolEvent>) {
        self.place = JsonPlace::Member;
        let is_object = self.is_arguments();
        let value = std::mem::take(&mut self.call.value);
        let text = || serde_json::from_str::<String>(&value.text).ok();
        match &*self.call.key {
            "name" | "tool_name" | "function" if !self.call.begun => {
                if let Some(name) = text()
                    && let Some(name) = tools.resolve(&name)
                {
                    ToolEvent::begin(out, name);
                    (self.call.begun, self.begun) = (true, true);
                    let early = std::mem::take(&mut self.call.early);
                    ToolEvent::push_arguments(out, &early);
                }
            }
            // The arguments are a string that contains JSON.
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
        self.place = if self.in_list { JsonPlace::Element } else { JsonPlace::Done };
        let call = std::mem::take(&mut self.call);
        if !call.begun {
            // JSON without a tool name is not a call.
            self.others.push_str(&call.raw);
            return;
        }
        if !call.has_arguments {
            ToolEvent::push_arguments(out, "{}");
        }
        out.push(ToolEvent::End);
    }
}
