//! An HTTP client of the server.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
};

use serde_json::Value;

use crate::wait::LONGEST;

/// Sends requests to a server.
#[derive(Debug, Clone)]
pub struct Client {
    /// Address of the server.
    pub address: SocketAddr,
    agent: ureq::Agent,
    headers: Vec<(String, String)>,
}

/// A response.
#[derive(Debug)]
pub struct Reply {
    /// Status.
    pub status: u16,
    /// Headers.
    pub headers: ureq::http::HeaderMap,
    /// The body.
    pub body: String,
}

impl Reply {
    /// Returns the body of a reply, which must have this status.
    #[track_caller]
    pub fn json(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the error of a reply, which must have this status and the shape that clients expect.
    #[track_caller]
    pub fn error(&self, status: u16) -> Value {
        let error = self.json(status)["error"].clone();
        assert!(error["message"].as_str().is_some_and(|it| it.len() > 10) && error["type"].is_string(), "{self:?}");
        error
    }

    /// Returns the data of server-sent events without the last, which must be `[DONE]`.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{self:?}");
        let events: Vec<&str> = self.body.split_terminator("\n\n").collect();
        let (last, events) = events.split_last().unwrap_or_else(|| panic!("no events: {self:?}"));
        assert_eq!(*last, "data: [DONE]");
        let data = |event: &&str| event.strip_prefix("data: ").and_then(|data| serde_json::from_str(data).ok());
        events.iter().map(|event| data(event).unwrap_or_else(|| panic!("not an event: {event}"))).collect()
    }
}

impl Client {
    /// Makes a client of the server at `address`.
    pub fn new(address: SocketAddr) -> Self {
        let config = ureq::Agent::config_builder().http_status_as_error(false).proxy(None);
        Client { address, agent: config.timeout_global(Some(LONGEST)).build().into(), headers: Vec::new() }
    }

    /// Adds one more header to every request.
    pub fn with(&self, name: &str, value: &str) -> Self {
        let mut client = self.clone();
        client.headers.push((name.to_owned(), value.to_owned()));
        client
    }

    /// Sends a request without a body.
    pub fn send_empty(&self, method: &str, path: &str) -> Reply {
        self.send(method, path, "")
    }

    /// Sends a `GET` request.
    pub fn get(&self, path: &str) -> Reply {
        self.send_empty("GET", path)
    }

    /// Sends a `POST` request with a JSON body.
    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.send("POST", path, &body.to_string())
    }

    /// Sends a `POST` request with any body.
    pub fn send(&self, method: &str, path: &str, body: &str) -> Reply {
        let mut request = ureq::http::Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        if method == "POST" && !self.headers.iter().any(|(name, _)| name == "content-type") {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let sent = match body {
            "" => self.agent.run(request.body(()).unwrap_or_else(|error| panic!("{error}"))),
            body => self.agent.run(request.body(body).unwrap_or_else(|error| panic!("{error}"))),
        };
        let mut response = sent.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.body_mut().read_to_string().unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        Reply { status, headers, body }
    }

    /// Sends bytes as they are.
    pub fn raw(&self, bytes: &[u8]) -> Raw {
        let mut stream = TcpStream::connect(self.address).unwrap_or_else(|error| panic!("{error}"));
        stream.set_read_timeout(Some(LONGEST)).unwrap_or_else(|error| panic!("{error}"));
        stream.write_all(bytes).unwrap_or_else(|error| panic!("{error}"));
        Raw(BufReader::new(stream))
    }

    /// Sends a request and returns the open connection, from which the caller reads the answer.
    /// Dropping it hangs up.
    pub fn begin(&self, path: &str, body: &Value) -> Raw {
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.raw((head + &body).as_bytes())
    }
}

/// An open connection.
#[derive(Debug)]
pub struct Raw(BufReader<TcpStream>);

impl Raw {
    /// Returns the first line that contains `text`, or `None` if the connection ends before.
    pub fn line_with(&mut self, text: &str) -> Option<String> {
        (&mut self.0).lines().map_while(Result::ok).find(|line| line.contains(text))
    }

    /// Reads everything until the server hangs up.
    pub fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        // `bytes` keeps what arrived before a connection broke.
        let _ = self.0.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Sends a byte. Returns true if the server has closed the connection, even if answers are
    /// unread.
    pub fn is_closed(&mut self) -> bool {
        self.0.get_mut().write_all(b"x").is_err()
    }

    /// Sends more bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap_or_else(|error| panic!("{error}"));
    }
}
