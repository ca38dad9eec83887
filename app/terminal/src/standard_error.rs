//! Words to standard error.

use std::{fmt::Display, io::Write};

/// Writes a line to standard error. If nobody can read it the line is lost and the work goes on: `eprintln!` would panic.
pub fn say(line: impl Display) {
    // One write, so that the lines of two threads do not mix.
    let line = format!("{line}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
