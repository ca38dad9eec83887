//! Options of a server.

use std::{net::SocketAddr, time::Duration};

use sysinfo::System;
use thermocline_engine::session::Pooling;

use thermocline_host::network::SERVER_PORT;

/// Addresses, access rules and limits of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerOptions {
    /// Addresses to listen at; the first that can be bound is used. Port 0 is any free one.
    pub addresses: Vec<SocketAddr>,
    /// Key that clients must present as `Authorization: Bearer KEY` or `x-api-key: KEY`; `None`: no key.
    pub key: Option<String>,
    /// Allowed origins of web pages, like `http://localhost:3000`; `*` allows every one.
    pub origins: Vec<String>,
    /// Accepted names of this computer beside `localhost` and IP addresses; [`ServerOptions::at`] adds its own.
    pub hosts: Vec<String>,
    /// Requests that are answered at a time, each in a slot with a context of its own.
    pub parallel: usize,
    /// Requests that may wait for a slot; more are refused.
    pub max_waiting: usize,
    /// Time limit for the head of a request, for its body, and for the client to accept what is sent to it.
    pub timeout: Duration,
    /// Refuse what OpenAI's own server refuses, where real clients are let pass otherwise: another model's name, unknown hints.
    pub strict: bool,
    /// How embeddings are made of hidden states, where a request does not say.
    pub pooling: Pooling,
    /// Connections that are open at a time; beyond them the one that has waited longest for its client is closed.
    pub max_connections: usize,
}

impl ServerOptions {
    /// Default port.
    pub const PORT: u16 = SERVER_PORT;

    /// Default of [`ServerOptions::parallel`].
    pub const PARALLEL: usize = 4;

    /// Default of [`ServerOptions::max_waiting`].
    pub const MAX_WAITING: usize = 512;

    /// Defaults at one address, without a key.
    pub fn at(address: SocketAddr) -> Self {
        ServerOptions {
            addresses: vec![address],
            key: None,
            origins: Vec::new(),
            hosts: own_names(),
            parallel: Self::PARALLEL,
            max_waiting: Self::MAX_WAITING,
            timeout: Duration::from_secs(30),
            strict: false,
            pooling: Pooling::Mean,
            max_connections: 640,
        }
    }
}

/// This computer's name, alone and in the local network.
fn own_names() -> Vec<String> {
    let name = System::host_name().ok().filter(|name| !name.is_empty());
    name.map_or_else(Vec::new, |name| vec![format!("{name}.local"), name])
}
