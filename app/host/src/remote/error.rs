//! Errors of remote models, as sentences that name the server and never contain a key.

use super::{SecretKey, ServerAddress};
use crate::network;

/// Longest quotation of a server's text in an error, in characters.
const QUOTED: usize = 300;

/// Why a server failed to answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// The text is not a server address. The error does not repeat it, because users put keys into
    /// URLs.
    #[error("server address: expected {why}")]
    Address {
        /// The expected form.
        why: &'static str,
    },
    /// The connection failed.
    #[error("{server} cannot be reached: {why}")]
    Unreachable {
        /// Host and port.
        server: String,
        /// The system's reason.
        why: String,
    },
    /// The server was silent for too long.
    #[error("{server} did not answer for {seconds} s. It may be loading a model or overloaded")]
    Silent {
        /// Host and port.
        server: String,
        /// Seconds waited.
        seconds: u64,
    },
    /// The status is not a success.
    #[error("{server} answered {status}{}: {message}", meaning(*.status))]
    Status {
        /// Host and port.
        server: String,
        /// HTTP status.
        status: u16,
        /// The server's message, or the address that it redirects to.
        message: String,
    },
    /// The answer does not follow OpenAI's protocol.
    #[error("{server}, {place}: expected {expected}, got {got}")]
    Malformed {
        /// Host and port.
        server: String,
        /// The malformed part of the answer.
        place: &'static str,
        /// The expected form.
        expected: &'static str,
        /// The beginning of the received text.
        got: String,
    },
    /// The server ended the answer with an error.
    #[error("{server} ended the answer: {message}")]
    Reported {
        /// Host and port.
        server: String,
        /// The server's message.
        message: String,
    },
    /// The connection ended before the answer was complete.
    #[error("{server} closed the connection before the answer was complete")]
    Interrupted {
        /// Host and port.
        server: String,
    },
    /// A picture of the request cannot be encoded.
    #[error("the request has a picture that cannot be sent: {0}")]
    Picture(String),
    /// The user cancelled.
    #[error("cancelled")]
    Cancelled,
}

fn meaning(status: u16) -> &'static str {
    match status {
        300..=399 => " (redirection; not followed, because it would pass on the API key)",
        401 | 403 => " (the API key is missing or wrong)",
        404 => " (no such model or path)",
        413 => " (the chat is too long for this server)",
        429 => " (too many requests)",
        500..=599 => " (the server has an error)",
        _ => "",
    }
}

/// Quotes the beginning of a server's text, on one line, without the key.
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

/// Converts an error of ureq.
pub(super) fn of_transport(server: &ServerAddress, error: &ureq::Error, silence: u64) -> RemoteError {
    let server = server.host().to_owned();
    match error {
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
            RemoteError::Unreachable { server, why: "the server did not answer".to_owned() }
        }
        ureq::Error::Timeout(_) => RemoteError::Silent { server, seconds: silence },
        ureq::Error::HostNotFound => RemoteError::Unreachable { server, why: "the host does not exist".to_owned() },
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

/// Converts an error of reading or writing.
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
            RemoteError::Unreachable { server, why: "there is no network, or the host does not exist".to_owned() }
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
