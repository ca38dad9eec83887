//! Reads messages from a line editor or a pipe.

use std::{
    fs,
    io::{BufRead, IsTerminal},
    path::PathBuf,
};

use rustyline::{Cmd, Config, DefaultEditor, KeyCode, KeyEvent, Modifiers, config::Configurer, error::ReadlineError};

use thermocline_host::folders::Folders;
use thermocline_terminal::{
    answer,
    failure::{Failure, Outcome},
};

const PROMPT: &str = "> ";
const CONTINUED: &str = "… ";
const FENCE: &str = "\"\"\"";

/// A reader of messages.
pub struct Input {
    source: InputSource,
    interrupted: bool,
}

enum InputSource {
    Editor { editor: Box<DefaultEditor>, history: Option<PathBuf> },
    Pipe { line: usize },
}

/// The result of reading a line.
enum InputEvent {
    Text(String),
    Interrupted,
    End,
}

impl Input {
    /// Opens a line editor on a terminal; otherwise reads standard input line by line. With `keep`,
    /// the input history is stored in the user's data folder.
    pub fn new(keep: bool) -> Outcome<Self> {
        let source = if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
            editor(keep).map_err(|error| Failure::Output(format!("cannot use the terminal: {error}")))?
        } else {
            InputSource::Pipe { line: 0 }
        };
        Ok(Input { source, interrupted: false })
    }

    /// `true` if the input comes from a terminal.
    pub fn is_interactive(&self) -> bool {
        matches!(self.source, InputSource::Editor { .. })
    }

    /// Reads the next message, of one or more lines. Ctrl-C clears the message; on an empty
    /// message, a second press ends the chat. `None` at the end of the input or the chat.
    pub fn read(&mut self) -> Outcome<Option<String>> {
        let mut message = PartialMessage::default();
        loop {
            match self.source.read(if message.is_empty() { PROMPT } else { CONTINUED })? {
                InputEvent::Text(line) => {
                    self.interrupted = false;
                    if let Some(text) = message.push(&line) {
                        self.source.remember(&text);
                        return Ok(Some(text));
                    }
                }
                InputEvent::Interrupted if !message.is_empty() => message = PartialMessage::default(),
                InputEvent::Interrupted if self.interrupted => return Ok(None),
                InputEvent::Interrupted => {
                    self.interrupted = true;
                    answer::print("(Ctrl-C again or Ctrl-D to leave)\n")?;
                }
                InputEvent::End => return Ok(message.end()),
            }
        }
    }
}

impl InputSource {
    fn read(&mut self, prompt: &str) -> Outcome<InputEvent> {
        match self {
            InputSource::Editor { editor, .. } => match editor.readline(prompt) {
                Ok(text) => Ok(InputEvent::Text(text)),
                Err(ReadlineError::Interrupted) => Ok(InputEvent::Interrupted),
                Err(ReadlineError::Eof) => Ok(InputEvent::End),
                Err(error) => Err(Failure::Output(format!("cannot read from the terminal: {error}"))),
            },
            InputSource::Pipe { line } => {
                *line += 1;
                let mut bytes = Vec::new();
                let read = std::io::stdin().lock().read_until(b'\n', &mut bytes);
                if read.map_err(|error| Failure::usage(format!("cannot read standard input: {error}")))? == 0 {
                    return Ok(InputEvent::End);
                }
                let mut text = String::from_utf8(bytes)
                    .map_err(|_| Failure::usage(format!("standard input, line {line}: expected UTF-8 text")))?;
                text.truncate(text.trim_end_matches(['\n', '\r']).len());
                Ok(InputEvent::Text(text))
            }
        }
    }

    /// Adds `text` to the input history. Ignores failures.
    fn remember(&mut self, text: &str) {
        if let InputSource::Editor { editor, history } = self {
            let _ = editor.add_history_entry(text);
            if let Some(path) = history {
                let _ = editor.append_history(path);
            }
        }
    }
}

fn editor(keep: bool) -> rustyline::Result<InputSource> {
    let config = Config::builder().max_history_size(1000)?.history_ignore_space(true).build();
    let mut editor = DefaultEditor::with_config(config)?;
    editor.set_auto_add_history(false);
    editor.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::ALT), Cmd::Newline);
    let history = if keep { history_file() } else { None };
    if let Some(path) = &history {
        // The file does not exist at the first start.
        let _ = editor.load_history(path);
    }
    Ok(InputSource::Editor { editor: Box::new(editor), history })
}

/// Path of the input history in the user's data folder. Creates the folder if it is missing.
fn history_file() -> Option<PathBuf> {
    let path = Folders::detect()?.history();
    fs::create_dir_all(path.parent()?).ok()?;
    Some(path)
}

/// A message whose last lines may be missing.
#[derive(Debug, Default)]
struct PartialMessage {
    text: String,
    fenced: bool,
    started: bool,
}

impl PartialMessage {
    fn is_empty(&self) -> bool {
        !self.started
    }

    /// Adds a line. Returns the message if it is complete.
    fn push(&mut self, line: &str) -> Option<String> {
        let mut line = line;
        if !self.started
            && let Some(rest) = line.trim_start().strip_prefix(FENCE)
        {
            self.fenced = true;
            line = rest;
            self.started = true;
            if line.is_empty() {
                return None;
            }
        } else if self.started && !(self.text.is_empty() && self.fenced) {
            self.text.push('\n');
        }
        self.started = true;
        if self.fenced {
            match line.trim_end().strip_suffix(FENCE) {
                Some(last) => {
                    self.text.push_str(last);
                    return self.end().map(|text| text.trim_end_matches('\n').to_owned());
                }
                None => self.text.push_str(line),
            }
            return None;
        }
        match line.strip_suffix('\\') {
            Some(part) => {
                self.text.push_str(part);
                None
            }
            None => {
                self.text.push_str(line);
                self.end()
            }
        }
    }

    /// Returns the incomplete message at the end of the input, if there is one.
    fn end(&mut self) -> Option<String> {
        let partial = std::mem::take(self);
        partial.started.then_some(partial.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(lines: &[&str]) -> Vec<String> {
        let mut partial = PartialMessage::default();
        let mut messages: Vec<String> = lines.iter().filter_map(|line| partial.push(line)).collect();
        messages.extend(partial.end());
        messages
    }

    #[test]
    fn input_lines_are_messages() {
        assert_eq!(messages(&["hello", "", "world"]), ["hello", "", "world"]);
    }

    #[test]
    fn backslash_continues_the_message() {
        assert_eq!(messages(&["one\\", "two\\", "three", "four"]), ["one\ntwo\nthree", "four"]);
    }

    #[test]
    fn fence_encloses_a_message_of_several_lines() {
        assert_eq!(messages(&["\"\"\"one", "", "two\"\"\"", "three"]), ["one\n\ntwo", "three"]);
        assert_eq!(messages(&["\"\"\"", "one", "two", "\"\"\"", "three"]), ["one\ntwo", "three"]);
        assert_eq!(messages(&["\"\"\"one\"\"\""]), ["one"]);
    }

    #[test]
    fn unfinished_message_is_read_at_the_end_of_the_input() {
        assert_eq!(messages(&["\"\"\"one", "two"]), ["one\ntwo"]);
        assert_eq!(messages(&["one\\"]), ["one"]);
    }
}
