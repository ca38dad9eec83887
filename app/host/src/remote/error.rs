//! Failures of remote models, in sentences that name the server and never a key.

use super::{SecretKey, ServerAddress};
use crate::network;

/// Longest text of a server that an error repeats, in characters.
const QUOTED: usize = 300;

/// The reason why a server did not answer as it should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// The text is no address of a server. It is not repeated: people put keys into URLs.
    #[error("server address: expected {why}")]
    Address {
        /// The form that was expected.
        why: &'static str,
    },
    /// No connection.
    #[error("{server} cannot be reached: {why}")]
    Unreachable {
        /// Host and port.
        server: String,
        /// The system's reason.
        why: String,
    },
    /// Nothing came for too long.
    #[error("{server} was silent for {seconds} s; it may be loading or overloaded")]
    Silent {
        /// Host and port.
        server: String,
        /// Seconds waited.
        seconds: u64,
    },
    /// A status that is no success.
    #[error("{server} answered {status}{}: {message}", meaning(*.status))]
    Status {
        /// Host and port.
        server: String,
        /// HTTP status.
        status: u16,
        /// The server's message, or the place it redirects to.
        message: String,
    },
    /// An answer in another form than OpenAI's.
    #[error("{server}, {place}: expected {expected}, got {got}")]
    Malformed {
        /// Host and port.
        server: String,
        /// The part of the answer.
        place: &'static str,
        /// The form that was expected.
        expected: &'static str,
        /// The beginning of what came.
        got: String,
    },
    /// The server ended the answer with an error.
    #[error("{server} ended the answer: {message}")]
    Reported {
        /// Host and port.
        server: String,
        /// Its message.
        message: String,
    },
    /// The connection ended in the middle.
    #[error("{server} closed the connection before the answer was complete")]
    Interrupted {
        /// Host and port.
        server: String,
    },
    /// The user cancelled.
    #[error("cancelled")]
    Cancelled,
}

fn meaning(status: u16) -> &'static str {
    match status {
        300..=399 => " (it is elsewhere; redirections are not followed, because they would carry the key along)",
        401 | 403 => " (it needs an API key, or another one)",
        404 => " (no such model or path)",
        413 => " (the chat is too long for it)",
        429 => " (too many requests)",
        500..=599 => " (it has a trouble of its own)",
        _ => "",
    }
}

/// The beginning of a server's text, on one line, without the key.
pub(super) fn quoted(text: &str, key: Option<&SecretKey>) -> String {
    let text = key.map_or_else(|| text.to_owned(), |key| key.redact(text));
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let clean = line.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c });
    let mut short: String = clean.take(QUOTED).collect();
    if line.chars().count() > QUOTED {
        short.push('…');
    }
    if short.is_empty() { "nothing".to_owned() } else { short }
}

/// The error of a request that ureq could not carry out.
pub(super) fn of_transport(server: &ServerAddress, error: &ureq::Error, silence: u64) -> RemoteError {
    let server = server.host().to_owned();
    match error {
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
            RemoteError::Unreachable { server, why: "no answer to the attempt to connect".to_owned() }
        }
        ureq::Error::Timeout(_) => RemoteError::Silent { server, seconds: silence },
        ureq::Error::HostNotFound => {
            RemoteError::Unreachable { server, why: "there is no host of this name".to_owned() }
        }
        ureq::Error::Io(error) => of_io(server, error, silence),
        ureq::Error::Protocol(_) | ureq::Error::LargeResponseHeader(..) => RemoteError::Malformed {
            server,
            place: "response",
            expected: "HTTP",
            got: quoted(&error.to_string(), None),
        },
        other => RemoteError::Unreachable { server, why: quoted(&other.to_string(), None) },
    }
}

/// The error of reading or writing.
pub(super) fn of_io(server: String, error: &std::io::Error, silence: u64) -> RemoteError {
    use std::io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, TimedOut, UnexpectedEof, WouldBlock,
    };
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<ureq::Error>());
    match (error.kind(), inner) {
        (TimedOut | WouldBlock, _) | (_, Some(ureq::Error::Timeout(_))) => {
            RemoteError::Silent { server, seconds: silence }
        }
        (BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof, _) => {
            RemoteError::Interrupted { server }
        }
        _ if network::is_lookup(error) => {
            RemoteError::Unreachable { server, why: "there is no network, or no host of this name".to_owned() }
        }
        _ => RemoteError::Unreachable { server, why: quoted(&error.to_string(), None) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_is_one_short_line_without_the_key() {
        let key = SecretKey::new("sk-secret").unwrap();
        assert_eq!(quoted("bad key\n\tsk-secret \u{1b}[31m", Some(&key)), "bad key [key] \u{fffd}[31m");
        assert_eq!(quoted(&"x".repeat(1000), None).chars().count(), QUOTED + 1);
        assert_eq!(quoted(" \n", None), "nothing");
    }
}
