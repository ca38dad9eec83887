//! Explains network errors so that users can tell whether they can fix them.

use std::io::{self, ErrorKind};

/// Default port of the server.
pub const SERVER_PORT: u16 = 8080;

/// Explains why `host` cannot be reached, and suggests a remedy.
pub fn why_unreachable(host: &str, error: &ureq::Error) -> String {
    match error {
        ureq::Error::HostNotFound => not_found(host),
        ureq::Error::Io(error) => of_io(host, error),
        ureq::Error::Timeout(_) => format!("{host} did not answer. Try again later."),
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) => {
            format!("The connection to {host} is not secure: {error}. Check this computer's clock and proxy settings.")
        }
        error => format!("{host}: expected an answer, got an error: {error}"),
    }
}

fn of_io(host: &str, error: &io::Error) -> String {
    match error.kind() {
        _ if is_lookup(error) => not_found(host),
        ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable | ErrorKind::NetworkDown => {
            format!("{host} cannot be reached because the network is down. Check the connection, then try again.")
        }
        ErrorKind::ConnectionRefused => format!("{host} refuses the connection: no server listens at this address."),
        ErrorKind::TimedOut | ErrorKind::WouldBlock => format!("{host} did not answer. Try again later."),
        ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::BrokenPipe
        | ErrorKind::UnexpectedEof => {
            format!("The connection to {host} was closed. Try again.")
        }
        _ => format!("The connection to {host} failed: {error}"),
    }
}

fn not_found(host: &str) -> String {
    format!(
        "{host} was not found: there is no network, or the host does not exist. Check the connection and the address, \
        then try again."
    )
}

/// True if looking up a host name failed. The error kind differs between systems.
pub fn is_lookup(error: &io::Error) -> bool {
    let words = error.to_string().to_lowercase();
    ["lookup address", "name resolution", "no such host", "name or service not known", "nodename nor servname"]
        .iter()
        .any(|part| words.contains(part))
}

/// Returns the host in a URL, with its port.
pub fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_network_say_what_to_do() {
        let said = |error| why_unreachable(host("https://hub.example:443/api?x"), &ureq::Error::Io(error));
        let lookup = "failed to lookup address information: Temporary failure in name resolution";
        let lookup = said(io::Error::other(lookup));
        assert!(lookup.starts_with("hub.example:443 was not found: there is no network"), "{lookup}");
        let refused = said(ErrorKind::ConnectionRefused.into());
        assert!(refused.contains("no server listens"), "{refused}");
        assert!(said(ErrorKind::NetworkUnreachable.into()).contains("the network is down"));
        assert!(said(ErrorKind::TimedOut.into()).ends_with("did not answer. Try again later."));
        assert!(said(io::Error::other("odd")).ends_with("failed: odd"));
        assert_eq!((host("http://127.0.0.1:9"), host("a/b")), ("127.0.0.1:9", "a"));
    }
}
