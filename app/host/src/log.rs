//! The latest lines of the program's log, in a bounded list that the window shows. The log on
//! standard error is separate.

use std::{
    collections::VecDeque,
    fmt,
    sync::LazyLock,
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::layer::{Context, Layer};

/// Most lines kept, and most characters of a line.
const MOST_LINES: usize = 500;
const MOST_CHARACTERS: usize = 400;

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// Seconds since 1970.
    pub at: u64,
    /// Severity of the line.
    pub level: Level,
    /// The part of the program, and its message.
    pub text: String,
}

static LINES: LazyLock<Mutex<VecDeque<LogLine>>> = LazyLock::new(Mutex::default);

/// Returns the kept lines, oldest first.
pub fn lines() -> Vec<LogLine> {
    LINES.lock().iter().cloned().collect()
}

/// Returns the kept lines as text, for a bug report.
pub fn text() -> String {
    lines().iter().map(|line| format!("{} {} {}\n", line.at, line.level, line.text)).collect()
}

/// Keeps lines of the program's own crates, and warnings of other crates.
#[derive(Debug, Default)]
pub struct Keeper;

fn is_kept(metadata: &Metadata<'_>) -> bool {
    let own = metadata.target().starts_with("thermocline");
    *metadata.level() <= if own { Level::INFO } else { Level::WARN }
}

impl<S: Subscriber> Layer<S> for Keeper {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if !is_kept(metadata) {
            return;
        }
        let mut text = Text(format!("{}:", metadata.target()));
        event.record(&mut text);
        let mut text: String = text.0.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
        if let Some((end, _)) = text.char_indices().nth(MOST_CHARACTERS) {
            text.truncate(end);
            text.push('…');
        }
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut lines = LINES.lock();
        lines.push_back(LogLine { at, level: *metadata.level(), text });
        while lines.len() > MOST_LINES {
            lines.pop_front();
        }
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        use fmt::Write as _;
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn log_keeps_the_latest_lines_within_their_bounds() {
        let subscriber = tracing_subscriber::registry().with(Keeper);
        tracing::subscriber::with_default(subscriber, || {
            tracing::debug!("too fine");
            tracing::info!(target: "wgpu_core", "of others");
            tracing::warn!(target: "wgpu_core", "a warning of others");
            for n in 0..MOST_LINES + 7 {
                tracing::info!(n, "line");
            }
            tracing::warn!(path = "a\nb", "{}", "long ".repeat(200));
        });
        let lines = lines();
        let all = text();
        assert_eq!(lines.len(), MOST_LINES);
        assert!(!all.contains("too fine") && !all.contains("of others"), "{all}");
        assert!(all.contains("line n=506") && !all.contains("line n=5\n"));
        let last = lines.last().unwrap();
        assert_eq!((last.level, last.text.chars().count()), (Level::WARN, MOST_CHARACTERS + 1));
        assert!(last.text.contains(": long long") && !last.text.contains('\n'), "{}", last.text);
    }
}
