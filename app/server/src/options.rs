//! The options of a server.

use std::{net::SocketAddr, time::Duration};

use sysinfo::System;
use thermocline_engine::session::Pooling;

use super::picture_addresses::PictureAddresses;
use thermocline_host::network::SERVER_PORT;

/// Addresses, access rules and limits of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerOptions {
    /// Addresses to listen on. The first that can be bound is used. Port 0 is any free port.
    pub addresses: Vec<SocketAddr>,
    /// Key that clients must present as `Authorization: Bearer KEY` or `x-api-key: KEY`; `None`: no
    /// key.
    pub key: Option<String>,
    /// Allowed origins of web pages, like `http://localhost:3000`; `*` allows every origin.
    pub origins: Vec<String>,
    /// Accepted host names of this computer, besides `localhost` and IP addresses.
    /// [`ServerOptions::at`] adds the computer's own names.
    pub hosts: Vec<String>,
    /// Requests answered at a time, each in a slot with its own context.
    pub parallel: usize,
    /// Requests that may wait for a slot. Further requests are refused.
    pub max_waiting: usize,
    /// Time limit for a request's head, for its body, and for the client to accept sent data.
    pub timeout: Duration,
    /// Refuse what OpenAI's own server refuses: other models' names and unknown hints.
    pub strict: bool,
    /// How hidden states are pooled into embeddings, unless a request says otherwise. `None`: as
    /// the model asks, or else by the mean.
    pub pooling: Option<Pooling>,
    /// Addresses from which the server fetches pictures.
    pub image_urls: PictureAddresses,
    /// Connections open at a time. Beyond this, the connection that has been idle longest is
    /// closed.
    pub max_connections: usize,
}

impl ServerOptions {
    /// Default port.
    pub const PORT: u16 = SERVER_PORT;

    /// Default of [`ServerOptions::parallel`].
    pub const PARALLEL: usize = 4;

    /// Default of [`ServerOptions::max_waiting`].
    pub const MAX_WAITING: usize = 512;

    /// Creates default options for one address, without a key.
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
            pooling: None,
            image_urls: PictureAddresses::Nowhere,
            max_connections: 640,
        }
    }
}

/// This computer's names: its host name, alone and in the local network.
fn own_names() -> Vec<String> {
    let name = System::host_name().ok().filter(|name| !name.is_empty());
    name.map_or_else(Vec::new, |name| vec![format!("{name}.local"), name])
}
