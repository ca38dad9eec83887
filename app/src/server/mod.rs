//! The model for other programs: an HTTP server that speaks OpenAI's protocol. A [`Server`] listens as its [`Options`] say and
//! answers from whatever model a [`Source`] offers at the moment, so that the terminal and the window share it; a [`Switch`] is
//! the window's.
//!
//! A request passes the `guard` (which hosts and web pages may ask), the `key`, and the `routes`; its `body` is read within
//! limits and taken apart by `fields` and `ask` (`messages` for chats), where what the engine cannot do is refused by name. Then it waits in
//! the `queue` for its turn with the one session there is; a `generation` is the engine at work for it. `reply` has the answers'
//! shapes, `stream` sends them while they are made, `error` says what went wrong, and `figures` what the engine is doing.
//! All of it runs on one thread of its own; nothing in it waits without giving way.

mod ask;
mod body;
mod error;
mod fields;
mod figures;
mod generation;
mod guard;
mod key;
mod messages;
mod options;
mod queue;
mod reply;
mod routes;
mod running;
mod source;
mod stream;
mod switch;

pub use options::Options;
pub use running::{News, Server, Status};
pub use source::{Offer, Source};
pub use switch::{Switch, SwitchState};
