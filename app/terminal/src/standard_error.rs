//! Output to standard error.

use std::{fmt::Display, io::Write};

/// Writes a line to standard error. If nobody can read it, the line is lost, but the program
/// continues; `eprintln!` would panic.
pub fn say(line: impl Display) {
    // A single write keeps the lines of two threads apart.
    let line = format!("{line}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
