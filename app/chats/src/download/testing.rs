//! A file server that misbehaves on demand, for tests of downloads.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use sha2::{Digest, Sha256};

/// Behaviour of the server for one request.
#[derive(Debug, Clone)]
pub enum ServerBehaviour {
    /// Serves the file and supports ranges.
    Well,
    /// Closes the connection after this many bytes of the body.
    ClosesAfter(usize),
    /// Serves another file under the same name.
    Changed,
    /// Ignores ranges.
    NoRanges,
    /// Answers with this error status.
    Says(u16),
}

/// The SHA-256 checksum of a file, in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Serves a file with one behaviour per request. The last behaviour is repeated. Returns the
/// address of the server and its request count.
pub fn serve(file: Vec<u8>, manners: Vec<ServerBehaviour>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let (mut first, mut range, mut if_range) = (String::new(), None, None);
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            while let Some(Ok(line)) = lines.next() {
                let lower = line.to_ascii_lowercase();
                if line.is_empty() {
                    break;
                } else if first.is_empty() {
                    first = line;
                } else if let Some(from) = lower.strip_prefix("range: bytes=") {
                    range = from.trim_end_matches('-').parse::<usize>().ok();
                } else if lower.starts_with("if-range:") {
                    if_range = line.split_once(": ").map(|(_, tag)| tag.to_owned());
                }
            }
            if first.is_empty() {
                continue;
            }
            let manner = manners[count.fetch_add(1, SeqCst).min(manners.len() - 1)].clone();
            let (body, tag) = match (first.contains("/api/"), &manner) {
                (true, _) => (listing(&file).into_bytes(), "\"list\""),
                (_, ServerBehaviour::Changed) => (file.iter().copied().rev().collect(), "\"two\""),
                _ => (file.clone(), "\"one\""),
            };
            let range =
                range.filter(|_| if_range.as_deref() == Some(tag) && !matches!(manner, ServerBehaviour::NoRanges));
            let head = match (&manner, range) {
                (ServerBehaviour::Says(status), _) => format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n"),
                (_, Some(from)) if from >= body.len() => {
                    let total = body.len();
                    format!("HTTP/1.1 416 No\r\nContent-Range: bytes */{total}\r\nContent-Length: 0\r\n\r\n")
                }
                (_, Some(from)) => format!(
                    "HTTP/1.1 206 Partial\r\nContent-Range: bytes {from}-{}/{}\r\nContent-Length: {}\r\nETag: {tag}\r\n\r\n",
                    body.len() - 1,
                    body.len(),
                    body.len() - from
                ),
                _ => format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nETag: {tag}\r\n\r\n", body.len()),
            };
            let body = match (&manner, head.starts_with("HTTP/1.1 2")) {
                (_, false) => &[],
                (ServerBehaviour::ClosesAfter(bytes), _) => &body[range.unwrap_or(0)..][..*bytes],
                _ => &body[range.unwrap_or(0)..],
            };
            // The client may have disconnected.
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        }
    });
    (address, asked)
}

fn listing(file: &[u8]) -> String {
    let (sum, bytes) = (sha256(file), file.len());
    format!(
        r#"[{{"type":"directory","path":"sub"}},{{"type":"file","path":"README.md","size":5}},
        {{"type":"file","path":"sub/m.gguf","size":130,"lfs":{{"oid":"{sum}","size":{bytes},"pointerSize":130}}}}]"#
    )
}
