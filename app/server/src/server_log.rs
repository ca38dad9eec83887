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

/// A log that a thread of its own writes. If its reader stops reading, lines are lost, but requests are still answered.
#[derive(Debug, Clone)]
pub struct ServerLog {
    entries: SyncSender<LogEntry>,
    /// Only errors and changes of the device are logged.
    quiet: bool,
}

#[derive(Debug)]
enum LogEntry {
    Line(String),
    /// Everything before it is written: the sender is told.
    Flush(SyncSender<()>),
}

impl ServerLog {
    /// A log; if `quiet`, only of errors and changes of the device.
    pub fn start(quiet: bool) -> Self {
        let (entries, received) = sync_channel(WAITING_LINES);
        // Without a thread the lines are lost, which is no reason not to serve.
        let _ = thread::Builder::new().name("log".to_owned()).spawn(move || write(&received));
        ServerLog { entries, quiet }
    }

    /// Logs a line unless the log is quiet.
    pub fn line(&self, line: impl Display) {
        if !self.quiet {
            self.send(line.to_string());
        }
    }

    /// Logs an error, also if the log is quiet.
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

    /// Waits until all lines are written, but no longer than [`LONGEST_FLUSH`].
    pub fn flush(&self) {
        let (written, done) = sync_channel(1);
        if self.entries.try_send(LogEntry::Flush(written)).is_ok() {
            let _ = done.recv_timeout(LONGEST_FLUSH);
        }
    }

    fn send(&self, line: String) {
        // A full queue: nobody reads.
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
