//! Text input from the command line, a file or a pipe.

use std::{
    io::{IsTerminal, Read},
    path::Path,
};

use thermocline_terminal::failure::{Failure, Outcome};

/// Token ids given as one command-line value.
pub type TokenIds = Vec<u32>;

/// Returns `given`, else the contents of `file`, else standard input, unchanged. Without any of
/// them, on a terminal, the error names the `ways` to provide the text.
pub fn read(given: Option<&str>, file: Option<&Path>, ways: &str) -> Outcome<String> {
    if let Some(text) = given {
        return Ok(text.to_owned());
    }
    let (bytes, source) = match file {
        Some(path) => (std::fs::read(path).map_err(|error| Failure::read(path, error))?, path.display().to_string()),
        None if std::io::stdin().is_terminal() => {
            return Err(Failure::Usage {
                message: "no text".to_owned(),
                hint: Some(format!("give a text with {ways}")),
            });
        }
        None => {
            let mut bytes = Vec::new();
            let read = std::io::stdin().read_to_end(&mut bytes);
            read.map_err(|error| Failure::usage(format!("cannot read standard input: {error}")))?;
            (bytes, "standard input".to_owned())
        }
    };
    String::from_utf8(bytes).map_err(|error| {
        Failure::usage(format!("{source} at byte {}: expected UTF-8 text", error.utf8_error().valid_up_to()))
    })
}

/// Removes one line break at the end of `text`. Editors and `echo` add one.
pub fn without_last_line_break(mut text: String) -> String {
    if let Some(line) = text.strip_suffix('\n') {
        text.truncate(line.strip_suffix('\r').unwrap_or(line).len());
    }
    text
}
