//! How a server is to be.

use std::{net::SocketAddr, time::Duration};

use sysinfo::System;

/// Where a server listens, and to whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The address and port to listen on; of several, the first that can be had. Port 0 is any free one.
    pub addresses: Vec<SocketAddr>,
    /// What clients must present as `Authorization: Bearer KEY`; `None`: nothing.
    pub key: Option<String>,
    /// Origins of web pages that may ask, like `http://localhost:3000`; `*` is every one.
    pub origins: Vec<String>,
    /// Names that clients may call this computer by, beside `localhost` and IP addresses; [`Options::at`] knows its own.
    pub hosts: Vec<String>,
    /// Requests that may wait for their turn; more are refused.
    pub waiting: usize,
    /// How long a client may take to send a request's head, and its body, and to take what is sent to it.
    pub patience: Duration,
}

impl Options {
    /// Port where nobody chooses one.
    pub const PORT: u16 = 8080;

    /// Requests that may wait where nobody chooses.
    pub const WAITING: usize = 16;

    /// As long as clients may take where nobody chooses.
    pub const PATIENCE: Duration = Duration::from_secs(30);

    /// At one address, for everybody there.
    pub fn at(address: SocketAddr) -> Self {
        Options {
            addresses: vec![address],
            key: None,
            origins: Vec::new(),
            hosts: own_names(),
            waiting: Self::WAITING,
            patience: Self::PATIENCE,
        }
    }
}

/// What this computer is called, and what others in its network may call it.
fn own_names() -> Vec<String> {
    let name = System::host_name().ok().filter(|name| !name.is_empty());
    name.map_or_else(Vec::new, |name| vec![format!("{name}.local"), name])
}
