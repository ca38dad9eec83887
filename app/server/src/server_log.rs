//! The log of a server on standard error.

use std::{
    fmt::Display,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::Duration,
};

use crate::ServerEvent;
use thermocline_terminal::{answer, failure::one_line, standard_error::say};

/// Lines that may wait to be written.
const WAITING_LINES: usize = 1024;

/// Longest wait for the last lines.
const LONGEST_FLUSH: Duration = Duration::from_secs(1);

/// A log with its own writer thread. If nobody reads standard error, lines are lost, but the server
/// still answers requests.
#[derive(Debug, Clone)]
pub struct ServerLog {
    entries: SyncSender<LogEntry>,
    /// Log only errors and device changes.
    quiet: bool,
}

#[derive(Debug)]
enum LogEntry {
    Line(String),
    /// Signals the sender when all earlier entries are written.
    Flush(SyncSender<()>),
}

impl ServerLog {
    /// Starts a log. If `quiet`, it logs only errors and device changes.
    pub fn start(quiet: bool) -> Self {
        let (entries, received) = sync_channel(WAITING_LINES);
        // Without a thread the lines are lost. The server still runs.
        let _ = thread::Builder::new().name("log".to_owned()).spawn(move || write(&received));
        ServerLog { entries, quiet }
    }

    /// Logs a line unless the log is quiet.
    pub fn line(&self, line: impl Display) {
        if !self.quiet {
            self.send(line.to_string());
        }
    }

    /// Logs an error, even if the log is quiet.
    pub fn error(&self, message: &str) {
        self.send(format!("error: {}", one_line(message)));
    }

    /// Logs an event of the server.
    pub fn event(&self, event: &ServerEvent<'_>) {
        match event {
            ServerEvent::Device(change) => self.send(answer::device_line(change)),
            ServerEvent::Answered(stats, reason) => self.line(answer::stats_line(stats, reason)),
            ServerEvent::Refused(line) | ServerEvent::Dropped(line) => {
                self.line(format_args!("[{}]", one_line(line)));
            }
            ServerEvent::Request => {}
        }
    }

    /// Waits until all lines are written, at most [`LONGEST_FLUSH`].
    pub fn flush(&self) {
        let (written, done) = sync_channel(1);
        if self.entries.try_send(LogEntry::Flush(written)).is_ok() {
            let _ = done.recv_timeout(LONGEST_FLUSH);
        }
    }

    fn send(&self, line: String) {
        // A full queue means that standard error is not read. The line is lost.
        let _ = self.entries.try_send(LogEntry::Line(line));
    }
}

/// Writes entries until the last log is dropped.
fn write(entries: &Receiver<LogEntry>) {
    for entry in entries {
        match entry {
            LogEntry::Line(line) => say(line),
            LogEntry::Flush(written) => drop(written.send(())),
        }
    }
}
