//! Helpers for tests: patient waiting, and a scripted server.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use crate::remote::ServerAddress;

/// Longest time that a test waits for anything. It is long because a busy machine may be slow.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `find` returns a value; fails after [`PATIENCE`].
#[track_caller]
pub fn until<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until `is` returns true; fails after [`PATIENCE`].
#[track_caller]
pub fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    until(what, || is().then_some(()));
}

/// Starts a server that runs `script` for every request. Returns its address and the requests it
/// receives (head and body).
pub fn scripted(script: impl Fn(&mut TcpStream) + Send + 'static) -> (ServerAddress, Receiver<String>) {
    scripted_by_request(move |_, stream| script(stream))
}

/// Starts a server like [`scripted`], whose script also reads the request.
pub fn scripted_by_request(
    script: impl Fn(&str, &mut TcpStream) + Send + 'static,
) -> (ServerAddress, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let (sender, requests) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
                    break;
                }
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                head.push_str(&line);
            }
            let mut body = vec![0; length];
            if reader.read_exact(&mut body).is_err() {
                // The client gave up.
                continue;
            }
            let request = head + &String::from_utf8(body).unwrap();
            // The test may have ended already.
            let _ = sender.send(request.clone());
            script(&request, &mut stream);
        }
    });
    (address, requests)
}

/// Replies with this status, type and body, and closes the connection.
pub fn replies(status: &str, kind: &str, body: &str) -> impl Fn(&mut TcpStream) + Send + use<> {
    let text = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n{body}");
    move |stream| {
        let _ = stream.write_all(text.as_bytes());
    }
}
